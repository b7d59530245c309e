/**
 * A sentence encoder from a local folder, as sentence-transformers exports them: `model.onnx` (or `onnx/model.onnx`) and
 * `tokenizer.json`. Runs through onnxruntime-node, which is large and therefore only installed by who chooses this.
 */
import { access, readFile } from "node:fs/promises";
import { basename, join, resolve } from "node:path";
import { UnusableEnvironment } from "../../../runtime/env.ts";
import { piecesOf, type Vocabulary, vocabularyIn } from "./bert-pieces.ts";
import type { Embedder } from "./embedder.ts";

interface Tensor {
  readonly data: ArrayLike<number>;
  readonly dims: readonly number[];
}
/** The part of onnxruntime-node that is used. */
export interface OnnxRuntime {
  readonly InferenceSession: {
    create(path: string): Promise<{
      readonly inputNames: readonly string[];
      readonly outputNames: readonly string[];
      run(feeds: Record<string, unknown>): Promise<Record<string, Tensor>>;
    }>;
  };
  readonly Tensor: new (type: "int64", data: BigInt64Array, dims: readonly number[]) => unknown;
}

const AT_ONCE = 16;
/** What such encoders were trained on; more is cut, as they do themselves. */
const MOST_PIECES = 256;
const PACKAGE = "onnxruntime-node";

export async function loadOnnx(
  folder: string,
  runtime: () => Promise<OnnxRuntime> = () => import(PACKAGE) as Promise<OnnxRuntime>,
): Promise<Embedder> {
  const cannot = (why: string) => new UnusableEnvironment(`Cannot start: MEMORY_ONNX_DIR: ${why}`);
  const { InferenceSession, Tensor } = await runtime().catch((error: unknown) => {
    throw cannot(
      `needs the package ${PACKAGE}: npm install --ignore-scripts ${PACKAGE} (${
        error instanceof Error ? error.message.split("\n")[0] : error
      })`,
    );
  });
  const modelFile = await firstOf([join(folder, "model.onnx"), join(folder, "onnx", "model.onnx")]);
  if (!modelFile) throw cannot(`there is no model.onnx in ${folder}`);
  const vocabulary: Vocabulary = await readFile(join(folder, "tokenizer.json"), "utf8").then(JSON.parse).then(
    vocabularyIn,
  )
    .catch((error: Error) => {
      throw cannot(`tokenizer.json cannot be used: ${error.message}`);
    });
  const session = await InferenceSession.create(modelFile);

  const run = async (texts: readonly string[]): Promise<Float32Array[]> => {
    const pieces = texts.map((text) => piecesOf(text, vocabulary, MOST_PIECES));
    const length = Math.max(...pieces.map((ids) => ids.length));
    const ids = new BigInt64Array(texts.length * length);
    const mask = new BigInt64Array(texts.length * length);
    pieces.forEach((row, i) =>
      row.forEach((id, k) => {
        ids[i * length + k] = BigInt(id);
        mask[i * length + k] = 1n;
      })
    );
    const feeds: Record<string, unknown> = {};
    for (const name of session.inputNames) {
      const data = name === "attention_mask" ? mask : name === "token_type_ids" ? new BigInt64Array(ids.length) : ids;
      feeds[name] = new Tensor("int64", data, [texts.length, length]);
    }
    const outputs = await session.run(feeds);
    const whole = outputs.sentence_embedding;
    const { data, dims } = whole ?? outputs[session.outputNames[0]!]!;
    const dimension = dims[dims.length - 1]!;
    return pieces.map((row, i) => {
      const vector = new Float32Array(dimension);
      // Without a vector of the whole text, the mean of its pieces' is one.
      const count = whole ? 1 : row.length;
      for (let k = 0; k < count; k++) {
        const at = (whole ? i : i * length + k) * dimension;
        for (let d = 0; d < dimension; d++) vector[d]! += data[at + d]!;
      }
      const norm = Math.hypot(...vector);
      return norm === 0 ? vector : vector.map((value) => value / norm);
    });
  };

  const [trial] = await run(["trial"]);
  return {
    model: `onnx:${basename(resolve(folder))}:${trial!.length}`,
    dimension: trial!.length,
    async embed(texts, signal) {
      const vectors: Float32Array[] = [];
      for (let from = 0; from < texts.length; from += AT_ONCE) {
        signal?.throwIfAborted();
        vectors.push(...await run(texts.slice(from, from + AT_ONCE)));
      }
      return vectors;
    },
  };
}

async function firstOf(files: readonly string[]): Promise<string | undefined> {
  for (const file of files) if (await access(file).then(() => true, () => false)) return file;
  return undefined;
}
