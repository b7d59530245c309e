/** Turns texts into vectors of length 1. A vector means something only beside others of the same model. */
export interface Embedder {
  readonly model: string;
  readonly dimension: number;
  embed(texts: readonly string[], signal?: AbortSignal): Promise<Float32Array[]>;
}
