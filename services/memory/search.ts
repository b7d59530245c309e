/** One search: what the question says, candidates from the index, the truth about them from Postgres, then the order. */
import type { MemorySearch, SearchResult } from "../../contracts/memory.ts";
import type { Log } from "../../runtime/log.ts";
import { measure } from "../../runtime/measure.ts";
import { within } from "../../runtime/pause.ts";
import type { Embedder } from "./embed/embedder.ts";
import type { Keeper } from "./index/keeper.ts";
import type { Candidate, IndexQuery, MemoryIndex } from "./index/port.ts";
import { idf, isStopWord, queryTerms, type SparseVector, unpackSparse, wordsOf } from "./lexical.ts";
import { rank, type Ranked } from "./rank.ts";
import { stem } from "./porter.ts";
import { reachOf, type Reader } from "./store/access.ts";
import type { Filter, MemoryStore } from "./store/memories.ts";
import { isZero } from "./vectors.ts";

export interface SearchDeps {
  readonly memories: Pick<MemoryStore, "read" | "containing">;
  readonly index: Pick<MemoryIndex, "search">;
  readonly keeper: Pick<Keeper, "ready">;
  readonly embedder: Embedder;
  /** How long a search waits for the embedder before it goes on with words alone. */
  readonly patienceMs: number;
  readonly log: Log;
}

export interface Searched {
  readonly results: SearchResult[];
  readonly total: number;
  readonly degraded: boolean;
}

type Asked = Pick<MemorySearch, "query" | "scope" | "type" | "min_confidence" | "mode" | "limit">;

/** A leg that contributed fewer would leave the other nothing to agree with. */
const LEAST_CANDIDATES = 100;
/** Without an index every candidate is read and compared here. */
const UNINDEXED_CANDIDATES = 500;
const KEPT_QUERIES = 1_000;

export type Search = (reader: Reader, asked: Asked, signal?: AbortSignal) => Promise<Searched>;

export function searcher(deps: SearchDeps): Search {
  const { memories, index, keeper, log } = deps;
  const vectorOf = queryVectors(deps);

  return async (reader, asked, signal) => {
    const nowMs = Date.now();
    const filter: Filter = {
      ...(asked.type ? { type: asked.type } : {}),
      ...(asked.scope ? { scope: asked.scope } : {}),
      ...(asked.min_confidence === undefined ? {} : { minConfidence: asked.min_confidence }),
    };
    const words = asked.mode === "semantic" ? undefined : queryTerms(asked.query);
    const [dense, isReady] = await Promise.all([
      asked.mode === "lexical" ? undefined : vectorOf(asked.query, signal),
      keeper.ready(reader.tenant),
    ]);
    const query: IndexQuery = {
      reach: reachOf(reader, asked.scope),
      ...(asked.type ? { type: asked.type } : {}),
      ...(asked.min_confidence === undefined ? {} : { minConfidence: asked.min_confidence }),
      nowMs,
      ...(dense instanceof Float32Array && !isZero(dense) ? { dense } : {}),
      ...(words && words.terms.length > 0 ? { sparse: words } : {}),
      count: Math.max(LEAST_CANDIDATES, 2 * asked.limit),
    };

    const proposed = isReady
      ? await index.search(reader.tenant, query, signal).catch((error: unknown) => {
        log.warn("memory.index_away", { error });
        return undefined;
      })
      : undefined;
    const candidates = proposed
      ? [...proposed, ...query.dense || query.sparse ? [] : await literally(reader, filter, asked.query)]
      : await unindexed(reader, filter, asked.query, query.sparse);
    const { results, dropped } = await taken(reader, filter, rank(candidates, nowMs), asked.limit);
    const degraded = proposed === undefined || dense === "away";
    if (degraded) measure().searchesDegraded.add(1, { tenant: reader.tenant });
    return { results, total: candidates.length - dropped, degraded };
  };

  /** The best that Postgres lets the reader have. What it does not is replaced by the next best. */
  async function taken(
    reader: Reader,
    filter: Filter,
    ranked: readonly Ranked[],
    limit: number,
  ): Promise<{ results: SearchResult[]; dropped: number }> {
    const results: SearchResult[] = [];
    let dropped = 0;
    for (let from = 0; results.length < limit && from < ranked.length;) {
      const next = ranked.slice(from, from + limit - results.length);
      const page = await memories.read(reader, next.map(({ id }) => id), filter);
      const read = new Map(page.memories.map((memory) => [memory.id, memory]));
      for (const { id, score, explanation } of next) {
        const memory = read.get(id);
        if (memory) results.push({ memory, score, explanation });
        else if (!page.isCut) dropped++;
      }
      if (page.isCut) break;
      from += next.length;
    }
    return { results, dropped };
  }

  /** A question without any word or meaning we know, such as `???`: what contains it letter by letter, or what is new. */
  async function literally(reader: Reader, filter: Filter, text: string): Promise<Candidate[]> {
    const found = await memories.containing(reader, filter, [text.trim()], LEAST_CANDIDATES);
    if (found.length > 0) return found.map((one) => ({ ...one, similarity: null, lexical: 1 }));
    const words = [...wordsOf(text)].filter((word) => word.length > 1);
    const partly = words.length === 0 ? [] : await memories.containing(reader, filter, words, LEAST_CANDIDATES);
    if (partly.length > 0) return partly.map((one) => ({ ...one, similarity: null, lexical: 0.5 }));
    const newest = await memories.containing(reader, filter, [], LEAST_CANDIDATES);
    return newest.map((one) => ({ ...one, similarity: null, lexical: 0.01 }));
  }

  /** Words alone, over Postgres alone: slower and coarser than an index, and never silently nothing. */
  async function unindexed(
    reader: Reader,
    filter: Filter,
    text: string,
    sparse: SparseVector | undefined,
  ): Promise<Candidate[]> {
    const words = [...new Set(wordsOf(text))].filter((word) => !isStopWord(word)).map((word) => stem(word)).slice(
      0,
      32,
    );
    const found = await memories.containing(reader, filter, words, UNINDEXED_CANDIDATES);
    const texts = found.map(({ sparse }) => unpackSparse(sparse));
    const scores = sparse ? lexicalScores(texts, sparse) : texts.map(() => null);
    return found.map((one, i) => ({ ...one, similarity: null, lexical: scores[i]! }));
  }
}

/** The vector of a question; `away` when the embedder cannot say in time. Agents ask the same things again. */
function queryVectors({ embedder, patienceMs, log }: SearchDeps) {
  const known = new Map<string, Float32Array>();
  return async (text: string, signal?: AbortSignal): Promise<Float32Array | "away"> => {
    const cached = known.get(text);
    if (cached) return cached;
    try {
      const [vector] = await within(patienceMs, signal, (patience) => embedder.embed([text], patience));
      if (known.size >= KEPT_QUERIES) known.delete(known.keys().next().value!);
      known.set(text, vector!);
      return vector!;
    } catch (error) {
      log.warn("memory.embedder_away", { model: embedder.model, error });
      return "away";
    }
  };
}

/** BM25 as a share of the most the question could get, with rarity judged among the texts at hand. */
function lexicalScores(texts: readonly SparseVector[], { terms, weights }: SparseVector): number[] {
  const frequencies = new Map<number, number>([...terms].map((term) => [term, 0]));
  for (const text of texts) {
    for (const term of text.terms) {
      const count = frequencies.get(term);
      if (count !== undefined) frequencies.set(term, count + 1);
    }
  }
  const all = Math.max(1_000, texts.length);
  const importances = new Map([...terms].map((term, i) => [term, weights[i]! * idf(all, frequencies.get(term)!)]));
  const highest = 2.2 * [...importances.values()].reduce((sum, value) => sum + value, 0);
  return texts.map((text) => {
    let score = 0;
    text.terms.forEach((term, i) => score += (importances.get(term) ?? 0) * text.weights[i]!);
    return highest === 0 ? 0 : Math.min(1, score / highest);
  });
}
