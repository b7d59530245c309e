/**
 * `npm run bench:memory`: what keeping and searching many memories costs. One tenant with many memories, then many
 * tenants with few, in one instance: insert rate, search latency, recall of the index against an exact search, resident
 * memory, and the time from a restart to the first answer.
 */
import { parseArgs } from "node:util";
import { cpuSeconds, residentBytes } from "./cpu.ts";
import { agentsOfTenants, startRestartable } from "./restartable.ts";

const { values } = parseArgs({
  options: {
    memories: { type: "string", default: "100000" },
    tenants: { type: "string", default: "1000" },
    each: { type: "string", default: "100" },
    searches: { type: "string", default: "2000" },
    callers: { type: "string", default: "16" },
  },
});
const MEMORIES = Number(values.memories);
const TENANTS = Number(values.tenants);
const EACH = Number(values.each);
const SEARCHES = Number(values.searches);
const CALLERS = Number(values.callers);
const AT_ONCE = 100;

/** A small language of its own, Zipf-like as real ones are, so that texts differ and common words are common. */
const words = Array.from({ length: 20_000 }, (_, i) => wordOf(i));
function wordOf(i: number): string {
  const parts = [
    "ba",
    "co",
    "di",
    "fu",
    "ga",
    "he",
    "ki",
    "lo",
    "mi",
    "nu",
    "pa",
    "re",
    "si",
    "to",
    "va",
    "wo",
    "xe",
    "yi",
    "zu",
    "ra",
  ];
  let word = "";
  for (let left = i + 400; left > 0; left = Math.floor(left / parts.length)) word += parts[left % parts.length];
  return word;
}
const real = (
  "meeting invoice customer deploy server error payment contract project deadline budget release database network " +
  "security password travel hotel flight weather family birthday dinner recipe garden music football doctor medicine " +
  "school teacher exam holiday market price stock bank loan house repair engine battery camera phone computer software"
).split(" ");
let state = 88_172_645;
function random(): number {
  state ^= state << 13;
  state ^= state >>> 17;
  state ^= state << 5;
  return (state >>> 0) / 2 ** 32;
}
const word = () => words[Math.floor(words.length * random() ** 3)]!;
/** What memories are about. A text takes most of its words from one topic, as people do when they write one down. */
const topics = Array.from(
  { length: 500 },
  () => Array.from({ length: 25 }, () => random() < 0.5 ? real[Math.floor(random() * real.length)]! : word()),
);
const textOf = (length: number) => {
  const topic = topics[Math.floor(random() * topics.length)]!;
  return Array.from({ length }, () => random() < 0.6 ? topic[Math.floor(random() * topic.length)]! : word()).join(" ");
};
const types = ["episodic", "semantic", "procedural", "entity", "reflection", "reasoning"];
const memoryOf = () => ({
  type: types[Math.floor(random() * types.length)],
  scope: "institutional",
  title: textOf(4),
  content: textOf(20 + Math.floor(random() * 20)),
});

async function post(url: string, token: string, path: string, body: unknown): Promise<Record<string, unknown>> {
  const response = await fetch(url + path, {
    method: "POST",
    headers: { authorization: `Bearer ${token}`, "content-type": "application/json" },
    body: JSON.stringify(body),
  });
  const answer = await response.json() as Record<string, unknown>;
  if (!response.ok) throw new Error(`${path} answered ${response.status}: ${JSON.stringify(answer)}`);
  return answer;
}

/** Runs `work` for 0 … count − 1 with so many callers at once, and answers each one's time in ms, in order of length. */
async function timed(count: number, callers: number, work: (i: number) => Promise<unknown>): Promise<number[]> {
  const times: number[] = [];
  let next = 0;
  await Promise.all(Array.from({ length: callers }, async () => {
    for (let i = next++; i < count; i = next++) {
      const begun = performance.now();
      await work(i);
      times.push(performance.now() - begun);
    }
  }));
  return times.sort((a, b) => a - b);
}
const at = (times: number[], share: number) =>
  times[Math.min(times.length - 1, Math.floor(times.length * share))]!.toFixed(1);
const residentMb = (pid: number) => Math.round(residentBytes(pid) / 2 ** 20);
const rows: [string, string][] = [];
const note = (what: string, value: string) => {
  rows.push([what, value]);
  console.log(`${what}: ${value}`);
};

await using instance = await startRestartable();

async function searches(what: string, ask: (i: number) => Promise<unknown>, count = SEARCHES): Promise<void> {
  await timed(Math.min(100, count), CALLERS, ask);
  const [before, begun] = [cpuSeconds(instance.pid), performance.now()];
  const times = await timed(count, CALLERS, ask);
  const seconds = (performance.now() - begun) / 1_000;
  const cpuMs = (cpuSeconds(instance.pid) - before) / count * 1_000;
  note(
    what,
    `p50 ${at(times, 0.5)} ms, p99 ${at(times, 0.99)} ms, ${Math.round(count / seconds)}/s, ${
      cpuMs.toFixed(2)
    } ms of CPU each`,
  );
}

{
  const begun = performance.now();
  await timed(
    Math.ceil(MEMORIES / AT_ONCE),
    4,
    () =>
      post(instance.url, instance.token, "/memories/batch", { memories: Array.from({ length: AT_ONCE }, memoryOf) }),
  );
  const seconds = (performance.now() - begun) / 1_000;
  note(`${MEMORIES} memories of one tenant, kept 100 at once`, `${Math.round(MEMORIES / seconds)}/s`);
}
note("resident before the first search", `${residentMb(instance.pid)} MB`);
{
  const begun = performance.now();
  const first = await post(instance.url, instance.token, "/memories/search", { query: "invoice of the customer" });
  note(
    "first search of the tenant",
    `${Math.round(performance.now() - begun)} ms${first.degraded ? ", degraded" : ""}`,
  );
}
const questions = Array.from({ length: 200 }, () => textOf(6));
const ask = (i: number) =>
  post(instance.url, instance.token, "/memories/search", { query: questions[i % questions.length] });
await searches("search while the graph is being built", ask, Math.min(SEARCHES, 200));
{
  // The graph is done when its answers cost no more than they ever will; the instance's CPU comes to rest.
  const begun = performance.now();
  for (let idle = 0; idle < 3 && performance.now() - begun < 300_000;) {
    const before = cpuSeconds(instance.pid);
    await new Promise((done) => setTimeout(done, 1_000));
    idle = cpuSeconds(instance.pid) - before < 0.15 ? idle + 1 : 0;
  }
  note("until the graph was built", `${Math.round((performance.now() - begun) / 1_000)} s`);
}
await searches(`search with ${CALLERS} callers`, ask);
{
  const times = await timed(300, 1, ask);
  note("search with one caller", `p50 ${at(times, 0.5)} ms, p99 ${at(times, 0.99)} ms`);
}
{
  // A filter that few memories pass makes the index look at each of them. Asked type by type it thus answers exactly.
  let shared = 0;
  for (const query of questions.slice(0, 50)) {
    const found = async (more: object) =>
      (await post(instance.url, instance.token, "/memories/search", { query, mode: "semantic", ...more }))
        .results as { memory: { id: string }; score: number }[];
    const exact = (await Promise.all(types.map((type) => found({ type })))).flat()
      .sort((a, b) => b.score - a.score).slice(0, 10).map(({ memory }) => memory.id);
    const quick = (await found({})).map(({ memory }) => memory.id);
    shared += quick.filter((id) => exact.includes(id)).length / exact.length;
  }
  note("recall@10 of the index against an exact search", (shared / 50).toFixed(4));
}
note("resident", `${residentMb(instance.pid)} MB`);
{
  const times = await timed(200, 4, () => post(instance.url, instance.token, "/memories", memoryOf()));
  note("keeping one memory at a time, 4 callers", `p50 ${at(times, 0.5)} ms, p99 ${at(times, 0.99)} ms`);
}

if (TENANTS > 0) {
  const tokens = await agentsOfTenants(instance, TENANTS);
  const begun = performance.now();
  await timed(
    TENANTS,
    4,
    (i) => post(instance.url, tokens[i]!, "/memories/batch", { memories: Array.from({ length: EACH }, memoryOf) }),
  );
  note(`${TENANTS} tenants of ${EACH}`, `${Math.round(TENANTS * EACH / ((performance.now() - begun) / 1_000))}/s kept`);
  await searches(
    "search of small tenants, each for the first time or again",
    (i) => post(instance.url, tokens[i % TENANTS]!, "/memories/search", { query: questions[i % questions.length] }),
    Math.max(SEARCHES, 2 * TENANTS),
  );
  note("resident with all of them", `${residentMb(instance.pid)} MB`);
  await searches(`search of the large tenant again, ${CALLERS} callers`, ask);
}

{
  const begun = performance.now();
  await instance.restart();
  const ready = performance.now();
  const first = await post(instance.url, instance.token, "/memories/search", { query: "invoice of the customer" });
  note(
    "restart",
    `${Math.round(ready - begun)} ms until ready, then ${
      Math.round(performance.now() - ready)
    } ms to the first search of the large tenant${first.degraded ? " (degraded)" : ""}`,
  );
  await searches("search after the restart, the graph not built yet", ask, 100);
}

console.log(`\n| what | measured |\n|---|---|`);
for (const [what, value] of rows) console.log(`| ${what} | ${value} |`);
