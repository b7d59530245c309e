/** What an index needs of a text: its words and its meaning, computed once and kept beside the memory. */
import type { Log } from "../../runtime/log.ts";
import { measure } from "../../runtime/measure.ts";
import { within } from "../../runtime/pause.ts";
import type { Embedder } from "./embed/embedder.ts";
import { LEXICON, packSparse, sparseOf } from "./lexical.ts";
import { packDense } from "./vectors.ts";

export interface Text {
  readonly title: string;
  readonly content: string;
}

export interface Prepared {
  readonly sparse: Uint8Array;
  readonly dense?: Uint8Array;
  readonly model?: string;
  /** Empty when something is missing: the memory is then in line to be prepared anew. */
  readonly recipe: string;
}

export interface Preparer {
  /** Never fails for the embedder's sake: without a vector a memory is still found by its words, and gets one later. */
  prepare(texts: readonly Text[], signal?: AbortSignal): Promise<Prepared[]>;
  /** As above, but an embedder that is away throws. */
  prepareFully(texts: readonly Text[], signal?: AbortSignal): Promise<Prepared[]>;
}

/** The name of what a memory was prepared by. `generation` grows when an operator asks for all of them anew. */
export const recipeOf = (model: string, generation: number): string => `${model}|${LEXICON}|${generation}`;

export function preparer(deps: {
  readonly embedder: Embedder;
  readonly generation: () => number;
  /** How long a request waits for the embedder before it goes on without. */
  readonly patienceMs: number;
  readonly log: Log;
}): Preparer {
  const { embedder, generation, patienceMs, log } = deps;
  const wordsOf = ({ title, content }: Text) => packSparse(sparseOf(title, content));
  const prepareFully = async (texts: readonly Text[], signal?: AbortSignal): Promise<Prepared[]> => {
    const recipe = recipeOf(embedder.model, generation());
    const startedAt = performance.now();
    const vectors = await embedder.embed(texts.map(({ title, content }) => `${title}\n${content}`), signal);
    measure().embedSeconds.record((performance.now() - startedAt) / 1_000, { model: embedder.model });
    return texts.map((text, i) => ({
      sparse: wordsOf(text),
      dense: packDense(vectors[i]!),
      model: embedder.model,
      recipe,
    }));
  };
  return {
    prepareFully,
    async prepare(texts, signal) {
      try {
        return await within(patienceMs, signal, (patience) => prepareFully(texts, patience));
      } catch (error) {
        log.warn("memory.embedder_away", { model: embedder.model, texts: texts.length, error });
        return texts.map((text) => ({ sparse: wordsOf(text), recipe: "" }));
      }
    },
  };
}
