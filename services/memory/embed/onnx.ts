import type { Embedder } from "./embedder.ts";
export async function loadOnnx(_folder: string): Promise<Embedder> {
  throw new Error("not yet");
}
