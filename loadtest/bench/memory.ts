/**
 * `npm run bench:memory`: what keeping and searching many memories costs. One tenant with many memories, then many
 * tenants with few, in one instance: insert rate, search latency, recall of the index against an exact search, resident
 * memory, and the time from a restart to the first answer.
 */
import { parseArgs } from "node:util";
import { cpuSeconds, residentBytes } from "./cpu.ts";
import { recall } from "./memory-recall.ts";
import { memoryOf, textOf } from "./memory-texts.ts";
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
/** A large tenant may still be read when its first search has been answered by words alone. */
async function readIn(): Promise<void> {
  while ((await post(instance.url, instance.token, "/memories/search", { query: "invoice" })).degraded);
}
await readIn();
// Each asked once: what was asked before is answered from a cache of vectors.
const ask = () => post(instance.url, instance.token, "/memories/search", { query: textOf(6) });
await searches(`search with ${CALLERS} callers`, ask);
{
  const times = await timed(300, 1, ask);
  note("search with one caller", `p50 ${at(times, 0.5)} ms, p99 ${at(times, 0.99)} ms`);
}
note("recall@10 of the index against an exact search", (await recall(MEMORIES)).toFixed(4));
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
    (i) => post(instance.url, tokens[i % TENANTS]!, "/memories/search", { query: textOf(6) }),
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
  await readIn();
  await searches("search after the restart", ask, 100);
}

console.log(`\n| what | measured |\n|---|---|`);
for (const [what, value] of rows) console.log(`| ${what} | ${value} |`);
