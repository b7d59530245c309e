import { setImmediate } from "node:timers/promises";
import { readArtifact } from "./builtin/artifact.ts";
import { summation } from "./builtin/sum.ts";
import { wordPieces } from "./builtin/word-pieces.ts";
import type { Embedder } from "./embedder.ts";

// About 5 ms of work: other requests of the process wait no longer than this for a large batch.
const CHARACTERS_PER_TURN = 65_536;

/** The static model that ships with the project; see builtin/MODEL.md. */
export async function loadBuiltin(): Promise<Embedder> {
  const artifact = await readArtifact(new URL("./builtin/model.bin", import.meta.url));
  const tokenize = wordPieces(artifact);
  const sum = summation(artifact);

  return {
    model: artifact.model,
    dimension: artifact.dimension,
    async embed(texts, signal) {
      const vectors: Float32Array[] = [];
      let characters = 0;
      for (const text of texts) {
        if (characters > CHARACTERS_PER_TURN) {
          await setImmediate();
          characters = 0;
        }
        signal?.throwIfAborted();
        vectors.push(sum(tokenize(text)));
        characters += text.length;
      }
      return vectors;
    },
  };
}
