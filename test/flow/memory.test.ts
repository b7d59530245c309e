/** Memories over HTTP, rule by rule: keep, read, change, delete, promote, list and search. */
import postgres from "postgres";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { Memory } from "../../contracts/memory.ts";
import { eventually } from "../support/eventually.ts";
import { type TestAgent, type TestTenant, type World, world } from "../support/world.ts";

let w: World;
let t: TestTenant;
let agent: TestAgent;
beforeAll(async () => {
  w = await world({ services: ["registry", "memory"], env: { RATE_LIMIT_TOKEN_PER_MINUTE: "0" } });
  t = await w.tenant();
  agent = await t.agent({ team: "red" });
});
afterAll(() => w?.[Symbol.asyncDispose]());

const rule = (body: { error: { details: { rule: string } } }) => body.error.details.rule;
const plain = { type: "semantic", scope: "agent", title: "Invoices", content: "They are due on the 15th." };
const post = (token: string, path: string, body: unknown, headers = {}) =>
  w.request("POST", path, { token, body, headers });
const keep = async (who: TestAgent, more: object = {}): Promise<Memory> => {
  const { status, body } = await post(who.token, "/memories", { ...plain, ...more });
  expect(status, JSON.stringify(body)).toBe(201);
  return body;
};
const search = async (who: { token: string }, query: string, more: object = {}) => {
  const { status, body } = await post(who.token, "/memories/search", { query, ...more });
  expect(status, JSON.stringify(body)).toBe(200);
  return body as {
    results: { memory: Memory; score: number; explanation: object }[];
    total: number;
    degraded: boolean;
  };
};
const idsOf = (answer: { results: { memory: Memory }[] }) => answer.results.map(({ memory }) => memory.id);

describe("keeping", () => {
  test("a memory has every field of its contract, defaults included", async () => {
    const memory = await keep(agent);
    expect(Memory.parse(memory)).toMatchObject({
      ...plain,
      tenant_id: t.id,
      agent_id: agent.id,
      team_id: null,
      project_id: null,
      status: "active",
      confidence: 0.5,
      importance: 0.5,
      metadata: {},
      source_event_id: null,
      freshness_date: null,
      expires_at: null,
    });
    expect(memory.id).toMatch(/^mem_/);
    const read = await w.request("GET", `/memories/${memory.id}`, { token: agent.token });
    expect([read.status, read.body]).toEqual([200, memory]);
  });

  test("what was given is what is read", async () => {
    const given = {
      ...plain,
      title: "Ünïcödé 漢字",
      content: "a\n'quoted' \\ \"text\" % _ 🎉",
      project_id: "apollo",
      confidence: 0.25,
      importance: 1,
      metadata: { nested: { list: [1, "two", null] }, "": 0 },
      source_type: "mail",
      source_id: "m-1",
      source_url: "https://example.com/m/1",
      source_event_id: "evt-1",
      freshness_date: "2030-01-02T03:04:05.678Z",
      expires_at: "2099-01-01T00:00:00.000Z",
    };
    expect(await keep(agent, given)).toMatchObject(given);
  });

  test.each([
    ["type", "dream"],
    ["scope", "world"],
    ["title", ""],
    ["content", ""],
    ["content", "x".repeat(32_769)],
    ["confidence", 1.01],
    ["importance", -0.1],
    ["metadata", []],
    ["source_url", "not a uri"],
    ["expires_at", "tomorrow"],
  ])("a wrong %s is refused with 400", async (field, value) => {
    const { status, body } = await post(agent.token, "/memories", { ...plain, [field]: value });
    expect([status, body.error.code, body.error.details.field]).toEqual([400, "validation_failed", field]);
  });

  test("content of 32,768 characters is kept, however many bytes they take", async () => {
    for (const letter of ["x", "漢", "🎉"]) {
      expect((await keep(agent, { content: letter.repeat(32_768) })).id).toBeTruthy();
    }
  });

  test("a body of 10 MB is taken, a larger one is refused with both sizes", async () => {
    const metadata = { text: "x".repeat(9 * 1024 * 1024) };
    const big = await keep(agent, { metadata });
    expect((await w.request("GET", `/memories/${big.id}`, { token: agent.token })).body.metadata.text).toHaveLength(
      metadata.text.length,
    );
    expect((await w.request("GET", "/memories?limit=200", { token: agent.token })).status).toBe(200);
    expect((await w.request("DELETE", `/memories/${big.id}`, { token: agent.token })).status).toBe(204);
    const larger = await post(agent.token, "/memories", { ...plain, metadata: { text: "x".repeat(10 * 1024 * 1024) } });
    expect([larger.status, larger.body.error.details.max_size]).toEqual([413, 10 * 1024 * 1024]);
  });

  test("a team memory belongs to the team named, else to the caller's, and needs one of them", async () => {
    const loner = await t.agent();
    expect((await keep(agent, { scope: "team" })).team_id).toBe("red");
    expect((await keep(loner, { scope: "team", team_id: "blue" })).team_id).toBe("blue");
    const { status, body } = await post(loner.token, "/memories", { ...plain, scope: "team" });
    expect([status, body.error.details.field]).toEqual([400, "team_id"]);
  });

  test("an org-admin keeps none", async () => {
    expect(rule((await post(t.adminToken, "/memories", plain)).body)).toBe("agent_required");
  });

  test("a request sent twice under one key keeps one memory", async () => {
    const headers = { "idempotency-key": "keep-once" };
    const [one, two] = [
      await post(agent.token, "/memories", { ...plain, title: "once" }, headers),
      await post(agent.token, "/memories", { ...plain, title: "once" }, headers),
    ];
    expect(two.body).toEqual(one.body);
    expect(two.headers.get("idempotency-replayed")).toBe("true");
    const other = await post(agent.token, "/memories", { ...plain, title: "other" }, headers);
    expect([other.status, other.body.error.code]).toEqual([409, "conflict"]);
  });

  test("up to 100 at once: all of them in their order, or none", async () => {
    const who = await t.agent();
    const memories = Array.from({ length: 100 }, (_, i) => ({ ...plain, title: `number ${i}` }));
    const { status, body } = await post(who.token, "/memories/batch", { memories });
    expect([status, body.count, body.memories[99].title]).toEqual([201, 100, "number 99"]);
    const listed = (await w.request("GET", "/memories?limit=200", { token: who.token })).body;
    expect([listed.total, listed.memories[0].title]).toEqual([100, "number 99"]);
    const many = await post(who.token, "/memories/batch", { memories: [...memories, plain] });
    expect([many.status, many.body.error.details.field]).toEqual([400, "memories"]);
    const oneWrong = await post(who.token, "/memories/batch", { memories: [plain, { ...plain, scope: "team" }] });
    expect([oneWrong.status, oneWrong.body.error.details.field]).toEqual([400, "memories[1].team_id"]);
    expect((await w.request("GET", "/memories", { token: who.token })).body.total).toBe(100);
  });
});

describe("changing", () => {
  test("the fields given change, the others stay, and search follows", async () => {
    const memory = await keep(agent, { title: "Parrot", content: "It speaks." });
    const { status, body } = await w.request("PATCH", `/memories/${memory.id}`, {
      token: agent.token,
      body: { content: "A quetzalcoatlus flew by.", confidence: 0.9, metadata: { a: 1 }, expires_at: null },
    });
    expect(status).toBe(200);
    expect(body).toMatchObject({
      title: "Parrot",
      content: "A quetzalcoatlus flew by.",
      confidence: 0.9,
      metadata: { a: 1 },
      importance: 0.5,
    });
    expect(Date.parse(body.updated_at)).toBeGreaterThanOrEqual(Date.parse(memory.updated_at));
    expect(idsOf(await search(agent, "quetzalcoatlus"))[0]).toBe(memory.id);
  });

  test("owner, team and scope are not changed by an update", async () => {
    const memory = await keep(agent);
    const { body } = await w.request("PATCH", `/memories/${memory.id}`, {
      token: agent.token,
      body: { scope: "institutional", agent_id: "agt_x", team_id: "blue", type: "entity" },
    });
    expect(body).toEqual(memory);
  });

  test("content that is too long or empty is refused", async () => {
    const memory = await keep(agent);
    for (const content of ["", "x".repeat(32_769), null, 7]) {
      const { status } = await w.request("PATCH", `/memories/${memory.id}`, { token: agent.token, body: { content } });
      expect(status).toBe(400);
    }
  });

  test("changes made at the same moment all hold", async () => {
    const memory = await keep(agent);
    const answers = await Promise.all([
      ...Array.from({ length: 4 }, (_, i) => ({ title: `title ${i}` })),
      { confidence: 0.125 },
      { metadata: { by: "someone" } },
    ].map((body) => w.request("PATCH", `/memories/${memory.id}`, { token: agent.token, body })));
    expect(answers.map(({ status }) => status)).toEqual([200, 200, 200, 200, 200, 200]);
    const { body } = await w.request("GET", `/memories/${memory.id}`, { token: agent.token });
    expect(body).toMatchObject({
      confidence: 0.125,
      metadata: { by: "someone" },
      title: expect.stringMatching(/^title/),
    });
  });
});

describe("deleting and expiring", () => {
  test("a deleted memory answers as one that never was, everywhere", async () => {
    const memory = await keep(agent, { title: "Ephemeral zebra", scope: "institutional" });
    const url = `/memories/${memory.id}`;
    const gone = await w.request("DELETE", url, { token: agent.token });
    expect([gone.status, gone.body]).toEqual([204, undefined]);
    for (const method of ["GET", "DELETE"]) {
      const { status, body } = await w.request(method, url, { token: agent.token });
      expect([status, body.error.details]).toEqual([404, { resource_type: "memory", resource_id: memory.id }]);
    }
    expect((await w.request("PATCH", url, { token: agent.token, body: { title: "x" } })).status).toBe(404);
    expect((await post(agent.token, `${url}/promote`, { scope: "institutional" })).status).toBe(404);
    expect(idsOf(await search(agent, "ephemeral zebra"))).not.toContain(memory.id);
    expect((await w.request("GET", "/memories?search=zebra", { token: agent.token })).body.total).toBe(0);
  });

  test("an expired memory is gone at its moment", async () => {
    const expires_at = new Date(Date.now() + 1_500).toISOString();
    const memory = await keep(agent, { title: "Short-lived mayfly", expires_at });
    expect(idsOf(await search(agent, "mayfly"))).toContain(memory.id);
    await eventually(
      async () => (await w.request("GET", `/memories/${memory.id}`, { token: agent.token })).status === 404,
      "the expiry",
    );
    expect(idsOf(await search(agent, "mayfly"))).not.toContain(memory.id);
    expect((await w.request("GET", "/memories?search=mayfly", { token: agent.token })).body.total).toBe(0);
  });
});

describe("promoting", () => {
  const promote = (token: string, id: string, body: unknown, headers = {}) =>
    post(token, `/memories/${id}/promote`, body, headers);

  test("scope only widens, step by step or at once", async () => {
    const memory = await keep(agent);
    const toTeam = await promote(agent.token, memory.id, { scope: "team", team_id: "red" });
    expect([toTeam.status, toTeam.body.scope, toTeam.body.team_id]).toEqual([200, "team", "red"]);
    expect(rule((await promote(agent.token, memory.id, { scope: "team", team_id: "blue" })).body)).toBe(
      "scope_only_widens",
    );
    expect((await promote(agent.token, memory.id, { scope: "institutional" })).body.scope).toBe("institutional");
    for (const scope of ["team", "institutional"]) {
      const { status, body } = await promote(agent.token, memory.id, { scope, team_id: "red" });
      expect([status, rule(body)]).toEqual([422, "scope_only_widens"]);
    }
    expect((await promote(agent.token, (await keep(agent)).id, { scope: "institutional" })).status).toBe(200);
  });

  test("target agent, no target, and a team without its id are refused with 400", async () => {
    const { id } = await keep(agent);
    for (
      const body of [{ scope: "agent" }, {}, { scope: "team" }, { scope: "team", team_id: null }, { scope: "world" }]
    ) {
      expect((await promote(agent.token, id, body)).status, JSON.stringify(body)).toBe(400);
    }
    expect((await w.request("GET", `/memories/${id}`, { token: agent.token })).body.scope).toBe("agent");
  });

  test("a promotion whose answer was lost is not refused when it is sent again", async () => {
    const { id } = await keep(agent);
    const origin = {
      caller: { kind: "agent" as const, id: agent.id, tenant: t.id, scopes: ["memory:write" as const], keyId: "k" },
      requestId: "req_1",
      seed: "01jd3v8g4w9qk2m7x5t0r6n1ze",
    };
    const input = { path: { id }, query: {}, body: { scope: "institutional" as const } };
    const first = (await w.bus.ask("memories.promote", input, origin)).read();
    const again = (await w.bus.ask("memories.promote", input, origin)).read();
    expect(again).toEqual(first);
  });
});

describe("listing", () => {
  let lister: TestAgent;
  const page = async (query: string) => (await w.request("GET", `/memories?${query}`, { token: lister.token })).body;
  beforeAll(async () => {
    lister = await (await w.tenant()).agent({ team: "green" });
    for (let i = 0; i < 12; i++) {
      await keep(lister, {
        title: `Note ${i}`,
        content: ["100% sure", "snake_case", "ÄPFEL und Birnen", "back\\slash"][i % 4],
        type: i % 2 ? "episodic" : "semantic",
        scope: (["agent", "team", "institutional"] as const)[i % 3],
        ...(i === 7 ? { source_event_id: "evt-7" } : {}),
      });
    }
  });

  test("newest first, page by page, with the total", async () => {
    const all = await page("");
    expect([all.total, all.memories.map((m: Memory) => m.title)]).toEqual([
      12,
      [...Array(12).keys()].reverse().map((i) => `Note ${i}`),
    ]);
    const second = await page("offset=5&limit=5");
    expect([second.total, second.memories.map((m: Memory) => m.title)]).toEqual([
      12,
      all.memories.slice(5, 10).map((m: Memory) => m.title),
    ]);
    expect(await page("offset=50")).toEqual({ memories: [], total: 12 });
  });

  test("by type and by scope", async () => {
    expect((await page("type=episodic")).total).toBe(6);
    expect((await page("scope=team")).memories.every((m: Memory) => m.scope === "team")).toBe(true);
    expect((await page("type=semantic&scope=agent")).total).toBe(2);
  });

  test.each([
    ["%", 3],
    ["_", 3],
    ["\\", 3],
    ["100%", 3],
    ["snake%case", 0],
    ["SNAKE_CASE", 3],
    ["äpfel", 3],
    ["note 1", 3],
    ["nothing like it", 0],
  ])("search %s is letter by letter and blind to case: %i found", async (text, total) => {
    expect((await page(new URLSearchParams({ search: text }).toString())).total).toBe(total);
  });

  test("by the event it derives from", async () => {
    const found = await page("source_event_id=evt-7");
    expect(found.memories.map((m: Memory) => m.title)).toEqual(["Note 7"]);
  });

  test.each(["limit=0", "limit=201", "offset=-1", "limit=x", "type=dream", "scope=world"])(
    "%s is refused",
    async (query) => {
      expect((await w.request("GET", `/memories?${query}`, { token: lister.token })).status).toBe(400);
    },
  );
});

describe("searching", () => {
  test("a memory is found by the first search after its 201", async () => {
    const who = await (await w.tenant()).agent();
    for (let i = 0; i < 20; i++) {
      const memory = await keep(who, { title: `Fact ${i}`, content: `The codeword of gate ${i} is zyx${i}q.` });
      expect(idsOf(await search(who, `zyx${i}q`))[0]).toBe(memory.id);
    }
  });

  test("by meaning where no word is shared, and by words where meaning is unknown", async () => {
    const who = await (await w.tenant()).agent();
    const car = await keep(who, { title: "Garage", content: "The automobile is parked in the garage." });
    const code = await keep(who, { title: "Incident", content: "Error code XK-4471 came from the pump." });
    for (const content of ["Bread is baked at dawn.", "The river floods in spring.", "Paint dries in two hours."]) {
      await keep(who, { title: "Note", content });
    }
    expect(idsOf(await search(who, "where is my vehicle"))[0]).toBe(car.id);
    expect(idsOf(await search(who, "XK-4471"))[0]).toBe(code.id);
    expect(idsOf(await search(who, "vehicle", { mode: "lexical" }))).toEqual([]);
    expect(idsOf(await search(who, "vehicle", { mode: "semantic" }))[0]).toBe(car.id);
  });

  test("scores lie between 0 and 1, fall, and are explained", async () => {
    const who = await (await w.tenant()).agent();
    for (let i = 0; i < 30; i++) {
      await keep(who, { title: `Train ${i}`, content: `Train ${i} leaves at ${i} o'clock`, importance: i / 30 });
    }
    const { results, total, degraded } = await search(who, "when does train 7 leave", { limit: 20 });
    expect([results.length, total, degraded]).toEqual([20, 30, false]);
    expect(results[0]!.memory.title).toBe("Train 7");
    const scores = results.map(({ score }) => score);
    expect(scores).toEqual([...scores].sort((a, b) => b - a));
    expect(scores.every((score) => score >= 0 && score <= 1)).toBe(true);
    expect(results[0]!.explanation).toEqual({
      similarity: expect.any(Number),
      lexical: expect.any(Number),
      recency: expect.any(Number),
      confidence: 0.5,
      importance: expect.any(Number),
    });
    expect((await search(who, "train")).results).toHaveLength(10);
    expect((await search(who, "train", { limit: 1 })).results).toHaveLength(1);
  });

  test("type, scope and min_confidence are filters", async () => {
    const who = await (await w.tenant()).agent({ team: "red" });
    const made: Memory[] = [];
    for (const type of ["semantic", "episodic"]) {
      for (const scope of ["agent", "team", "institutional"]) {
        for (const confidence of [0.2, 0.8]) {
          made.push(
            await keep(who, { type, scope, confidence, title: "Walrus", content: `A walrus, ${type}, ${scope}` }),
          );
        }
      }
    }
    const expected = (choose: (m: Memory) => boolean) => made.filter(choose).map((m) => m.id).sort();
    const found = async (more: object) => idsOf(await search(who, "walrus", { limit: 100, ...more })).sort();
    expect(await found({})).toEqual(expected(() => true));
    expect(await found({ type: "episodic" })).toEqual(expected((m) => m.type === "episodic"));
    expect(await found({ scope: "team" })).toEqual(expected((m) => m.scope === "team"));
    expect(await found({ min_confidence: 0.8 })).toEqual(expected((m) => m.confidence === 0.8));
    expect(await found({ min_confidence: 0.81 })).toEqual([]);
    expect(await found({ type: "semantic", scope: "agent", min_confidence: 0.5 })).toEqual(
      expected((m) => m.type === "semantic" && m.scope === "agent" && m.confidence === 0.8),
    );
  });

  test.each([
    ["東京の会議は来週の火曜日です。", "会議"],
    ["Встреча с клиентом перенесена на пятницу", "встреча клиентом"],
    ["الاجتماع القادم يوم الثلاثاء", "الاجتماع"],
    ["การประชุมครั้งต่อไปคือวันอังคาร", "ประชุม"],
    ["다음 회의는 화요일입니다", "회의는"],
    ["La réunion aura lieu à Orléans", "reunion orleans"],
    ["Σημαντική συνάντηση την Τρίτη", "συναντηση"],
    ["अगली बैठक मंगलवार को है", "बैठक"],
  ])("text of every script is found by its words: %s", async (content, query) => {
    const who = await (await w.tenant()).agent();
    const memory = await keep(who, { title: "•", content });
    for (const other of ["Bread is baked at dawn", "Вода кипит", "天気がいい", "قهوة"]) {
      await keep(who, { title: "•", content: other });
    }
    expect(idsOf(await search(who, query, { mode: "lexical" }))).toContain(memory.id);
    expect(idsOf(await search(who, query))).toContain(memory.id);
  });

  test.each(["the", "what is it", "???", "🎉", "c++", "a b c", "\u0301", "long ".repeat(1_600)])(
    "a question without a telling word is answered with something",
    async (query) => {
      const who = await (await w.tenant()).agent();
      await keep(who, { title: "Party 🎉", content: "C++ developers: what is it ??? the x" });
      expect((await search(who, query)).results).toHaveLength(1);
    },
  );

  test.each([
    { query: "" },
    { query: "   " },
    {},
    { query: "x", limit: 0 },
    { query: "x", limit: 101 },
    { query: "x", limit: 1.5 },
    { query: "x", min_confidence: 2 },
    { query: "x", scope: "world" },
    { query: "x", type: "dream" },
  ])("%j is refused", async (body) => {
    expect((await post(agent.token, "/memories/search", body)).status).toBe(400);
  });

  test("nothing kept is nothing found, and no fault", async () => {
    const who = await (await w.tenant()).agent();
    expect(await search(who, "anything")).toEqual({ results: [], total: 0, degraded: false });
  });

  test("reading is noted, sooner or later", async () => {
    const memory = await keep(agent, { title: "Read me" });
    // A moment is noted once a minute; this one was last read an hour ago.
    await using sql = Object.assign(postgres(w.env.DATABASE_URL!, { max: 1 }), {
      [Symbol.asyncDispose]: () => sql.end(),
    });
    await sql`update memory.memories set accessed_at = now() - interval '1 hour' where id = ${memory.id}`;
    const read = async () => (await w.request("GET", `/memories/${memory.id}`, { token: agent.token })).body as Memory;
    const long = Date.parse((await read()).accessed_at);
    await eventually(async () => Date.parse((await read()).accessed_at) > long + 3_000_000, "the note");
    expect((await read()).updated_at).toBe(memory.updated_at);
  });
});
