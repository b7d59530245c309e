/** The embedder that the environment asks for. */
import { UnusableEnvironment } from "../../../runtime/env.ts";
import type { MemoryEnv } from "../env.ts";
import { loadBuiltin } from "./builtin.ts";
import type { Embedder } from "./embedder.ts";
import { openaiEmbedder } from "./openai.ts";

export async function chooseEmbedder(env: MemoryEnv): Promise<Embedder> {
  if (env.MEMORY_EMBEDDER === "openai") {
    return openaiEmbedder({
      url: env.MEMORY_OPENAI_URL,
      model: env.MEMORY_OPENAI_MODEL,
      dimension: env.MEMORY_OPENAI_DIMENSION,
      ...(env.MEMORY_OPENAI_KEY ? { key: env.MEMORY_OPENAI_KEY } : {}),
    });
  }
  if (env.MEMORY_EMBEDDER === "onnx") {
    if (!env.MEMORY_ONNX_DIR) throw new UnusableEnvironment("Cannot start: MEMORY_ONNX_DIR: must be set for onnx");
    const { loadOnnx } = await import("./onnx.ts");
    return await loadOnnx(env.MEMORY_ONNX_DIR);
  }
  return await loadBuiltin();
}
