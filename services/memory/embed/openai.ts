/** Any service that speaks OpenAI's embeddings request: batched, tried again with growing pauses, checked. */
import { setTimeout as pause } from "node:timers/promises";
import { z } from "zod";
import { within } from "../../../runtime/pause.ts";
import type { Embedder } from "./embedder.ts";

/** Texts in one request; services take more, but a failed request then costs more too. */
const AT_ONCE = 64;
const ATTEMPTS = 4;
const FIRST_PAUSE_MS = 250;
const REQUEST_MS = 30_000;
/** About the 8,191 tokens that such models read; what is longer is refused by some and cut by others. */
const MAX_CHARACTERS = 24_000;

const Answer = z.object({ data: z.array(z.object({ index: z.int(), embedding: z.array(z.number()) })) });

export function openaiEmbedder(options: {
  readonly url: string;
  readonly model: string;
  readonly dimension: number;
  readonly key?: string;
  readonly send?: typeof fetch;
}): Embedder {
  const { url, model, dimension, key, send = fetch } = options;

  const request = async (texts: readonly string[], signal: AbortSignal): Promise<Float32Array[]> => {
    const response = await send(`${url.replace(/\/$/, "")}/embeddings`, {
      method: "POST",
      headers: { "content-type": "application/json", ...(key ? { authorization: `Bearer ${key}` } : {}) },
      body: JSON.stringify({ model, input: texts, encoding_format: "float" }),
      signal,
    });
    if (!response.ok) {
      const said = (await response.text()).slice(0, 200);
      throw new EmbedderRefused(`The embedder answered ${response.status}: ${said}`, response.status);
    }
    const { data } = Answer.parse(await response.json());
    if (data.length !== texts.length) {
      throw new Error(`The embedder answered ${data.length} vectors for ${texts.length} texts`);
    }
    return data.sort((a, b) => a.index - b.index).map(({ embedding }) => {
      if (embedding.length !== dimension) {
        throw new Error(
          `The embedder's vectors are ${embedding.length} long, not ${dimension}: set MEMORY_OPENAI_DIMENSION`,
        );
      }
      return normalized(embedding);
    });
  };

  const tried = async (texts: readonly string[], signal: AbortSignal | undefined): Promise<Float32Array[]> => {
    for (let attempt = 1;; attempt++) {
      try {
        return await within(REQUEST_MS, signal, (limit) => request(texts, limit));
      } catch (error) {
        const isHopeless = error instanceof EmbedderRefused && !error.isPassing;
        if (isHopeless || attempt === ATTEMPTS || signal?.aborted) throw error;
        // Jitter: a fleet that was refused together must not come back together.
        await pause(FIRST_PAUSE_MS * 2 ** (attempt - 1) * (0.5 + Math.random()), undefined, signal ? { signal } : {});
      }
    }
  };

  return {
    // The dimension too: the same model may be asked for shorter vectors, which compare with nothing else.
    model: `openai:${model}:${dimension}`,
    dimension,
    async embed(texts, signal) {
      const vectors: Float32Array[] = [];
      for (let from = 0; from < texts.length; from += AT_ONCE) {
        const some = texts.slice(from, from + AT_ONCE).map((text) => text.slice(0, MAX_CHARACTERS) || " ");
        vectors.push(...await tried(some, signal));
      }
      return vectors;
    },
  };
}

class EmbedderRefused extends Error {
  override readonly name = "EmbedderRefused";
  /** Whether asking again may help. */
  readonly isPassing: boolean;
  constructor(message: string, status: number) {
    super(message);
    this.isPassing = status === 408 || status === 409 || status === 429 || status >= 500;
  }
}

function normalized(values: readonly number[]): Float32Array {
  const length = Math.hypot(...values);
  return Float32Array.from(values, (value) => length === 0 ? 0 : value / length);
}
