/** Retrieval on judged collections: how well words, meaning and both together find what was asked for. */
import { readFile } from "node:fs/promises";
import { idf, queryTerms, sparseOf, type SparseVector } from "../../services/memory/lexical.ts";
import { cosine } from "./embedder-similarity.ts";

interface Document {
  id: string;
  title: string;
  text: string;
}

interface Query {
  id: string;
  text: string;
  /** What it is asked of: all documents, or those of its group (one conversation among many). */
  documents: Document[];
  gains: Map<string, number>;
}

export interface Collection {
  documents: Document[];
  queries: Query[];
}

/** A row a query, a column each of the documents it is asked of. */
export type Scores = Float64Array[];

const BEST_WEIGHT = 2.2;

/** corpus.jsonl, queries.jsonl and qrels.tsv as BEIR has them; documents and queries may name a `group`. */
export async function readCollection(folder: string): Promise<Collection> {
  const lines = async (name: string) => (await readFile(`${folder}/${name}`, "utf8")).split("\n").filter(Boolean);
  const gains = new Map<string, Map<string, number>>();
  for (const line of (await lines("qrels.tsv")).slice(1)) {
    const [query, document, gain] = line.split("\t");
    if (Number(gain) > 0) gains.set(query!, (gains.get(query!) ?? new Map()).set(document!, Number(gain)));
  }
  const groups = new Map<string, Document[]>();
  const documents = (await lines("corpus.jsonl")).map((line) => {
    const { _id: id, title = "", text = "", group = "" } = JSON.parse(line);
    const document = { id, title, text };
    if (!groups.has(group)) groups.set(group, []);
    groups.get(group)!.push(document);
    return document;
  });
  const queries = (await lines("queries.jsonl")).map((line) => JSON.parse(line)).filter(({ _id }) => gains.has(_id));
  return {
    documents,
    queries: queries.map(({ _id: id, text, group = "" }) => ({
      id,
      text,
      documents: groups.get(group)!,
      gains: gains.get(id)!,
    })),
  };
}

export async function byMeaning(
  { documents, queries }: Collection,
  embed: (texts: string[]) => Promise<ArrayLike<number>[]>,
): Promise<Scores> {
  const vectors = await embed([
    ...documents.map(({ title, text }) => `${title}\n${text}`),
    ...queries.map(({ text }) => text),
  ]);
  const vectorOf = new Map(documents.map((document, i) => [document, vectors[i]!]));
  return queries.map((query, q) =>
    Float64Array.from(query.documents, (d) => Math.max(0, cosine(vectors[documents.length + q]!, vectorOf.get(d)!)))
  );
}

/** BM25 as a share of the most the question could get, as the memory service reads and weighs words. */
export function byWords({ documents, queries }: Collection): Scores {
  const readings = new Map(documents.map((document) => [document, weightsOf(sparseOf(document.title, document.text))]));
  const frequencies = new Map<Document[], Map<number, number>>();
  return queries.map((query) => {
    let known = frequencies.get(query.documents);
    if (!known) {
      frequencies.set(query.documents, known = new Map());
      for (const d of query.documents) {
        for (const term of readings.get(d)!.keys()) known.set(term, (known.get(term) ?? 0) + 1);
      }
    }
    const { terms, weights } = queryTerms(query.text);
    const importances = weights.map((weight, i) => weight * idf(query.documents.length, known.get(terms[i]!) ?? 0));
    const highest = BEST_WEIGHT * importances.reduce((sum, value) => sum + value, 0);
    return Float64Array.from(query.documents, (document) => {
      const reading = readings.get(document)!;
      let score = 0;
      terms.forEach((term, i) => score += importances[i]! * (reading.get(term) ?? 0));
      return highest > 0 ? score / highest : 0;
    });
  });
}

const weightsOf = ({ terms, weights }: SparseVector): Map<number, number> =>
  new Map(Array.from(terms, (term, i) => [term, weights[i]!]));

/** `share` is that of words, as in services/memory/rank.ts. */
export function both(words: Scores, meaning: Scores, share: number): Scores {
  return words.map((row, q) => row.map((value, d) => share * value + (1 - share) * meaning[q]![d]!));
}

export function ndcgAt10({ queries }: Collection, scores: Scores): number {
  const values = queries.map(({ documents, gains }, q) => {
    const row = scores[q]!;
    const top = documents.map((_, d) => d).sort((a, b) => row[b]! - row[a]! || a - b).slice(0, 10);
    const best = [...gains.values()].sort((a, b) => b - a).slice(0, 10);
    return discounted(top.map((d) => gains.get(documents[d]!.id) ?? 0)) / discounted(best);
  });
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

function discounted(gains: number[]): number {
  return gains.reduce((sum, gain, rank) => sum + gain / Math.log2(rank + 2), 0);
}
