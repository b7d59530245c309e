/** What was answered holds, whoever dies or is away: processes, the embedder, the index. */
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { fileURLToPath } from "node:url";
import postgres from "postgres";
import { afterEach, describe, expect, test } from "vitest";
import { type Memory, MemoryCreate, type SearchResults } from "../../contracts/memory.ts";
import { startService } from "../support/processes.ts";
import { embedder } from "../support/embedder.ts";
import { eventually } from "../support/eventually.ts";
import { type TestAgent, type World, world } from "../support/world.ts";

const root = fileURLToPath(new URL("../../", import.meta.url));
const fast = { RATE_LIMIT_TOKEN_PER_MINUTE: "0", RATE_LIMIT_AGENT_PER_MINUTE: "0", RATE_LIMIT_TENANT_PER_MINUTE: "0" };

const keep = (w: World, agent: TestAgent, title: string, headers = {}) =>
  w.request("POST", "/memories", {
    token: agent.token,
    body: { type: "semantic", scope: "agent", title, content: `Content of ${title}.` },
    headers,
  });
const search = async (w: World, agent: TestAgent, query: string, more: object = {}) => {
  const { status, body } = await w.request("POST", "/memories/search", {
    token: agent.token,
    body: { query, limit: 100, ...more },
  });
  expect(status, JSON.stringify(body)).toBe(200);
  return body as SearchResults;
};
const idsOf = ({ results }: SearchResults) => results.map(({ memory }) => memory.id);
const database = (w: World) => {
  const sql = postgres(w.env.DATABASE_URL!, { max: 1 });
  return Object.assign(sql, { [Symbol.asyncDispose]: () => sql.end() });
};

describe("a memory service killed in the middle of its work", () => {
  let child: ChildProcess | undefined;
  afterEach(() => child?.kill("SIGKILL"));

  const startChild = async (w: World): Promise<ChildProcess> => {
    child = spawn("node", ["services/memory/main.ts"], { cwd: root, env: { ...process.env, ...w.env } });
    let output = "";
    for (const stream of [child.stdout!, child.stderr!]) stream.on("data", (data) => output += data);
    await eventually(() => output.includes("memory.ready"), "the service to start");
    return child;
  };

  test("leaves Postgres and the index in agreement: each memory answered with 201 is found, none twice", async () => {
    await using w = await world({ services: ["registry"], env: fast });
    const agent = await (await w.tenant()).agent();
    const answered = new Map<string, string>();
    const unanswered: string[] = [];
    for (let life = 0; life < 3; life++) {
      const running = await startChild(w);
      let isStopped = false;
      const writers = Array.from({ length: 8 }, async (_, writer) => {
        for (let i = 0; !isStopped; i++) {
          const title = `life${life}w${writer}n${i}x`;
          const key = { "idempotency-key": title };
          const { status, body } = await keep(w, agent, title, key);
          if (status === 201) answered.set(title, body.id);
          else {
            // Whether it was kept is unknown; the same request again will tell.
            await eventually(() => isStopped, "the kill");
            unanswered.push(title);
          }
          if (i % 3 === 0 && status === 201) {
            await w.request("PATCH", `/memories/${body.id}`, { token: agent.token, body: { importance: 0.9 } });
          }
          if (i % 5 === 4 && status === 201) {
            const gone = await w.request("DELETE", `/memories/${body.id}`, { token: agent.token });
            if (gone.status === 204) answered.delete(title);
            else if (gone.status >= 500) answered.set(title, "either");
          }
        }
      });
      const before = answered.size;
      await eventually(() => answered.size > before + 20, "some writes");
      running.kill("SIGKILL");
      await once(running, "exit");
      isStopped = true;
      await Promise.all(writers);
    }
    await startChild(w);
    for (const title of unanswered) {
      const again = await eventually(async () => {
        const answer = await keep(w, agent, title, { "idempotency-key": title });
        return answer.status < 500 && answer;
      }, "the retry to be answered");
      expect(again.status).toBe(201);
      answered.set(title, again.body.id);
    }
    const listed: Memory[] = [];
    for (let offset = 0;; offset += 200) {
      const { body } = await w.request("GET", `/memories?limit=200&offset=${offset}`, { token: agent.token });
      listed.push(...body.memories);
      if (listed.length >= body.total) break;
    }
    const titles = listed.map(({ title }) => title);
    expect(new Set(titles).size).toBe(titles.length);
    for (const [title, id] of answered) {
      if (id === "either") continue;
      expect(titles).toContain(title);
      expect(idsOf(await search(w, agent, title, { mode: "lexical" }))).toEqual([id]);
    }
    for (const { title, id } of listed) expect(idsOf(await search(w, agent, title, { mode: "lexical" }))).toContain(id);
    const check = await w.operator("operator.memory_index_check", { repair: false });
    expect(check).toMatchObject({ memories: listed.length, missing: 0, stale: 0, extra: 0 });
  }, 180_000);
});

test("a request that is run again under its seed meets the memory it kept", async () => {
  await using w = await world({ services: ["registry", "memory"], env: fast });
  const agent = await (await w.tenant()).agent();
  const caller = { kind: "agent" as const, id: agent.id, tenant: agent.agent.tenant_id, scopes: [], keyId: "k" };
  const origin = { caller, requestId: "req_1", seed: "01jd3v8g4w9qk2m7x5t0r6n1ze" };
  const body = MemoryCreate.parse({ type: "semantic", scope: "agent", title: "once", content: "only" });
  const run = async () => (await w.bus.ask("memories.create", { path: {}, query: {}, body }, origin)).read();
  expect(await run()).toEqual(await run());
  const batch = { memories: [body, body] };
  const runBatch = async () => (await w.bus.ask("memories.batch", { path: {}, query: {}, body: batch }, origin)).read();
  expect(await runBatch()).toEqual(await runBatch());
  expect((await w.request("GET", "/memories", { token: agent.token })).body.total).toBe(2);
});

describe("several replicas", () => {
  test("whichever keeps a memory, whichever is asked finds it at once", async () => {
    await using w = await world({ services: ["registry", "memory"], replicas: 3, env: fast });
    const agent = await (await w.tenant()).agent();
    const one = async (i: number) => {
      const { body } = await keep(w, agent, `word${i}q`);
      expect(idsOf(await search(w, agent, `word${i}q`, { mode: "lexical" }))).toEqual([body.id]);
      const changed = await w.request("PATCH", `/memories/${body.id}`, {
        token: agent.token,
        body: { title: `changed${i}q`, content: `Now changed${i}q.` },
      });
      expect(changed.status).toBe(200);
      expect(idsOf(await search(w, agent, `changed${i}q`, { mode: "lexical" }))).toEqual([body.id]);
      expect(idsOf(await search(w, agent, `word${i}q`, { mode: "lexical" }))).toEqual([]);
      await w.request("DELETE", `/memories/${body.id}`, { token: agent.token });
      expect(idsOf(await search(w, agent, `changed${i}q`, { mode: "lexical" }))).toEqual([]);
    };
    // Some at once, but no more than a busy machine answers in time.
    for (let round = 0; round < 5; round++) {
      await Promise.all(Array.from({ length: 12 }, (_, i) => one(round * 12 + i)));
    }
  });

  test("a write that commits late is seen, though later ones were seen before it", async () => {
    await using w = await world({ services: ["registry", "memory"], env: fast });
    const agent = await (await w.tenant()).agent();
    const { body: early } = await keep(w, agent, "earlybird");
    await using sql = database(w);
    let release = () => {};
    const held = new Promise<void>((resolve) => release = resolve);
    const entered = Promise.withResolvers<void>();
    const slow = sql.begin(async (tx) => {
      await tx`update memory.memories set importance = 1, status = 'deleted', version = version + 1,
        changed_xid = pg_current_xact_id() where id = ${early.id}`;
      entered.resolve();
      await held;
    });
    await entered.promise;
    const { body: late } = await keep(w, agent, "latecomer");
    expect(idsOf(await search(w, agent, "latecomer", { mode: "lexical" }))).toEqual([late.id]);
    release();
    await slow;
    await search(w, agent, "anything");
    expect(await w.operator("operator.memory_index_check", { repair: false })).toMatchObject({
      memories: 1,
      extra: 0,
      stale: 0,
    });
  });
});

describe("an embedder that is away", () => {
  test("delays nothing and loses nothing: memories are kept, found by words, and by meaning once it is back", async () => {
    await using server = await embedder();
    await using w = await world({ services: ["registry", "memory"], env: { ...fast, ...server.env } });
    const agent = await (await w.tenant()).agent();
    server.fails = true;
    const { status, body } = await keep(w, agent, "The cat sleeps");
    expect(status).toBe(201);
    const away = await search(w, agent, "cat sleeping");
    expect([idsOf(away), away.degraded]).toEqual([[body.id], true]);
    server.fails = false;
    await eventually(async () => {
      const { results, degraded } = await search(w, agent, "feline", { mode: "semantic" });
      return !degraded && (results[0]?.explanation.similarity ?? 0) > 0.98 && results[0]!.memory.id === body.id;
    }, "the vector to be made up for");
    expect(await w.operator("operator.memory_index")).toMatchObject({ remaining: 0, trouble: null });
  });

  test("a change of model re-embeds in the background, and words find everything meanwhile", async () => {
    await using w = await world({ services: ["registry"], env: fast });
    const agent = await (await w.tenant()).agent();
    const first = await startService("memory", w.env);
    const { body } = await keep(w, agent, "The cat sleeps");
    expect((await search(w, agent, "cat")).results[0]!.explanation.similarity).toBeGreaterThan(0);
    await first[Symbol.asyncDispose]();
    await using server = await embedder();
    server.fails = true;
    await using _second = await startService("memory", { ...w.env, ...server.env });
    expect(idsOf(await search(w, agent, "cat sleeping"))).toEqual([body.id]);
    expect((await w.operator("operator.memory_index")).remaining).toBe(1);
    server.fails = false;
    await eventually(
      async () => (await w.operator("operator.memory_index")).remaining === 0,
      "the new vectors",
      90_000,
    );
    const { results } = await search(w, agent, "feline", { mode: "semantic" });
    expect(results[0]!.memory.id).toBe(body.id);
    expect(results[0]!.explanation.similarity).toBeGreaterThan(0.98);
  }, 120_000);
});

describe("an index that is away", () => {
  test("search goes on by words over Postgres and says that it is degraded", async () => {
    // Nothing listens there: every call to the index service fails.
    await using w = await world({
      services: ["registry", "memory"],
      env: { ...fast, QDRANT_URL: "http://127.0.0.1:1" },
    });
    const agent = await (await w.tenant()).agent();
    const { status, body } = await keep(w, agent, "The walrus swims");
    expect(status).toBe(201);
    await keep(w, agent, "Something else");
    const found = await search(w, agent, "walruses");
    expect([found.degraded, idsOf(found), found.total]).toEqual([true, [body.id], 1]);
    expect(idsOf(await search(w, agent, "???")).length).toBe(2);
    await w.request("DELETE", `/memories/${body.id}`, { token: agent.token });
    expect(idsOf(await search(w, agent, "walruses"))).toEqual([]);
    const { behind, trouble } = await eventually(async () => {
      const progress = await w.operator("operator.memory_index");
      return progress.trouble !== null && progress;
    }, "the trouble to be known");
    expect([behind, trouble]).toEqual([2, expect.stringContaining("Qdrant")]);
    await expect(w.operator("operator.memory_index_check", { repair: false })).rejects.toMatchObject({
      code: "service_unavailable",
    });
  });
});

describe("an index that differs from Postgres", () => {
  test("is found out and repaired; a reindex does everything anew and search goes on", async () => {
    await using w = await world({ services: ["registry", "memory"], env: fast });
    const agent = await (await w.tenant()).agent();
    for (let i = 0; i < 30; i++) await keep(w, agent, `memory${i}x`);
    await search(w, agent, "memory");
    await using sql = database(w);
    // What no code of ours does: rows changed behind the index's back.
    await sql`update memory.memories set version = version + 1, indexed_version = greatest(indexed_version, version + 1)
      where title in ('memory1x', 'memory2x')`;
    await sql`update memory.memories set status = 'deleted' where title = 'memory3x'`;
    const differs = { tenants: 1, memories: 29, missing: 0, stale: 2, extra: 1 };
    expect(await w.operator("operator.memory_index_check", { repair: false })).toEqual({ ...differs, repaired: false });
    expect(await w.operator("operator.memory_index_check", { repair: true })).toEqual({ ...differs, repaired: true });
    expect(await w.operator("operator.memory_index_check", { repair: false })).toMatchObject({ stale: 0, extra: 0 });
    expect((await w.operator("operator.memory_reindex")).remaining).toBe(29);
    expect(idsOf(await search(w, agent, "memory7x", { mode: "lexical" }))).toHaveLength(1);
    await eventually(async () => (await w.operator("operator.memory_index")).remaining === 0, "the reindex");
    expect(idsOf(await search(w, agent, "memory7x", { mode: "lexical" }))).toHaveLength(1);
  });
});
