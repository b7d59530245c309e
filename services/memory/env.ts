import { z } from "zod";
import { BusEnv, DatabaseEnv, wholeNumber } from "../../runtime/env.ts";

const address = (name: string) => z.string().regex(/^https?:\/\/\S+$/, `must be the http address of ${name}`);

export const MemoryEnv = BusEnv.extend(DatabaseEnv.shape).extend({
  QDRANT_URL: address("Qdrant").optional().describe("Where Qdrant listens; without it the index is in this process"),
  QDRANT_API_KEY: z.string().optional(),
  MEMORY_EMBEDDER: z.enum(["builtin", "onnx", "openai"], "must be builtin, onnx or openai").default("builtin")
    .describe("What computes the meaning of a text"),
  MEMORY_ONNX_DIR: z.string().optional().describe("A folder with model.onnx and the tokenizer of a sentence encoder"),
  MEMORY_OPENAI_URL: address("an OpenAI-compatible service").default("https://api.openai.com/v1")
    .describe("The address before /embeddings"),
  MEMORY_OPENAI_MODEL: z.string().default("text-embedding-3-small"),
  MEMORY_OPENAI_KEY: z.string().optional(),
  MEMORY_OPENAI_DIMENSION: wholeNumber(8, 8_192, 1_536).describe("How long that model's vectors are"),
  MEMORY_INDEX_IDLE_MINUTES: wholeNumber(1, 100_000, 60)
    .describe("A tenant that nobody has searched for so long leaves the embedded index until somebody does"),
});
export type MemoryEnv = z.output<typeof MemoryEnv>;
