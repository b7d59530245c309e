/** Publish, fan out, poll, acknowledge, redeliver, dead-letter, replay: each promise to a user, over HTTP. */
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { DeadLetter, Delivery, RecentEvent } from "../../contracts/deliveries.ts";
import { services } from "../../contracts/operation.ts";
import type { InterestCreate } from "../../contracts/registry.ts";
import { eventually } from "../support/eventually.ts";
import { type Answer, type TestAgent, type TestTenant, type World, world } from "../support/world.ts";

let w: World;
let t: TestTenant;
let count = 0;
beforeAll(async () => {
  w = await world({
    services,
    replicas: 2,
    gateways: 2,
    env: {
      VISIBILITY_TIMEOUT_SECONDS: "1",
      MAX_DELIVERY_ATTEMPTS: "2",
      RATE_LIMIT_TOKEN_PER_MINUTE: "0",
      RATE_LIMIT_TENANT_PER_MINUTE: "0",
    },
  });
  t = await w.tenant();
}, 60_000);
afterAll(() => w?.[Symbol.asyncDispose]());

const event = (more: Record<string, unknown> = {}) => ({
  specversion: "1.0",
  type: "com.shop.order.created",
  source: "https://shop.example/orders",
  id: `e-${count++}`,
  data: { total: 120 },
  ...more,
});
const publish = (from: TestAgent, body: unknown, headers?: Record<string, string>) =>
  w.request("POST", "/events", { token: from.token, body, ...(headers ? { headers } : {}) });
const interest = (agent: TestAgent, more: Partial<InterestCreate> = {}) =>
  agent.call("interests.create", {
    path: { id: agent.id },
    body: { event_type: "com.shop.*", priority: 0, enrichment_depth: "none", ...more },
  });
/** An agent with an interest of its own in a type nobody else uses. */
async function listener(more: Partial<InterestCreate> = {}) {
  const agent = await t.agent();
  const type = `com.own${count++}.thing`;
  return { agent, type, interest: await interest(agent, { event_type: type, ...more }) };
}
const poll = async (agent: TestAgent, query = "wait=5", gateway = 0): Promise<Delivery[]> => {
  const { status, body } = await w.request("GET", `/delivery/poll?${query}`, { token: agent.token }, gateway);
  expect(status).toBe(200);
  expect(body.count).toBe(body.deliveries.length);
  return body.deliveries.map((d: unknown) => Delivery.parse(d));
};
const one = async (agent: TestAgent, query?: string) => {
  const deliveries = await poll(agent, query);
  expect(deliveries).toHaveLength(1);
  return deliveries[0]!;
};
const post = (agent: TestAgent, verb: string, body: unknown, gateway = 0) =>
  w.request("POST", `/delivery/${verb}`, { token: agent.token, body }, gateway);
const ack = async (agent: TestAgent, ids: string[], gateway = 0) =>
  (await post(agent, "ack", { delivery_ids: ids }, gateway)).body.acknowledged as number;
const deadLetters = async (token: string) =>
  (await w.request("GET", "/delivery/dlq", { token })).body as { dlq_items: DeadLetter[]; total: number };
const inDlq = (agent: TestAgent) =>
  eventually(async () => (await deadLetters(agent.token)).dlq_items[0], "a dead letter");

describe("publishing", () => {
  test("an event is accepted once; the same id again is a duplicate of it", async () => {
    const { agent } = await listener();
    const body = event();
    const [first, second] = [await publish(agent, body), await publish(agent, { ...body, data: "other" })];
    expect([first.status, first.body]).toEqual([202, { event_id: body.id, status: "accepted" }]);
    expect([second.status, second.body]).toEqual([200, { event_id: body.id, status: "duplicate" }]);
  });

  test("fifty at once with one id are accepted once", async () => {
    const { agent, type } = await listener();
    const body = event({ type });
    const answers = await Promise.all(
      Array.from({ length: 50 }, (_, i) => w.request("POST", "/events", { token: agent.token, body }, i % 2)),
    );
    expect(answers.filter(({ status }) => status === 202)).toHaveLength(1);
    expect(answers.filter(({ status }) => status === 200)).toHaveLength(49);
    expect((await poll(agent)).map(({ event_id }) => event_id)).toEqual([body.id]);
  });

  test("ids are apart between tenants", async () => {
    const [here, there] = [await t.agent(), await (await w.tenant()).agent()];
    const body = event();
    expect((await publish(here, body)).status).toBe(202);
    expect((await publish(there, body)).status).toBe(202);
  });

  test.each([
    ["specversion", { specversion: undefined }],
    ["specversion", { specversion: "0.3" }],
    ["type", { type: undefined }],
    ["type", { type: "" }],
    ["source", { source: undefined }],
    ["source", { source: "not a uri" }],
    ["id", { id: undefined }],
    ["id", { id: 7 }],
    ["time", { time: "yesterday" }],
  ])("an envelope wrong in %s is refused as invalid_event: %j", async (field, change) => {
    const agent = await t.agent();
    const answer = await publish(agent, event(change));
    expect([answer.status, answer.body.error.code, answer.body.error.details.field]).toEqual([
      400,
      "invalid_event",
      field,
    ]);
    expect(answer.body.error.details).toHaveProperty("value");
    expect(answer.body.error.details.expected).toMatch(/\w/);
  });

  test("an event over 1 MB is too large", async () => {
    const agent = await t.agent();
    const answer = await publish(agent, event({ data: "x".repeat(1024 * 1024) }));
    expect([answer.status, answer.body.error.details.max_size]).toEqual([413, 1024 * 1024]);
  });

  test("structured, binary and batch mode arrive alike, and extension attributes are kept", async () => {
    const { agent, type } = await listener();
    const ids = [`s-${count}`, `b-${count}`, `l-${count++}`];
    const attributes = { type, source: "/a", tenantnote: "kept" };
    expect(
      (await publish(agent, { ...event(), ...attributes, id: ids[0] }, {
        "content-type": "application/cloudevents+json; charset=utf-8",
      })).status,
    ).toBe(202);
    const binary = await publish(agent, { total: 120 }, {
      "ce-specversion": "1.0",
      "ce-type": type,
      "ce-source": "/a",
      "ce-id": ids[1]!,
      "ce-tenantnote": "kept",
      "ce-subject": "caf%C3%A9",
    });
    expect(binary.status).toBe(202);
    const batch = await publish(agent, [{ ...event(), ...attributes, id: ids[2] }, {
      ...event(),
      ...attributes,
      id: ids[0],
    }], {
      "content-type": "application/cloudevents-batch+json",
    });
    expect([batch.status, batch.body]).toEqual([202, {
      results: [{ event_id: ids[2], status: "accepted" }, { event_id: ids[0], status: "duplicate" }],
    }]);
    const seen: Delivery[] = [];
    await eventually(async () => seen.push(...await poll(agent)) && seen.length === 3, "three deliveries");
    for (const { payload, event_id } of seen) {
      expect(payload).toMatchObject({ type, source: "/a", data: { total: 120 }, tenantnote: "kept", id: event_id });
    }
    expect(seen.find(({ event_id }) => event_id === ids[1])?.payload.subject).toBe("café");
  });

  test("a batch with a fault in it is refused whole, and says where", async () => {
    const { agent, type } = await listener();
    const answer = await publish(agent, [event({ type }), event({ type, id: "" })], {
      "content-type": "application/cloudevents-batch+json",
    });
    expect([answer.status, answer.body.error.details.field]).toEqual([400, "[1].id"]);
    expect(await poll(agent, "wait=0")).toEqual([]);
  });

  test("an org-admin may publish, and an unknown content type is refused", async () => {
    expect((await w.request("POST", "/events", { token: t.adminToken, body: event() })).status).toBe(202);
    const answer = await w.request("POST", "/events", {
      token: t.adminToken,
      body: "x",
      headers: { "content-type": "text/plain" },
    });
    expect([answer.status, answer.body.error.details.field]).toEqual([400, "content-type"]);
  });
});

describe("matching", () => {
  test("an interest matches when both glob and filter do", async () => {
    const agent = await t.agent();
    const { id } = await interest(agent, {
      event_type: "com.match*.order.*",
      filter_expression: "data.total > 100 && type.endsWith('created')",
    });
    await publish(agent, event({ type: "com.match.order.created", id: "m-yes" }));
    await publish(agent, event({ type: "com.match.order.deleted", id: "m-filter" }));
    await publish(agent, event({ type: "com.match.invoice.created", id: "m-glob" }));
    await publish(agent, event({ type: "com.match.order.created", id: "m-data", data: { total: 1 } }));
    await publish(agent, event({ type: "com.match.order.created", id: "m-missing", data: {} }));
    await publish(agent, event({ type: "com.match.sub.order.created", id: "m-dots" }));
    const seen: Delivery[] = [];
    await eventually(async () => seen.push(...await poll(agent)) && seen.length >= 2, "two deliveries");
    expect(seen.map(({ event_id }) => event_id).sort()).toEqual(["m-dots", "m-yes"]);
    expect(seen[0]!.payload.matched).toEqual([{ interest_id: id }]);
    expect(seen[0]!.attempt_count).toBe(1);
  });

  test("one delivery for an agent, however many interests and feeds match, and it names them all", async () => {
    const { agent, type, interest: first } = await listener();
    const second = await interest(agent, { event_type: `${type}*` });
    const channel = await agent.call("channels.create", { body: { name: `c-${count++}`, type: "open" } });
    const feed = await agent.call("feeds.create", { path: { id: channel.id }, body: { event_type_glob: type } });
    await publish(agent, event({ type }));
    const delivery = await one(agent);
    expect(delivery.payload.matched).toHaveLength(3);
    expect(delivery.payload.matched).toEqual(
      expect.arrayContaining([{ interest_id: first.id }, { interest_id: second.id }, {
        channel_id: channel.id,
        feed_id: feed.id,
      }]),
    );
    expect(await poll(agent, "wait=0")).toEqual([]);
  });

  test("a feed delivers to every member of its channel, and to nobody who left", async () => {
    const [owner, member, left] = [await t.agent(), await t.agent(), await t.agent()];
    const channel = await owner.call("channels.create", { body: { name: `c-${count++}`, type: "open" } });
    for (const { id, call } of [member, left]) {
      await call("members.add", { path: { id: channel.id }, body: { participant_type: "agent", participant_id: id } });
    }
    const type = `com.feed${count++}`;
    await owner.call("feeds.create", { path: { id: channel.id }, body: { event_type_glob: type } });
    await left.call("members.remove", { path: { id: channel.id, participant_type: "agent", participant_id: left.id } });
    await publish(owner, event({ type }));
    expect([(await poll(owner)).length, (await poll(member)).length, (await poll(left, "wait=0")).length]).toEqual([
      1,
      1,
      0,
    ]);
  });

  test("nothing crosses a tenant", async () => {
    const { agent, type } = await listener();
    const stranger = await (await w.tenant()).agent();
    await interest(stranger, { event_type: "*" });
    await publish(agent, event({ type }));
    await one(agent);
    expect(await poll(stranger, "wait=0")).toEqual([]);
  });

  test("an interest answered before an event is matched by it, and a deleted one is not: a hundred times", async () => {
    const [agent, sender] = [await t.agent(), await t.agent()];
    for (let i = 0; i < 100; i++) {
      const type = `com.ryw${count++}`;
      const { id } = await interest(agent, { event_type: type });
      await w.request("POST", "/events", { token: sender.token, body: event({ type, id: `in-${type}` }) }, 1);
      await agent.call("interests.delete", { path: { id: agent.id, interest_id: id } });
      await w.request("POST", "/events", { token: sender.token, body: event({ type, id: `out-${type}` }) }, 1);
    }
    const seen = new Set<string>();
    await eventually(
      async () => {
        const deliveries = await poll(agent, "limit=100&wait=1");
        if (deliveries.length > 0) await ack(agent, deliveries.map(({ id }) => id));
        for (const { event_id } of deliveries) seen.add(event_id);
        return seen.size >= 100 && deliveries.length === 0;
      },
      "a hundred deliveries",
      25_000,
    );
    expect([...seen].filter((id) => id.startsWith("out-"))).toEqual([]);
    expect(seen.size).toBe(100);
  });

  test("an inactive agent gets no new deliveries, and finds the old ones when it is active again", async () => {
    const { agent, type } = await listener();
    await publish(agent, event({ type, id: `kept-${type}` }));
    await eventually(async () => (await poll(agent)).length === 1, "the first");
    await t.admin("agents.deactivate", { path: { id: agent.id } });
    await w.request("POST", "/events", { token: t.adminToken, body: event({ type, id: `missed-${type}` }) });
    await t.admin("agents.activate", { path: { id: agent.id } });
    const token = await w.token(agent.key);
    const again = await eventually(async () => (await poll({ ...agent, token }))[0], "the kept one");
    expect([again.event_id, again.attempt_count]).toEqual([`kept-${type}`, 2]);
  });
});

describe("polling and acknowledging", () => {
  test("a delivery acknowledged is counted once and never comes again", async () => {
    const { agent, type } = await listener();
    await publish(agent, event({ type }));
    const { id } = await one(agent);
    expect([await ack(agent, [id]), await ack(agent, [id], 1), await ack(agent, ["dlv_nonsense"])]).toEqual([1, 0, 0]);
    expect(await poll(agent, "wait=1.5")).toEqual([]);
  });

  test("twenty concurrent acknowledgements of the same hundred deliveries sum to a hundred", async () => {
    const { agent, type } = await listener();
    const batch = Array.from({ length: 100 }, () => event({ type }));
    expect((await publish(agent, batch, { "content-type": "application/cloudevents-batch+json" })).status).toBe(202);
    const ids: string[] = [];
    await eventually(
      async () => ids.push(...(await poll(agent, "limit=100&wait=1")).map(({ id }) => id)) && ids.length >= 100,
      "a hundred deliveries",
    );
    const counts = await Promise.all(
      Array.from({ length: 20 }, (_, i) => ack(agent, [...new Set(ids)].slice(0, 100), i % 2)),
    );
    expect(counts.reduce((sum, n) => sum + n, 0)).toBe(100);
  });

  test("only the agent itself can acknowledge its deliveries", async () => {
    const { agent, type } = await listener();
    const other = await t.agent();
    await publish(agent, event({ type }));
    const { id } = await one(agent);
    expect(await ack(other, [id])).toBe(0);
    expect(await ack(agent, [id])).toBe(1);
  });

  test("what is not acknowledged comes again with the next attempt", async () => {
    const { agent, type } = await listener();
    await publish(agent, event({ type }));
    const first = await one(agent);
    expect(await poll(agent, "wait=0")).toEqual([]);
    const second = await one(agent);
    expect([second.id, first.attempt_count, second.attempt_count]).toEqual([first.id, 1, 2]);
    expect(await ack(agent, [second.id], 1)).toBe(1);
  });

  test("a limit above 100 is cut, below 1 refused; wait holds the request until a delivery comes", async () => {
    const { agent, type } = await listener();
    const asked = (query: string) => w.request("GET", `/delivery/poll?${query}`, { token: agent.token });
    expect((await asked("limit=1000")).status).toBe(200);
    for (const query of ["limit=0", "limit=x", "wait=21", "wait=-1"]) expect((await asked(query)).status).toBe(400);
    const waiting = poll(agent, "wait=10");
    await publish(agent, event({ type }));
    expect(await waiting).toHaveLength(1);
  });

  test("higher priorities come first, and within one the oldest", async () => {
    const [low, high] = [`com.low${count++}`, `com.high${count++}`];
    const agent = await t.agent();
    await interest(agent, { event_type: low, priority: 0 });
    await interest(agent, { event_type: high, priority: 7 });
    for (const [type, id] of [[low, "l1"], [high, "h1"], [low, "l2"], [high, "h2"]] as const) {
      await publish(agent, event({ type, id: `${id}-${low}` }));
    }
    const seen: string[] = [];
    await eventually(async () => {
      const history = (await w.request("GET", "/delivery/poll?limit=100", { token: agent.token })).body
        .deliveries as Delivery[];
      seen.push(...history.map(({ event_id }) => event_id.split("-")[0]!));
      return seen.length >= 4;
    }, "four deliveries");
    expect(seen.filter((id) => id.startsWith("h"))).toEqual(["h1", "h2"]);
    expect(seen.filter((id) => id.startsWith("l"))).toEqual(["l1", "l2"]);
  });

  test("a released delivery comes again at once, an extended one stays away", async () => {
    const { agent, type } = await listener();
    await publish(agent, event({ type }));
    const first = await one(agent);
    expect((await post(agent, "nack", { delivery_ids: [first.id] }, 1)).body).toEqual({ released: 1 });
    const second = await one(agent);
    expect([second.id, second.attempt_count]).toEqual([first.id, 2]);
    expect((await post(agent, "extend", { delivery_ids: [first.id], seconds: 60 }, 1)).body).toEqual({ extended: 1 });
    expect(await poll(agent, "wait=2")).toEqual([]);
    expect((await deadLetters(agent.token)).total).toBe(0);
    expect(await ack(agent, [first.id])).toBe(1);
  });

  test("an org-admin has no queue", async () => {
    const answers = [
      await w.request("GET", "/delivery/poll", { token: t.adminToken }),
      await w.request("POST", "/delivery/ack", { token: t.adminToken, body: { delivery_ids: ["dlv_x"] } }),
    ];
    for (const { status, body } of answers) expect([status, body.error.details.rule]).toEqual([422, "agent_required"]);
  });

  test("recent events are the acknowledged ones, newest first", async () => {
    const { agent, type } = await listener();
    for (const id of ["r1", "r2", "r3"]) {
      await publish(agent, event({ type, id: `${id}-${type}`, subject: "order/1" }));
      await ack(agent, [(await one(agent)).id]);
    }
    const asked = async (query: string, token = agent.token): Promise<Answer> =>
      await w.request("GET", `/agents/${agent.id}/events${query}`, { token });
    const { body } = await asked("?limit=2");
    expect(body.events.map((e: unknown) => RecentEvent.parse(e).event_id)).toEqual([`r3-${type}`, `r2-${type}`]);
    expect(body.events[0]).toMatchObject({ type, subject: "order/1", data: { total: 120 }, attempt_count: 1 });
    expect((await asked("?limit=1000")).body.events).toHaveLength(3);
    expect((await asked("", t.adminToken)).body.events).toHaveLength(3);
    const other = await t.agent({ scopes: ["receive"] });
    expect((await asked("", other.token)).body.error.details).toEqual({ required_scope: "admin" });
  });
});

describe("dead letters", () => {
  test("after the last attempt's timeout a delivery is there, with nobody polling", async () => {
    const { agent, type } = await listener();
    await publish(agent, event({ type }));
    const first = await one(agent);
    await one(agent);
    const item = DeadLetter.parse(await inDlq(agent));
    expect(item).toMatchObject({
      delivery_id: first.id,
      event_id: first.event_id,
      agent_id: agent.id,
      event_type: type,
      attempt_count: 2,
    });
    expect(item.dlq_reason).toMatch(/attempt/);
    expect(item.payload).toMatchObject({ type, data: { total: 120 } });
    expect(await poll(agent, "wait=1")).toEqual([]);
    expect(await ack(agent, [first.id])).toBe(0);
  });

  test("a rejected delivery is there at once, with the reason given", async () => {
    const { agent, type } = await listener();
    await publish(agent, event({ type }));
    const { id } = await one(agent);
    expect((await post(agent, "reject", { delivery_ids: [id], reason: "no number" })).body).toEqual({
      dead_lettered: 1,
    });
    expect((await inDlq(agent)).dlq_reason).toContain("no number");
    expect((await w.request("GET", `/agents/${agent.id}/events`, { token: agent.token })).body.events).toEqual([]);
  });

  test("an agent sees its own, an org-admin the tenant's, a stranger nothing", async () => {
    const mine = await w.tenant();
    const [one_, two] = [await mine.agent(), await mine.agent()];
    for (const agent of [one_, two]) {
      await interest(agent, { event_type: "*" });
    }
    await publish(one_, event());
    for (const agent of [one_, two]) {
      await post(agent, "reject", { delivery_ids: [(await one(agent)).id], reason: "r" });
    }
    await eventually(async () => (await deadLetters(mine.adminToken)).total === 2, "both");
    expect((await deadLetters(one_.token)).dlq_items.map(({ agent_id }) => agent_id)).toEqual([one_.id]);
    expect((await deadLetters(t.adminToken)).dlq_items.some(({ agent_id }) => agent_id === one_.id)).toBe(false);
    const [item] = (await deadLetters(two.token)).dlq_items;
    const stolen = await w.request("POST", `/delivery/dlq/${item!.delivery_id}/replay`, { token: one_.token });
    expect([stolen.status, stolen.body.error.code]).toEqual([404, "not_found"]);
  });

  test("a replay comes back under its id as attempt 1, even when nothing matches any more, and once for each key", async () => {
    const { agent, type, interest: { id: interestId } } = await listener();
    await publish(agent, event({ type }));
    const { id } = await one(agent);
    await post(agent, "reject", { delivery_ids: [id], reason: "r" });
    await inDlq(agent);
    await agent.call("interests.delete", { path: { id: agent.id, interest_id: interestId } });
    const replay = () =>
      w.request("POST", `/delivery/dlq/${id}/replay`, {
        token: agent.token,
        headers: { "idempotency-key": `k-${type}` },
      });
    const [first, second] = [await replay(), await replay()];
    expect([first.status, first.body]).toEqual([200, { status: "replayed", delivery_id: id }]);
    expect(second.body).toEqual(first.body);
    const again = await one(agent);
    expect([again.id, again.attempt_count, again.payload.matched, again.payload.type]).toEqual([id, 1, [], type]);
    expect((await deadLetters(agent.token)).total).toBe(0);
    expect(await ack(agent, [id])).toBe(1);
    expect(await poll(agent, "wait=1.5")).toEqual([]);
    const gone = await w.request("POST", `/delivery/dlq/${id}/replay`, { token: agent.token });
    expect(gone.status).toBe(404);
  });
});

describe("test events", () => {
  test("a test event reaches the agent whatever its interests, and is among its recent events once acknowledged", async () => {
    const agent = await t.agent();
    const sent = await w.request("POST", `/agents/${agent.id}/test-event`, { token: agent.token });
    expect(sent.status).toBe(202);
    const { id, payload, event_id } = await one(agent);
    expect(payload).toMatchObject({ type: "test.dashboard", source: "dashboard.test-event", subject: agent.id });
    expect(event_id).toBe(sent.body.event_id);
    await ack(agent, [id]);
    expect((await w.request("GET", `/agents/${agent.id}/events`, { token: agent.token })).body.events[0].event_id).toBe(
      event_id,
    );
  });

  test("an inactive agent cannot be sent one", async () => {
    const agent = await t.agent();
    await t.admin("agents.deactivate", { path: { id: agent.id } });
    const answer = await w.request("POST", `/agents/${agent.id}/test-event`, { token: t.adminToken });
    expect([answer.status, answer.body.error.details.rule]).toEqual([422, "agent_inactive"]);
  });
});
