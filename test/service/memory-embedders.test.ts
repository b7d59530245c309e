/** Embedders that ask somebody else: a service over HTTP, a runtime that is installed apart. */
import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { piecesOf, vocabularyIn } from "../../services/memory/embed/bert-pieces.ts";
import { loadOnnx, type OnnxRuntime } from "../../services/memory/embed/onnx.ts";
import { openaiEmbedder } from "../../services/memory/embed/openai.ts";
import { temporaryFolder } from "../support/servers.ts";

describe("openai", () => {
  const open = (answer: (input: string[], call: number) => Response, dimension = 2) => {
    const asked: string[][] = [];
    const send = async (_url: unknown, init?: RequestInit) => {
      const { input } = JSON.parse(String(init?.body)) as { input: string[] };
      asked.push(input);
      return answer(input, asked.length);
    };
    return {
      asked,
      embedder: openaiEmbedder({ url: "http://x/v1/", model: "m", dimension, send: send as typeof fetch }),
    };
  };
  const vectors = (input: string[]) =>
    Response.json({ data: input.map((text, index) => ({ index, embedding: [3, text.length] })).reverse() });

  test("texts go in batches, vectors come back in order and of length 1", async () => {
    const { embedder, asked } = open(vectors);
    const texts = Array.from({ length: 150 }, (_, i) => "x".repeat(i + 1));
    const found = await embedder.embed(texts);
    expect(asked.map((batch) => batch.length)).toEqual([64, 64, 22]);
    found.forEach((vector, i) => expect(vector[1]! / vector[0]!).toBeCloseTo((i + 1) / 3, 3));
    expect(Math.hypot(...found[3]!)).toBeCloseTo(1, 6);
  });

  test("what passes is tried again, what does not is told at once", async () => {
    const passing = open((input, call) => call < 3 ? new Response("busy", { status: 429 }) : vectors(input));
    expect(await passing.embedder.embed(["a"])).toHaveLength(1);
    expect(passing.asked).toHaveLength(3);
    const refused = open(() => new Response("no such key", { status: 401 }));
    await expect(refused.embedder.embed(["a"])).rejects.toThrow("401: no such key");
    expect(refused.asked).toHaveLength(1);
  });

  test("vectors of another length, and too few of them, are refused", async () => {
    await expect(open(vectors, 3).embedder.embed(["a"])).rejects.toThrow("MEMORY_OPENAI_DIMENSION");
    await expect(open(() => Response.json({ data: [] })).embedder.embed(["a"])).rejects.toThrow(
      "0 vectors for 1 texts",
    );
  });

  test("who gives up is not kept waiting", async () => {
    const { embedder } = open(() => new Response("busy", { status: 503 }));
    await expect(embedder.embed(["a"], AbortSignal.timeout(50))).rejects.toThrow();
  });
});

describe("onnx", () => {
  const vocab = Object.fromEntries(
    ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "cat", "##s", "play", "##ing", "!", "漢", "cafe"].map((
      piece,
      i,
    ) => [piece, i]),
  );
  const tokenizer = { model: { type: "WordPiece", vocab }, normalizer: { lowercase: true } };

  test.each([
    ["Cats playing!", [2, 4, 5, 6, 7, 8, 3]],
    ["Café 漢 zebra", [2, 10, 9, 1, 3]],
    ["", [2, 3]],
  ])("%s is read as its pieces", (text, ids) => expect(piecesOf(text, vocabularyIn(tokenizer), 32)).toEqual(ids));

  test("a text longer than the encoder reads is cut, its end mark kept", () => {
    expect(piecesOf("cat ".repeat(50), vocabularyIn(tokenizer), 8)).toEqual([2, 4, 4, 4, 4, 4, 4, 3]);
  });

  /** An encoder whose vectors of a piece are [its id, 1]. */
  const fake: OnnxRuntime = {
    Tensor: class {
      readonly data: BigInt64Array;
      readonly dims: readonly number[];
      constructor(_: "int64", data: BigInt64Array, dims: readonly number[]) {
        this.data = data;
        this.dims = dims;
      }
    } as OnnxRuntime["Tensor"],
    InferenceSession: {
      create: async () => ({
        inputNames: ["input_ids", "attention_mask", "token_type_ids"],
        outputNames: ["last_hidden_state"],
        async run(feeds) {
          const { data, dims } = feeds.input_ids as { data: BigInt64Array; dims: number[] };
          return { last_hidden_state: { data: [...data].flatMap((id) => [Number(id), 1]), dims: [...dims, 2] } };
        },
      }),
    },
  };

  test("a text's vector is the mean of its pieces', however long its neighbours in the batch are", async () => {
    await using folder = await temporaryFolder();
    await mkdir(join(folder.path, "onnx"));
    await writeFile(join(folder.path, "onnx", "model.onnx"), "");
    await writeFile(join(folder.path, "tokenizer.json"), JSON.stringify(tokenizer));
    const embedder = await loadOnnx(folder.path, async () => fake);
    expect(embedder.dimension).toBe(2);
    const [alone] = await embedder.embed(["cat"]);
    const [beside] = await embedder.embed(["cat", "cats playing cats playing"]);
    expect(beside).toEqual(alone);
    expect(alone![0]! / alone![1]!).toBeCloseTo((2 + 4 + 3) / 3, 5);
  });

  test("what is missing is said in one line", async () => {
    await using folder = await temporaryFolder();
    await expect(loadOnnx(folder.path, () => Promise.reject(new Error("Cannot find package")))).rejects.toThrow(
      /needs the package onnxruntime-node: npm install/,
    );
    await expect(loadOnnx(folder.path, async () => fake)).rejects.toThrow(/no model\.onnx/);
    await writeFile(join(folder.path, "model.onnx"), "");
    await expect(loadOnnx(folder.path, async () => fake)).rejects.toThrow(/tokenizer\.json cannot be used/);
  });

  test("a real encoder, when ONNX_DIR names its folder, gives a text one vector alone or beside others", async ({ skip }) => {
    const folder = process.env.ONNX_DIR;
    if (!folder) {
      console.log("SKIPPED: set ONNX_DIR to a folder with model.onnx and tokenizer.json to try a real encoder");
      return skip();
    }
    const embedder = await loadOnnx(folder);
    const texts = ["A cat sleeps on the mat.", "The feline is resting.", "Revenue rose by ten percent. ".repeat(40)];
    const together = await embedder.embed(texts);
    const dot = (a: Float32Array, b: Float32Array) => a.reduce((sum, value, i) => sum + value * b[i]!, 0);
    for (const [i, text] of texts.entries()) {
      const [alone] = await embedder.embed([text]);
      expect(dot(alone!, together[i]!)).toBeCloseTo(1, 3);
    }
    expect(dot(together[0]!, together[1]!)).toBeGreaterThan(dot(together[0]!, together[2]!) + 0.2);
  });
});
