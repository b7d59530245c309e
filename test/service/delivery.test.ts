/** What an agent can rely on when it polls, answers and looks back. */
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { Fault } from "../../contracts/errors.ts";
import { ulid } from "../../contracts/identity.ts";
import { eventually } from "../support/eventually.ts";
import { type Post, post, type TestAgent } from "./support.ts";

let p: Post;
beforeAll(async () => {
  p = await post({ replicas: 2 });
});
afterAll(() => p?.[Symbol.asyncDispose]());

const deadLettersOf = (agent: TestAgent) => agent.ask("delivery.dead_letters", { query: {} });
const recentOf = async (agent: TestAgent, limit = 5) =>
  (await agent.ask("delivery.recent", { path: { id: agent.id }, query: { limit } })).events;
const codeOf = (work: Promise<unknown>) =>
  work.then(() => "no fault", (thrown) => thrown instanceof Fault ? [thrown.code, thrown.details] : thrown);

describe("poll and acknowledge", () => {
  test("a delivery carries its event and why it came, as attempt 1", async () => {
    const agent = p.agent();
    const event = await p.send([agent], { type: "com.example.order.created", data: { total: 5 } });
    const [got] = await agent.poll();
    expect(got).toMatchObject({
      event_id: event.id,
      attempt_count: 1,
      payload: {
        id: event.id,
        type: "com.example.order.created",
        source: "urn:test",
        data: { total: 5 },
        matched: [{ interest_id: "int_test" }],
      },
    });
    expect(got!.id).toMatch(/^dlv_[0-9a-z]+$/);
    expect(new Date(got!.created_at).toISOString()).toBe(got!.created_at);
  });

  test("an acknowledged delivery is counted once and never comes again", async () => {
    const agent = p.agent();
    for (let n = 0; n < 3; n++) await p.send([agent]);
    const got = await agent.poll();
    expect(got).toHaveLength(3);
    const ids = got.map((d) => d.id);
    expect(await agent.ack([...ids, ids[0]!])).toBe(3);
    expect(await agent.ack(ids)).toBe(0);
    await p.send([agent], { type: "test.later" });
    const [later] = await agent.poll(10, 5);
    expect(later!.payload.type).toBe("test.later");
    await eventually(async () => (await agent.poll())[0]?.attempt_count === 2, "the later one to come again");
    expect((await agent.poll()).filter((d) => ids.includes(d.id))).toEqual([]);
  });

  test("an acknowledgement tried again under its key is answered as the first time", async () => {
    const agent = p.agent();
    await p.send([agent]);
    const [got] = await agent.poll();
    const seed = ulid();
    expect(await agent.ack([got!.id], seed)).toBe(1);
    expect(await agent.ack([got!.id], seed)).toBe(1);
    expect(await agent.ack([got!.id])).toBe(0);
  });

  test("20 concurrent acknowledgements of the same 100 deliveries sum to exactly 100", async () => {
    const agent = p.agent();
    await Promise.all(Array.from({ length: 100 }, () => p.send([agent])));
    const got = await agent.poll(100);
    expect(got).toHaveLength(100);
    const ids = got.map((d) => d.id);
    const counts = await Promise.all(Array.from({ length: 20 }, () => agent.ack(ids)));
    expect(counts.reduce((sum, n) => sum + n, 0)).toBe(100);
  });

  test("another agent's delivery id, a changed one and an invented one are not counted", async () => {
    const [owner, other] = [p.agent(), p.agent()];
    await p.send([owner]);
    const [got] = await owner.poll();
    const changed = got!.id.slice(0, -1) + (got!.id.endsWith("0") ? "1" : "0");
    expect(await other.ack([got!.id])).toBe(0);
    expect(await owner.ack([changed, "dlv_nothing", "x"])).toBe(0);
    expect(await owner.ack([got!.id])).toBe(1);
  });

  test("an agent gets its own deliveries alone", async () => {
    const [one, two] = [p.agent(), p.agent()];
    const mine = await p.send([one]);
    const yours = await p.send([two]);
    expect((await one.poll()).map((d) => d.event_id)).toEqual([mine.id]);
    expect((await two.poll()).map((d) => d.event_id)).toEqual([yours.id]);
  });

  test("a limit above 100 is cut to 100, and one below 1 is refused", async () => {
    const agent = p.agent();
    await Promise.all(Array.from({ length: 101 }, () => p.send([agent])));
    expect(await agent.poll(1000)).toHaveLength(100);
    expect(await codeOf(agent.poll(0))).toMatchObject(["validation_failed", { field: "limit" }]);
  });

  test("higher priorities come first, and within one the oldest", async () => {
    const agent = p.agent();
    for (const [type, priority] of [["a", 0], ["b", 5], ["c", 0], ["d", 9], ["e", 5]] as const) {
      await p.send([agent], { type }, priority);
    }
    expect((await agent.poll(4)).map((d) => d.payload.type)).toEqual(["d", "b", "e", "a"]);
    await p.send([agent], { type: "f" }, 7);
    const rest = await agent.poll(4);
    expect(rest.map((d) => d.payload.type)).toEqual(["f", "c"]);
    expect(await agent.ack(rest.map((d) => d.id))).toBe(2);
    await eventually(
      async () => (await agent.poll(10)).some((d) => d.payload.type === "d"),
      "a high one to come again",
    );
  });

  test("a waiting poll is answered when a delivery comes, whatever its priority", async () => {
    for (const priority of [0, 3]) {
      const agent = p.agent();
      expect(await agent.poll()).toEqual([]);
      const waiting = agent.poll(10, 20);
      const event = await p.send([agent], {}, priority);
      expect((await waiting).map((d) => d.event_id)).toEqual([event.id]);
    }
  });

  test("a waiting poll waits at the broker, and does not ask again and again", async () => {
    const agent = p.agent();
    let asked = 0;
    const heard = p.bus.nc.subscribe("$JS.API.CONSUMER.MSG.NEXT.*.*", {
      callback: (_, msg) => {
        if (msg.subject.includes(agent.id)) asked++;
      },
    });
    expect(await agent.poll(10, 1.234567)).toEqual([]);
    heard.unsubscribe();
    expect(asked).toBeGreaterThan(0);
    expect(asked).toBeLessThanOrEqual(4);
  });

  test("a waiting poll is answered when a delivery comes again", async () => {
    const agent = p.agent();
    await p.send([agent]);
    const [first] = await agent.poll();
    const [again] = await agent.poll(10, 20);
    expect(again).toMatchObject({ id: first!.id, attempt_count: 2 });
  });

  test("a large event reaches every agent whole, however many are polled for at once", async () => {
    const agents = [p.agent(), p.agent()];
    const data = "x".repeat(1_000_000);
    for (let n = 0; n < 12; n++) await p.send(agents, { data });
    for (const agent of agents) {
      const seen = new Set<string>();
      await eventually(async () => {
        const got = await agent.poll(100);
        expect(got.every((d) => (d.payload.data as string).length === data.length)).toBe(true);
        if (got.length > 0) await agent.ack(got.map((d) => d.id));
        for (const { event_id } of got) seen.add(event_id);
        return seen.size === 12;
      }, "all large events");
    }
  });

  test("what needs an agent is refused to an org-admin", async () => {
    const admin = p.admin();
    const body = { delivery_ids: ["dlv_1"] };
    const refused = ["business_rule_violation", { rule: "agent_required" }];
    expect(await codeOf(admin.ask("delivery.poll", { query: {} }))).toMatchObject(refused);
    expect(await codeOf(admin.ask("delivery.ack", { body }))).toMatchObject(refused);
    expect(await codeOf(admin.ask("delivery.nack", { body }))).toMatchObject(refused);
    expect(await codeOf(admin.ask("delivery.extend", { body: { ...body, seconds: 5 } }))).toMatchObject(refused);
    expect(await codeOf(admin.ask("delivery.reject", { body: { ...body, reason: "no" } }))).toMatchObject(refused);
  });
});

describe("attempts", () => {
  test("an unacknowledged delivery comes back as attempt 2 under the same id", async () => {
    const agent = p.agent();
    await p.send([agent]);
    const [first] = await agent.poll();
    expect(await agent.poll()).toEqual([]);
    const again = await eventually(async () => (await agent.poll())[0], "the second attempt");
    expect(again).toMatchObject({ id: first!.id, attempt_count: 2 });
    expect(await agent.ack([first!.id])).toBe(1);
  });

  test("a released delivery comes at once; a delayed one only after its delay", async () => {
    const agent = p.agent();
    await p.send([agent], { type: "now" });
    await p.send([agent], { type: "later" });
    const [now, later] = await agent.poll();
    const release = (id: string, delay_seconds?: number) =>
      agent.ask("delivery.nack", { body: { delivery_ids: [id], delay_seconds } });
    expect(await release(later!.id, 2.512345678)).toEqual({ released: 1 });
    expect(await release(now!.id)).toEqual({ released: 1 });
    const [released] = await agent.poll(10, 5);
    expect(released).toMatchObject({ id: now!.id, attempt_count: 2 });
    await agent.ack([now!.id]);
    const delayed = await eventually(async () => (await agent.poll())[0], "the delayed one");
    expect(delayed).toMatchObject({ id: later!.id, attempt_count: 2 });
    expect(await agent.ack([later!.id])).toBe(1);
    expect(await release(later!.id)).toEqual({ released: 0 });
  });

  test("an extended delivery stays away longer than the visibility timeout", async () => {
    const agent = p.agent();
    await p.send([agent], { type: "extended" });
    await p.send([agent], { type: "plain" });
    const [extended] = await agent.poll();
    expect(await agent.ask("delivery.extend", { body: { delivery_ids: [extended!.id], seconds: 3 } }))
      .toEqual({ extended: 1 });
    const order: string[] = [];
    await eventually(async () => {
      const got = await agent.poll();
      order.push(...got.map((d) => d.payload.type));
      for (const { id } of got) await agent.ack([id]);
      return order.length === 2;
    }, "both to come again");
    expect(order).toEqual(["plain", "extended"]);
  });
});

describe("dead letters", () => {
  /** Lets an agent's one delivery come to its last attempt; answers its id. */
  const lastAttempt = (agent: TestAgent) =>
    eventually(async () => (await agent.poll()).find((d) => d.attempt_count === 3)?.id, "the last attempt");

  test("after the last attempt a delivery is a dead letter, with nobody polling", async () => {
    const agent = p.agent();
    const event = await p.send([agent], { data: { odd: "\u0000 \ud800" } });
    const [first] = await agent.poll();
    await lastAttempt(agent);
    const list = await eventually(
      async () => (await deadLettersOf(agent)).total > 0 && await deadLettersOf(agent),
      "the dead letter",
    );
    expect(list).toMatchObject({
      total: 1,
      dlq_items: [{
        delivery_id: first!.id,
        event_id: event.id,
        agent_id: agent.id,
        event_type: event.type,
        attempt_count: 3,
        payload: { id: event.id, data: event.data },
        created_at: first!.created_at,
      }],
    });
    expect(list.dlq_items[0]!.dlq_reason).toMatch(/3 attempts/);
    expect(await agent.poll()).toEqual([]);
    expect(await agent.ack([first!.id])).toBe(0);
    expect(await recentOf(agent)).toEqual([]);
  });

  test("extending the last attempt puts its death off, and an acknowledgement still counts", async () => {
    const [kept, lost] = [p.agent(), p.agent()];
    await p.send([kept, lost]);
    const [id] = await Promise.all([kept, lost].map(lastAttempt));
    expect(await kept.ask("delivery.extend", { body: { delivery_ids: [id!], seconds: 5 } })).toEqual({ extended: 1 });
    await eventually(async () => (await deadLettersOf(lost)).total === 1, "the other one's dead letter");
    expect((await deadLettersOf(kept)).total).toBe(0);
    expect(await kept.ack([id!])).toBe(1);
    expect((await deadLettersOf(kept)).total).toBe(0);
  });

  test("releasing the last attempt makes it a dead letter at once", async () => {
    const agent = p.agent();
    await p.send([agent]);
    const [first] = await agent.poll();
    for (let n = 0; n < 2; n++) {
      await agent.ask("delivery.nack", { body: { delivery_ids: [first!.id] } });
      await eventually(async () => (await agent.poll())[0], "the next attempt");
    }
    await agent.ask("delivery.nack", { body: { delivery_ids: [first!.id] } });
    await eventually(async () => (await deadLettersOf(agent)).total === 1, "the dead letter");
    expect(await agent.poll()).toEqual([]);
  });

  test("a rejected delivery is a dead letter with the agent's reason, once", async () => {
    const agent = p.agent();
    await p.send([agent]);
    const [got] = await agent.poll();
    const body = { delivery_ids: [got!.id], reason: "The invoice has no number" };
    expect(await agent.ask("delivery.reject", { body })).toEqual({ dead_lettered: 1 });
    expect(await agent.ask("delivery.reject", { body })).toEqual({ dead_lettered: 0 });
    const { dlq_items, total } = await deadLettersOf(agent);
    expect(total).toBe(1);
    expect(dlq_items[0]).toMatchObject({ dlq_reason: "The invoice has no number", attempt_count: 1 });
    expect(await agent.ack([got!.id])).toBe(0);
  });

  test("an agent sees its own dead letters, an org-admin the tenant's, newest first", async () => {
    const [one, two] = [p.agent(), p.agent()];
    for (const agent of [one, two]) {
      await p.send([agent]);
      const [got] = await agent.poll();
      await agent.ask("delivery.reject", { body: { delivery_ids: [got!.id], reason: agent.id } });
    }
    expect((await deadLettersOf(one)).dlq_items.map((item) => item.agent_id)).toEqual([one.id]);
    const all = await p.admin().ask("delivery.dead_letters", { query: { limit: 2 } });
    expect(all.dlq_items.map((item) => item.agent_id)).toEqual([two.id, one.id]);
    expect(all.total).toBeGreaterThanOrEqual(2);
  });

  test("a replayed delivery keeps its id, starts at attempt 1 and can be acknowledged", async () => {
    const agent = p.agent();
    const event = await p.send([agent]);
    const [got] = await agent.poll();
    await agent.ask("delivery.reject", { body: { delivery_ids: [got!.id], reason: "not now" } });
    const seed = ulid();
    const replay = (s?: string) => agent.ask("delivery.replay", { path: { id: got!.id } }, s);
    expect(await replay(seed)).toEqual({ status: "replayed", delivery_id: got!.id });
    expect(await replay(seed)).toEqual({ status: "replayed", delivery_id: got!.id });
    expect(await codeOf(replay())).toMatchObject(["not_found", { resource_id: got!.id }]);
    expect((await deadLettersOf(agent)).total).toBe(0);
    const again = await agent.poll(10, 5);
    expect(again).toMatchObject([{ id: got!.id, event_id: event.id, attempt_count: 1 }]);
    const second = await eventually(async () => (await agent.poll())[0], "the second attempt");
    expect(second).toMatchObject({ id: got!.id, attempt_count: 2 });
    expect(await agent.ack([got!.id])).toBe(1);
    expect(await agent.ack([got!.id])).toBe(0);
    expect(await recentOf(agent)).toMatchObject([{ delivery_id: got!.id, attempt_count: 2 }]);
  });

  test("a replayed delivery can be acknowledged under its id before it is polled again", async () => {
    const agent = p.agent();
    await p.send([agent]);
    const [got] = await agent.poll();
    await agent.ask("delivery.reject", { body: { delivery_ids: [got!.id], reason: "not now" } });
    await agent.ask("delivery.replay", { path: { id: got!.id } });
    expect(await agent.ack([got!.id])).toBe(1);
    expect(await agent.poll()).toEqual([]);
    expect(await recentOf(agent)).toMatchObject([{ delivery_id: got!.id, attempt_count: 1 }]);
  });

  test("a replayed delivery can die again, and is listed again", async () => {
    const agent = p.agent();
    await p.send([agent]);
    const [got] = await agent.poll();
    for (const reason of ["first", "second"]) {
      await agent.ask("delivery.reject", { body: { delivery_ids: [got!.id], reason } });
      expect((await deadLettersOf(agent)).dlq_items.map((item) => item.dlq_reason)).toEqual([reason]);
      await agent.ask("delivery.replay", { path: { id: got!.id } });
      await eventually(async () => (await agent.poll())[0], "the replayed delivery");
    }
  });

  test("of two replays at once one happens", async () => {
    const agent = p.agent();
    await p.send([agent]);
    const [got] = await agent.poll();
    await agent.ask("delivery.reject", { body: { delivery_ids: [got!.id], reason: "race" } });
    const results = await Promise.all(
      Array.from({ length: 5 }, () => codeOf(agent.ask("delivery.replay", { path: { id: got!.id } }))),
    );
    expect(results.filter((result) => result === "no fault")).toHaveLength(1);
    expect(await agent.poll(10, 5)).toHaveLength(1);
  });

  test("another agent's dead letter is not found", async () => {
    const [owner, other] = [p.agent(), p.agent()];
    await p.send([owner]);
    const [got] = await owner.poll();
    await owner.ask("delivery.reject", { body: { delivery_ids: [got!.id], reason: "mine" } });
    const replay = (by: { ask: TestAgent["ask"] }) => codeOf(by.ask("delivery.replay", { path: { id: got!.id } }));
    expect(await replay(other)).toMatchObject(["not_found", {}]);
    expect(await replay(p.admin())).toBe("no fault");
  });

  test("an event that could not be fanned out is a dead letter of the tenant, once, and can be replayed", async () => {
    const { seq, event } = await p.accept({ type: "test.poison" });
    const service = { kind: "service", name: "fanout" } as const;
    const body = { tenant: p.tenant, seq, attempts: 5, reason: "A filter crashed" };
    const first = await p.ask("delivery.bury", { body }, service);
    expect(await p.ask("delivery.bury", { body }, service)).toEqual(first);
    const admin = p.admin();
    const { dlq_items } = await admin.ask("delivery.dead_letters", { query: {} });
    expect(dlq_items.filter((item) => item.event_id === event.id)).toMatchObject([
      { agent_id: null, event_type: "test.poison", dlq_reason: "A filter crashed", attempt_count: 5 },
    ]);
    const id = first.delivery_id;
    expect(await admin.ask("delivery.replay", { path: { id } })).toEqual({ status: "replayed", delivery_id: id });
  });
});

describe("the operator", () => {
  const operator = { kind: "operator" } as const;
  test("lists, replays and purges a tenant's dead letters", async () => {
    const agent = p.agent();
    for (let n = 0; n < 3; n++) await p.send([agent]);
    const ids = (await agent.poll()).map((d) => d.id);
    await agent.ask("delivery.reject", { body: { delivery_ids: ids, reason: "for the operator" } });
    const whose = { tenant: p.tenant, agent: agent.id };
    const list = () => p.ask("operator.dlq_list", { body: whose }, operator);
    expect((await list()).total).toBe(3);
    const body = { tenant: p.tenant, delivery_ids: [ids[0]!, "dlv_none"] };
    expect(await p.ask("operator.dlq_replay", { body }, operator)).toEqual({ replayed: 1 });
    expect((await agent.poll(10, 5)).map((d) => d.id)).toEqual([ids[0]]);
    const elsewhere = { ...whose, tenant: "ten_other" };
    expect(await p.ask("operator.dlq_purge", { body: elsewhere }, operator)).toEqual({ purged: 0 });
    expect(await p.ask("operator.dlq_purge", { body: whose }, operator)).toEqual({ purged: 2 });
    expect((await list()).total).toBe(0);
  });
});

describe("recent events", () => {
  test("the latest acknowledged events come newest first", async () => {
    const agent = p.agent();
    for (let n = 0; n < 7; n++) {
      await p.send([agent], { type: `n${n}`, data: { n } });
      const [got] = await agent.poll(1, 5);
      await agent.ack([got!.id]);
    }
    const events = await recentOf(agent);
    expect(events.map((e) => e.type)).toEqual(["n6", "n5", "n4", "n3", "n2"]);
    expect(events[0]).toMatchObject({
      source: "urn:test",
      subject: null,
      time: null,
      data: { n: 6 },
      attempt_count: 1,
    });
    expect(await recentOf(agent, 1000)).toHaveLength(7);
  });

  test("no more than the last hundred are shown", async () => {
    const agent = p.agent();
    await Promise.all(Array.from({ length: 120 }, () => p.send([agent])));
    let acknowledged = 0;
    while (acknowledged < 120) acknowledged += await agent.ack((await agent.poll(60, 5)).map((d) => d.id));
    expect(await recentOf(agent, 100)).toHaveLength(100);
  });

  test("an agent that does not exist is not found", async () => {
    expect(await codeOf(p.admin().ask("delivery.recent", { path: { id: "agt_none" }, query: {} })))
      .toMatchObject(["not_found", { resource_type: "agent", resource_id: "agt_none" }]);
  });
});
