/** Retrieval on a BEIR-style collection: scores of every document for every query, and what they are worth. */
import { readFile } from "node:fs/promises";
import { cosine } from "./embedder-similarity.ts";

export interface Collection {
  documents: { id: string; text: string }[];
  queries: { id: string; text: string }[];
  /** Query → document → gain. */
  judgements: Map<string, Map<string, number>>;
}

/** A row a query, a column a document. */
export type Scores = Float64Array[];

// BM25 as the memory service means it, without its stemmer: k1, b, stop words out.
const K1 = 1.2;
const B = 0.75;
const STOP_WORDS = new Set(
  ("a an and are as at be but by for from had has have he her his i if in into is it its my no not of on or our she so such " +
    "that the their them then there these they this to was we were what when where which who will with you your").split(
      " ",
    ),
);

export async function readCollection(folder: string): Promise<Collection> {
  const lines = async (name: string) => (await readFile(`${folder}/${name}`, "utf8")).split("\n").filter(Boolean);
  const judgements = new Map<string, Map<string, number>>();
  for (const line of (await lines("qrels.tsv")).slice(1)) {
    const [query, document, gain] = line.split("\t");
    if (!judgements.has(query!)) judgements.set(query!, new Map());
    judgements.get(query!)!.set(document!, Number(gain));
  }
  const parsed = async (name: string) => (await lines(name)).map((line) => JSON.parse(line));
  return {
    documents: (await parsed("corpus.jsonl")).map(({ _id, title, text }) => ({
      id: _id,
      text: `${title ?? ""} ${text}`,
    })),
    queries: (await parsed("queries.jsonl")).map(({ _id, text }) => ({ id: _id, text })),
    judgements,
  };
}

export async function dense(
  { documents, queries }: Collection,
  embed: (texts: string[]) => Promise<ArrayLike<number>[]>,
): Promise<Scores> {
  const vectors = await embed([...documents, ...queries].map(({ text }) => text));
  return queries.map((_, q) =>
    Float64Array.from(documents, (_, d) => cosine(vectors[documents.length + q]!, vectors[d]!))
  );
}

export function bm25({ documents, queries }: Collection): Scores {
  const postings = new Map<string, Map<number, number>>();
  const lengths = documents.map(({ text }, d) => {
    const terms = termsOf(text);
    for (const term of terms) {
      if (!postings.has(term)) postings.set(term, new Map());
      const counts = postings.get(term)!;
      counts.set(d, (counts.get(d) ?? 0) + 1);
    }
    return terms.length;
  });
  const average = lengths.reduce((sum, length) => sum + length, 0) / lengths.length;
  return queries.map(({ text }) => {
    const scores = new Float64Array(documents.length);
    for (const term of termsOf(text)) {
      const counts = postings.get(term) ?? new Map<number, number>();
      const idf = Math.log(1 + (documents.length - counts.size + 0.5) / (counts.size + 0.5));
      for (const [d, count] of counts) {
        scores[d]! += idf * count * (K1 + 1) / (count + K1 * (1 - B + B * lengths[d]! / average));
      }
    }
    return scores;
  });
}

/** Both scaled to 0…1 for each query, then weighed; `weight` is the lexical side's. */
export function fused(lexical: Scores, semantic: Scores, weight: number): Scores {
  return lexical.map((row, q) => {
    const a = scaled(row), b = scaled(semantic[q]!);
    return a.map((value, d) => weight * value + (1 - weight) * b[d]!);
  });
}

export function ndcgAt10({ documents, queries, judgements }: Collection, scores: Scores): number {
  const values: number[] = [];
  for (const [q, { id }] of queries.entries()) {
    const gains = judgements.get(id);
    if (!gains) continue;
    const row = scores[q]!;
    const top = documents.map((_, d) => d).sort((a, b) => row[b]! - row[a]! || a - b).slice(0, 10);
    const best = [...gains.values()].sort((a, b) => b - a).slice(0, 10);
    values.push(discounted(top.map((d) => gains.get(documents[d]!.id) ?? 0)) / discounted(best));
  }
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

function discounted(gains: number[]): number {
  return gains.reduce((sum, gain, rank) => sum + gain / Math.log2(rank + 2), 0);
}

function scaled(row: Float64Array): Float64Array {
  let low = Infinity, high = -Infinity;
  for (const value of row) [low, high] = [Math.min(low, value), Math.max(high, value)];
  return row.map((value) => high > low ? (value - low) / (high - low) : 0);
}

function termsOf(text: string): string[] {
  return (text.toLowerCase().match(/[a-z0-9]+/g) ?? []).filter((term) => !STOP_WORDS.has(term));
}
