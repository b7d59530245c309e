/**
 * `npm run bench:retrieval -- --data FOLDER`: how well search finds. Loads judged documents (corpus.jsonl, queries.jsonl,
 * qrels.tsv, as BEIR has them) through the HTTP API into a fresh instance and prints nDCG@10 and recall@10 of words
 * alone, meaning alone, and both. Without a folder it says what it needs and ends well: the project ships no such data.
 */
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { startInstance } from "./instance.ts";

const { values: { data, documents } } = parseArgs({
  options: {
    data: { type: "string", ...(process.env.RETRIEVAL_DATA ? { default: process.env.RETRIEVAL_DATA } : {}) },
    documents: { type: "string" },
  },
});
if (!data) {
  console.log("Give a folder of judged documents: npm run bench:retrieval -- --data FOLDER, or set RETRIEVAL_DATA");
  process.exit(0);
}

const AT_ONCE = 50;
const TOP = 10;
/** What a memory takes; the few longer documents are cut. */
const MAX_CONTENT = 32_768;
const MAX_TITLE = 1_000;
const CALLERS = 8;

const lines = async (file: string): Promise<string[]> =>
  (await readFile(join(data, file), "utf8")).split("\n").filter((line) => line.trim() !== "");

type Judgements = Map<string, Map<string, number>>;

const corpus = (await lines("corpus.jsonl")).map((line) =>
  JSON.parse(line) as { _id: string; title?: string; text?: string }
).slice(0, documents ? Number(documents) : undefined);
const queries = (await lines("queries.jsonl")).map((line) => JSON.parse(line) as { _id: string; text: string });
const judged: Judgements = new Map();
for (const line of (await lines("qrels.tsv")).slice(1)) {
  const [query, document, grade] = line.split("\t");
  if (Number(grade) <= 0) continue;
  if (!judged.has(query!)) judged.set(query!, new Map());
  judged.get(query!)!.set(document!, Number(grade));
}

await using instance = await startInstance();

async function call(path: string, body: unknown): Promise<Record<string, unknown>> {
  const response = await fetch(`${instance.url}${path}`, {
    method: "POST",
    headers: { authorization: `Bearer ${instance.token}`, "content-type": "application/json" },
    body: JSON.stringify(body),
  });
  const answer = await response.json() as Record<string, unknown>;
  if (!response.ok) throw new Error(`${path} answered ${response.status}: ${JSON.stringify(answer)}`);
  return answer;
}

const startedAt = performance.now();
for (let from = 0; from < corpus.length; from += AT_ONCE) {
  await call("/memories/batch", {
    memories: corpus.slice(from, from + AT_ONCE).map(({ _id, title, text }) => ({
      type: "semantic",
      scope: "institutional",
      title: (title || "Untitled").slice(0, MAX_TITLE),
      content: (text || title || "Empty").slice(0, MAX_CONTENT),
      source_id: _id,
    })),
  });
}
const loadSeconds = (performance.now() - startedAt) / 1_000;
const asked = queries.filter(({ _id }) => judged.has(_id));
console.log(
  `${corpus.length} documents kept in ${loadSeconds.toFixed(1)} s (${
    Math.round(corpus.length / loadSeconds)
  }/s), ${asked.length} judged queries\n`,
);

console.log("| ranked by | nDCG@10 | recall@10 | ms a query |\n|---|---|---|---|");
for (const mode of ["lexical", "semantic", "hybrid"]) {
  let [gain, recall] = [0, 0];
  const begun = performance.now();
  const waiting = [...asked];
  await Promise.all(Array.from({ length: CALLERS }, async () => {
    for (let query = waiting.pop(); query; query = waiting.pop()) {
      const { results } = await call("/memories/search", { query: query.text, limit: TOP, mode }) as {
        results: { memory: { source_id: string } }[];
      };
      const grades = judged.get(query._id)!;
      const found = results.map(({ memory }) => grades.get(memory.source_id) ?? 0);
      gain += discounted(found) / discounted([...grades.values()].sort((a, b) => b - a).slice(0, TOP));
      recall += found.filter((grade) => grade > 0).length / grades.size;
    }
  }));
  const ms = (performance.now() - begun) / asked.length;
  console.log(
    `| ${mode} | ${(gain / asked.length).toFixed(4)} | ${(recall / asked.length).toFixed(4)} | ${ms.toFixed(1)} |`,
  );
}

function discounted(grades: readonly number[]): number {
  return grades.reduce((sum, grade, i) => sum + grade / Math.log2(i + 2), 0);
}
