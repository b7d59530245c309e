/** Qdrant as the index: what holds while it dies, hangs, loses everything, or is told by replicas that differ. */
import { QdrantClient } from "@qdrant/js-client-rest";
import postgres from "postgres";
import { describe, expect, test } from "vitest";
import type { SearchResults } from "../../contracts/memory.ts";
import { embedder } from "../support/embedder.ts";
import { eventually } from "../support/eventually.ts";
import { startService } from "../support/processes.ts";
import { type Qdrant, qdrant, qdrantProgram } from "../support/qdrant.ts";
import { type TestAgent, type World, world } from "../support/world.ts";

const fast = { RATE_LIMIT_TOKEN_PER_MINUTE: "0", RATE_LIMIT_AGENT_PER_MINUTE: "0", RATE_LIMIT_TENANT_PER_MINUTE: "0" };
const at = ({ url }: Qdrant, more: Record<string, string> = {}) => ({ ...fast, QDRANT_URL: url, ...more });
const agreement = { missing: 0, stale: 0, extra: 0 };

const keep = async (w: World, agent: TestAgent, title: string, content = `Content of ${title}.`): Promise<string> => {
  const { status, body } = await w.request("POST", "/memories", {
    token: agent.token,
    body: { type: "semantic", scope: "agent", title, content },
  });
  expect(status, JSON.stringify(body)).toBe(201);
  return body.id;
};
const search = async (w: World, agent: TestAgent, query: string, more: object = {}): Promise<SearchResults> => {
  const { status, body } = await w.request("POST", "/memories/search", {
    token: agent.token,
    body: { query, limit: 100, ...more },
  });
  expect(status, JSON.stringify(body)).toBe(200);
  return body;
};
const idsOf = ({ results }: SearchResults) => results.map(({ memory }) => memory.id);
const byWords = async (w: World, agent: TestAgent, query: string) => {
  const found = await search(w, agent, query, { mode: "lexical" });
  return { ids: idsOf(found), degraded: found.degraded };
};
/** Searches are whole again, whichever replica is asked, and nothing waits to be told. */
const isBack = (w: World, agent: TestAgent) =>
  eventually(
    async () => {
      const { behind, trouble } = await w.operator("operator.memory_index");
      if (behind > 0 || trouble !== null) return false;
      const found = await Promise.all(Array.from({ length: 20 }, () => search(w, agent, "anything")));
      return found.every(({ degraded }) => !degraded);
    },
    "the index to be back",
    60_000,
  );
const check = (w: World, repair = false) => w.operator("operator.memory_index_check", { repair });
const database = (w: World) => {
  const sql = postgres(w.env.DATABASE_URL!, { max: 1 });
  return Object.assign(sql, { [Symbol.asyncDispose]: () => sql.end() });
};

describe.skipIf(!qdrantProgram)("Qdrant", { timeout: 180_000 }, () => {
  test("killed in the middle of searches and writes: all are answered, nothing is lost, and it agrees again", async () => {
    await using server = await qdrant();
    await using w = await world({ services: ["registry", "memory"], replicas: 2, env: at(server) });
    const agent = await (await w.tenant()).agent();
    await keep(w, agent, "first");
    await isBack(w, agent);
    const kept = new Map<string, string>();
    let isStopped = false;
    let degraded = 0;
    const busy = Promise.all(Array.from({ length: 4 }, async (_, worker) => {
      for (let i = 0; !isStopped; i++) {
        const title = `w${worker}n${i}x`;
        const id = await keep(w, agent, title);
        kept.set(title, id);
        const found = await byWords(w, agent, title);
        expect(found.ids).toEqual([id]);
        if (found.degraded) degraded++;
        if (i % 3 === 0) {
          expect((await w.request("DELETE", `/memories/${id}`, { token: agent.token })).status).toBe(204);
          kept.delete(title);
          expect((await byWords(w, agent, title)).ids).toEqual([]);
        }
      }
    }));
    busy.catch(() => isStopped = true);
    const grows = async (what: string) => {
      const before = kept.size;
      await eventually(() => isStopped || kept.size > before + 10, what, 60_000);
    };
    for (let life = 0; life < 2; life++) {
      await grows("writes");
      await server.kill();
      const before = degraded;
      await eventually(() => isStopped || degraded > before, "a search without the index", 60_000);
      await grows("writes without the index");
      await server.start();
    }
    isStopped = true;
    await busy;
    await isBack(w, agent);
    expect(await check(w)).toMatchObject({ ...agreement, memories: kept.size + 1 });
    for (const [title, id] of kept) expect(await byWords(w, agent, title)).toEqual({ ids: [id], degraded: false });
  });

  test("that takes a request and never answers delays nobody beyond their patience", async () => {
    await using server = await qdrant();
    await using w = await world({ services: ["registry", "memory"], env: at(server) });
    const agent = await (await w.tenant()).agent();
    const first = await keep(w, agent, "walrus");
    await isBack(w, agent);
    server.freeze();
    try {
      const found = await byWords(w, agent, "walrus");
      expect(found).toEqual({ ids: [first], degraded: true });
      const ids = await Promise.all(Array.from({ length: 20 }, (_, i) => keep(w, agent, `frozen${i}x`)));
      expect((await byWords(w, agent, "frozen7x")).ids).toEqual([ids[7]]);
    } finally {
      server.thaw();
    }
    await isBack(w, agent);
    expect(await check(w)).toMatchObject({ ...agreement, memories: 21 });
  });

  test("that comes back with nothing is filled again, though nobody writes", async () => {
    await using server = await qdrant();
    await using w = await world({ services: ["registry", "memory"], replicas: 2, env: at(server) });
    const agent = await (await w.tenant()).agent();
    const ids: string[] = [];
    for (let i = 0; i < 30; i++) ids.push(await keep(w, agent, `memory${i}x`));
    await isBack(w, agent);
    await server.kill();
    await server.erase();
    await server.start();
    await isBack(w, agent);
    expect(await byWords(w, agent, "memory17x")).toEqual({ ids: [ids[17]], degraded: false });
    expect(await check(w)).toMatchObject({ ...agreement, memories: 30 });
  });

  test("found by several replicas at once gets one collection with all its parts", async () => {
    await using server = await qdrant();
    await using w = await world({ services: ["registry"], env: at(server) });
    const agent = await (await w.tenant()).agent();
    await using stack = new AsyncDisposableStack();
    for (const one of await Promise.all([1, 2, 3].map(() => startService("memory", w.env)))) stack.use(one);
    const id = await keep(w, agent, "walrus");
    await isBack(w, agent);
    expect(await byWords(w, agent, "walrus")).toEqual({ ids: [id], degraded: false });
    const client = new QdrantClient({ url: server.url, checkCompatibility: false });
    const { collections } = await client.getCollections();
    expect(collections).toHaveLength(1);
    const { payload_schema } = await client.getCollection(collections[0]!.name);
    expect(Object.keys(payload_schema).sort()).toEqual(
      ["agent", "confidence", "expires_at", "scope", "team", "tenant", "type", "version"],
    );
    expect(payload_schema.tenant!.params).toMatchObject({ is_tenant: true });
  });

  test("left half made by a replica that died is made whole and told everything", async () => {
    await using server = await qdrant();
    await using w = await world({ services: ["registry"], env: at(server) });
    const agent = await (await w.tenant()).agent();
    const first = await startService("memory", w.env);
    const id = await keep(w, agent, "walrus");
    await isBack(w, agent);
    await first[Symbol.asyncDispose]();
    const client = new QdrantClient({ url: server.url, checkCompatibility: false });
    const [{ name }] = (await client.getCollections()).collections as [{ name: string }];
    const { config } = await client.getCollection(name);
    // As far as making one comes before its fields and its contents.
    await client.deleteCollection(name);
    const { vectors, sparse_vectors } = config.params;
    await client.createCollection(name, { vectors: vectors!, sparse_vectors: sparse_vectors! });
    await using sql = database(w);
    await sql`update memory.recipe set is_told = false`;
    await using _second = await startService("memory", w.env);
    await isBack(w, agent);
    expect(await byWords(w, agent, "walrus")).toEqual({ ids: [id], degraded: false });
    expect(Object.keys((await client.getCollection(name)).payload_schema)).toContain("tenant");
  });

  test("after a time with the index in the process knows what was written and removed then", async () => {
    await using server = await qdrant();
    await using w = await world({ services: ["registry"], env: at(server) });
    const agent = await (await w.tenant()).agent();
    const { QDRANT_URL: _, ...embedded } = w.env;
    const during = async <T>(env: Record<string, string>, work: () => Promise<T>): Promise<T> => {
      await using _service = await startService("memory", env);
      return await work();
    };
    const early = await during(w.env, async () => {
      const id = await keep(w, agent, "walrus");
      await isBack(w, agent);
      return id;
    });
    const late = await during(embedded, async () => {
      await w.request("DELETE", `/memories/${early}`, { token: agent.token });
      const gone = await keep(w, agent, "gone");
      await w.request("DELETE", `/memories/${gone}`, { token: agent.token });
      return await keep(w, agent, "zebra");
    });
    await during(w.env, async () => {
      await isBack(w, agent);
      expect(await byWords(w, agent, "walrus zebra")).toEqual({ ids: [late], degraded: false });
      expect(await check(w)).toMatchObject({ ...agreement, memories: 1 });
      const changed = { token: agent.token, body: { content: "Now a lynx." } };
      expect((await w.request("PATCH", `/memories/${late}`, changed)).status).toBe(200);
      expect(await byWords(w, agent, "lynx")).toEqual({ ids: [late], degraded: false });
      expect(await check(w)).toMatchObject(agreement);
    });
  });

  test("told by replicas of two models, as during an upgrade: the newer's collection misses nothing", async () => {
    await using server = await qdrant();
    await using other = await embedder();
    await using w = await world({ services: ["registry"], env: at(server) });
    const agent = await (await w.tenant()).agent();
    const older = await startService("memory", w.env);
    const ids = [await keep(w, agent, "walrus1x")];
    await isBack(w, agent);
    await using _newer = await startService("memory", { ...w.env, ...other.env });
    for (let i = 2; i < 40; i++) {
      ids.push(await keep(w, agent, `walrus${i}x`));
      // Whichever answers, and whatever it was told.
      expect((await byWords(w, agent, `walrus${i}x`)).ids).toEqual([ids.at(-1)]);
    }
    await older[Symbol.asyncDispose]();
    await eventually(
      async () => (await w.operator("operator.memory_index")).remaining === 0,
      "the new vectors",
      60_000,
    );
    await isBack(w, agent);
    expect(await check(w)).toMatchObject({ ...agreement, memories: ids.length });
    for (const [i, id] of ids.entries()) {
      expect(await byWords(w, agent, `walrus${i + 1}x`)).toEqual({ ids: [id], degraded: false });
    }
  });

  test("ahead of a database that was put back from a copy is brought back by a repair", async () => {
    await using server = await qdrant();
    await using w = await world({ services: ["registry", "memory"], env: at(server) });
    const agent = await (await w.tenant()).agent();
    const id = await keep(w, agent, "walrus");
    for (const content of ["A lynx.", "A heron."]) {
      await w.request("PATCH", `/memories/${id}`, { token: agent.token, body: { content } });
    }
    await isBack(w, agent);
    await using sql = database(w);
    await sql`update memory.memories set version = 1, indexed_version = 1`;
    expect(await check(w, true)).toMatchObject({ stale: 1, repaired: true });
    expect(await check(w)).toMatchObject(agreement);
  });

  test("that wants a key is asked with it; with a wrong one search goes on by words and says why", async () => {
    await using server = await qdrant({ apiKey: "the key" });
    for (const [key, isRight] of [["another", false], ["the key", true]] as const) {
      await using w = await world({ services: ["registry", "memory"], env: at(server, { QDRANT_API_KEY: key }) });
      const agent = await (await w.tenant()).agent();
      const id = await keep(w, agent, "walrus");
      if (isRight) await isBack(w, agent);
      else {
        const trouble = async () => (await w.operator("operator.memory_index")).trouble;
        expect(await eventually(trouble, "the trouble to be known")).toContain("401");
      }
      expect(await byWords(w, agent, "walrus")).toEqual({ ids: [id], degraded: !isRight });
    }
  });
});
