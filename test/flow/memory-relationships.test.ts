/** Links between memories over HTTP, and what a walk along them shows. */
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type Memory, Relationship, Step } from "../../contracts/memory.ts";
import { type TestAgent, type TestTenant, type World, world } from "../support/world.ts";

let w: World;
let t: TestTenant;
let agent: TestAgent;
let other: TestAgent;
beforeAll(async () => {
  w = await world({ services: ["registry", "memory"], env: { RATE_LIMIT_TOKEN_PER_MINUTE: "0" } });
  t = await w.tenant();
  agent = await t.agent({ team: "red" });
  other = await t.agent({ team: "red" });
});
afterAll(() => w?.[Symbol.asyncDispose]());

const rule = (body: { error: { details: { rule: string } } }) => body.error.details.rule;
const keep = async (title: string, who = agent, scope = "agent"): Promise<string> =>
  (await w.request("POST", "/memories", { token: who.token, body: { type: "entity", scope, title, content: title } }))
    .body.id;
const link = (source: string, target: string, more: object = {}, who = agent) =>
  w.request("POST", `/memories/${source}/relationships`, {
    token: who.token,
    body: { target_memory_id: target, relationship_type: "related_to", ...more },
  });
const walk = async (id: string, depth?: number | string, who = agent) => {
  const { status, body } = await w.request(
    "GET",
    `/memories/${id}/relationships${depth === undefined ? "" : `?depth=${depth}`}`,
    { token: who.token },
  );
  expect(status, JSON.stringify(body)).toBe(200);
  expect(body.count).toBe(body.relationships.length);
  return (body.relationships as Step[]).map((step) => Step.parse(step));
};
const shown = (steps: Step[]) =>
  steps.map(({ memory, depth, cumulative_strength }) => [memory.title, depth, Number(cumulative_strength.toFixed(6))]);

describe("linking", () => {
  test("a link has every field, and its defaults", async () => {
    const [a, b] = [await keep("a"), await keep("b")];
    const { status, body } = await link(a, b);
    expect(status).toBe(201);
    expect(Relationship.parse(body)).toMatchObject({
      tenant_id: t.id,
      source_memory_id: a,
      target_memory_id: b,
      relationship_type: "related_to",
      strength: 0.5,
      metadata: null,
    });
    expect(body).not.toHaveProperty("created_by");
    const [step] = await walk(a);
    expect(step!.relationship).toEqual(body);
  });

  test("a second link of the same type between the same two is a conflict that names the first", async () => {
    const [a, b] = [await keep("a"), await keep("b")];
    const first = (await link(a, b)).body.id;
    const again = await link(a, b, { strength: 0.9 });
    expect([again.status, again.body.error.details.existing_resource_id]).toEqual([409, first]);
    expect((await link(a, b, { relationship_type: "supports" })).status).toBe(201);
    expect((await link(b, a)).status).toBe(201);
  });

  test("a memory is not linked to itself, nor to what may not be seen or is not there", async () => {
    const a = await keep("a");
    expect(rule((await link(a, a)).body)).toBe("self_relationship");
    const hidden = await keep("hidden", other);
    const foreign = await keep("foreign", await (await w.tenant()).agent());
    for (const target of [hidden, foreign, "mem_nowhere"]) {
      const { status, body } = await link(a, target);
      expect([status, body.error.details]).toEqual([404, { resource_type: "memory", resource_id: target }]);
      expect((await link(target, a)).status).toBe(404);
    }
  });

  test.each([
    { relationship_type: "knows" },
    { relationship_type: undefined },
    { target_memory_id: undefined },
    { strength: 1.5 },
    { strength: -0.1 },
    { strength: "strong" },
    { metadata: [] },
  ])("%j is refused with 400", async (wrong) => {
    const [a, b] = [await keep("a"), await keep("b")];
    const { status, body } = await link(a, b, wrong);
    expect([status, body.error.code]).toEqual([400, "validation_failed"]);
  });

  test("a link sent twice under one key is one link", async () => {
    const [a, b] = [await keep("a"), await keep("b")];
    const send = () =>
      w.request("POST", `/memories/${a}/relationships`, {
        token: agent.token,
        body: { target_memory_id: b, relationship_type: "part_of", metadata: { why: "test" } },
        headers: { "idempotency-key": "link-once" },
      });
    const [one, two] = [await send(), await send()];
    expect([one.status, two.status, two.body]).toEqual([201, 201, one.body]);
  });
});

describe("unlinking", () => {
  test("who made it, or owns its source, removes it; others are refused", async () => {
    const [a, b] = [await keep("a", agent, "team"), await keep("b", agent, "team")];
    const third = await t.agent({ team: "red" });
    const remove = (id: string, who: TestAgent, source = a) =>
      w.request("DELETE", `/memories/${source}/relationships/${id}`, { token: who.token });
    const made = (await link(a, b, {}, other)).body.id;
    expect(rule((await remove(made, third)).body)).toBe("not_owner");
    expect((await remove(made, other)).status).toBe(204);
    expect((await remove(made, other)).status).toBe(404);
    const again = (await link(a, b, {}, other)).body.id;
    expect((await remove(again, agent, b)).status).toBe(404);
    expect((await remove(again, agent)).status).toBe(204);
    expect(await walk(a)).toEqual([]);
  });
});

describe("walking", () => {
  test("breadth first: each memory once, at its least depth, by the strongest path of that length", async () => {
    const ids = Object.fromEntries(
      await Promise.all(["a", "b", "c", "d", "e", "f"].map(async (name) => [name, await keep(name)])),
    );
    const edges: [string, string, number][] = [
      ["a", "b", 0.9],
      ["a", "c", 0.5],
      ["b", "d", 0.4],
      ["c", "d", 0.8],
      ["d", "e", 0.5],
      ["e", "f", 1],
      ["d", "a", 1],
      ["b", "c", 1],
    ];
    for (const [from, to, strength] of edges) expect((await link(ids[from]!, ids[to]!, { strength })).status).toBe(201);
    expect(shown(await walk(ids.a!))).toEqual([["b", 1, 0.9], ["c", 1, 0.5]]);
    expect(shown(await walk(ids.a!, 2))).toEqual([["b", 1, 0.9], ["c", 1, 0.5], ["d", 2, 0.4]]);
    const three = [["b", 1, 0.9], ["c", 1, 0.5], ["d", 2, 0.4], ["e", 3, 0.2]];
    expect(shown(await walk(ids.a!, 3))).toEqual(three);
    // Out of range is brought into it.
    expect(shown(await walk(ids.a!, 9))).toEqual(three);
    expect(shown(await walk(ids.a!, 0))).toEqual(shown(await walk(ids.a!, 1)));
    expect(shown(await walk(ids.a!, -3))).toEqual(shown(await walk(ids.a!, 1)));
    const wrong = await w.request("GET", `/memories/${ids.a}/relationships?depth=deep`, { token: agent.token });
    expect([wrong.status, wrong.body.error.details.field]).toEqual([400, "depth"]);
  });

  test("an unseen memory is neither shown nor walked through", async () => {
    const start = await keep("start", agent, "team");
    const secret = await keep("secret", agent, "agent");
    const beyond = await keep("beyond", agent, "team");
    await link(start, secret);
    await link(secret, beyond);
    expect(shown(await walk(start, 3))).toEqual([["secret", 1, 0.5], ["beyond", 2, 0.25]]);
    expect(await walk(start, 3, other)).toEqual([]);
  });

  test("a deleted memory is neither shown nor walked through", async () => {
    const [a, b, c] = [await keep("a"), await keep("b"), await keep("c")];
    await link(a, b);
    await link(b, c);
    expect((await walk(a, 3)).length).toBe(2);
    await w.request("DELETE", `/memories/${b}`, { token: agent.token });
    expect(await walk(a, 3)).toEqual([]);
    expect((await w.request("GET", `/memories/${b}/relationships`, { token: agent.token })).status).toBe(404);
  });
});

describe("enrichment", () => {
  test("delivery is told the nearest memories an agent may read, light or whole", async () => {
    const me = await t.agent({ team: "green" });
    const pump = await keep("The coolant pump fails when it is hot", me);
    const manual = await keep("Pump manual, chapter on coolant", me, "institutional");
    await keep("The coolant pump belongs to another", other);
    await link(pump, manual, { relationship_type: "supports" }, me);
    const ask = (depth: "light" | "full") =>
      w.bus.ask("memory.enrich", {
        path: {},
        query: {},
        body: {
          tenant: t.id,
          agent: me.id,
          team: "green",
          queries: [{ key: "e1", text: "com.plant.alarm coolant pump overheating", depth }, {
            key: "e2",
            text: " ",
            depth,
          }],
        },
      }, { caller: { kind: "service", name: "delivery" }, requestId: "req_1", seed: "s" }).then((answer) =>
        answer.read()
      );
    const light = await ask("light");
    expect(light.results.map(({ key }) => key)).toEqual(["e1", "e2"]);
    expect(light.results[0]!.memories.slice(0, 2).map(({ id }) => id).sort()).toEqual([pump, manual].sort());
    expect(Object.keys(light.results[0]!.memories[0]!).sort()).toEqual(["id", "score", "title", "type"]);
    expect(light.results[1]).toEqual({ key: "e2", memories: [], incomplete: false });
    const full = await ask("full");
    const first = full.results[0]!.memories.find(({ id }) => id === pump) as Memory & { relationships: Relationship[] };
    expect([first.content, first.relationships.map((r) => r.target_memory_id)]).toEqual([
      "The coolant pump fails when it is hot",
      [manual],
    ]);
  });
});
