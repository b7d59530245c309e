/** What an agent in push mode can rely on. */
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { ulid } from "../../contracts/identity.ts";
import { buckets } from "../../contracts/streams.ts";
import { pushKey, routeKeys } from "../../contracts/subjects.ts";
import { openBucket } from "../../runtime/buckets.ts";
import { eventually } from "../support/eventually.ts";
import { inbox, verifies } from "../support/inbox.ts";
import { type Post, post, type TestAgent } from "./support.ts";

let p: Post;
beforeAll(async () => {
  p = await post({
    replicas: 2,
    visibilitySeconds: 2,
    maxAttempts: 3,
    env: { PUSH_ALLOW_PRIVATE: "true", PUSH_BACKOFF_SECONDS: "1" },
  });
});
afterAll(() => p?.[Symbol.asyncDispose]());

const announce = async (agent: TestAgent, endpoint: string | undefined, status = "active") => {
  const routes = await openBucket(p.bus.nc, buckets.routes);
  const route = { version: Date.now(), status, delivery_mode: "push", team_id: null };
  await routes.put(
    routeKeys.agent(p.tenant, agent.id),
    JSON.stringify({ ...route, ...(endpoint ? { delivery_endpoint: endpoint } : {}) }),
  );
};
const deadLettersOf = async (agent: TestAgent) => (await agent.ask("delivery.dead_letters", { query: {} })).dlq_items;
const recentOf = async (agent: TestAgent) =>
  (await agent.ask("delivery.recent", { path: { id: agent.id }, query: {} })).events;
const secretOf = async (agent: TestAgent) => (await agent.ask("push.secret", { path: { id: agent.id } })).secret;

describe("push", () => {
  test("posts the event in structured form, signed, and takes a 2xx as acknowledgement", async () => {
    await using server = await inbox();
    const agent = p.agent();
    await announce(agent, server.url);
    const secret = await secretOf(agent);
    const event = await p.send([agent], { data: { total: 7 } });
    const [recent] = await eventually(
      async () => (await recentOf(agent)).length > 0 && await recentOf(agent),
      "the acknowledgement",
    );
    expect(recent).toMatchObject({ event_id: event.id, attempt_count: 1 });
    const [got] = server.received;
    expect(got!.headers["content-type"]).toMatch(/^application\/cloudevents\+json/);
    expect(JSON.parse(got!.body)).toEqual(event);
    expect(got!.headers["webhook-id"]).toBe(recent!.delivery_id);
    expect(verifies(got!, secret)).toBe(true);
    expect(await agent.poll()).toEqual([]);
  });

  test("after a rotation both secrets verify, and a stranger's does not", async () => {
    await using server = await inbox();
    const [agent, stranger] = [p.agent(), p.agent()];
    await announce(agent, server.url);
    await announce(stranger, undefined);
    const [old, fresh, other] = [await secretOf(agent), await secretOf(agent), await secretOf(stranger)];
    expect(new Set([old, fresh, other]).size).toBe(3);
    // Replicas hear of a rotation a moment later; until then they sign with what they know.
    await eventually(async () => {
      await p.send([agent]);
      return server.received.some((got) => verifies(got, fresh));
    }, "a signature of the new secret");
    const got = server.received.findLast((each) => verifies(each, fresh))!;
    expect([verifies(got, old), verifies(got, other)]).toEqual([true, false]);
  });

  test("a rotation tried again is the same rotation: the secret before it still verifies", async () => {
    await using server = await inbox();
    const agent = p.agent();
    await announce(agent, server.url);
    const old = await secretOf(agent);
    const seed = ulid();
    const rotate = async () => (await agent.ask("push.secret", { path: { id: agent.id } }, seed)).secret;
    const fresh = await rotate();
    expect(await rotate()).toBe(fresh);
    await eventually(async () => {
      await p.send([agent]);
      return server.received.some((got) => verifies(got, fresh));
    }, "a signature of the new secret");
    expect(verifies(server.received.findLast((each) => verifies(each, fresh))!, old)).toBe(true);
  });

  test("tries again after a failure, and sends to the dead letters after the last attempt", async () => {
    const at: number[] = [];
    await using server = await inbox(() => (at.push(performance.now()), { status: 503 }));
    const agent = p.agent();
    await announce(agent, server.url);
    const event = await p.send([agent]);
    const [dead] = await eventually(
      async () => (await deadLettersOf(agent)).length > 0 && await deadLettersOf(agent),
      "the dead letter",
      30_000,
    );
    expect(dead).toMatchObject({ event_id: event.id, attempt_count: 3 });
    expect(dead!.dlq_reason).toMatch(/answered 503 in the last of 3 attempts/);
    expect(server.received).toHaveLength(3);
    expect(at[1]! - at[0]!).toBeGreaterThan(700);
    expect(at[2]! - at[1]!).toBeGreaterThan(1_400);
    expect(new Set(server.received.map(({ headers }) => headers["webhook-id"])).size).toBe(1);
  });

  test("waits as long as Retry-After says", async () => {
    const at: number[] = [];
    await using server = await inbox((_, count) => {
      at.push(performance.now());
      return count === 1 ? { status: 429, headers: { "retry-after": "4" } } : { status: 204 };
    });
    const agent = p.agent();
    await announce(agent, server.url);
    await p.send([agent]);
    await eventually(async () => (await recentOf(agent)).length === 1, "the acknowledgement");
    // The usual delay would be one second and a quarter at most.
    expect(at[1]! - at[0]!).toBeGreaterThan(2_500);
  });

  test("does not come back sooner than usual because Retry-After says so", async () => {
    const at: number[] = [];
    await using server = await inbox((_, count) => {
      at.push(performance.now());
      return count === 1 ? { status: 503, headers: { "retry-after": "0" } } : { status: 204 };
    });
    const agent = p.agent();
    await announce(agent, server.url);
    await p.send([agent]);
    await eventually(async () => (await recentOf(agent)).length === 1, "the acknowledgement");
    // Else an endpoint that is away for some seconds and says so would use up every attempt in them.
    expect(at[1]! - at[0]!).toBeGreaterThan(700);
  });

  test("does not follow a redirect", async () => {
    await using elsewhere = await inbox();
    await using server = await inbox((_, count) =>
      count === 1 ? { status: 307, headers: { location: elsewhere.url } } : { status: 200 }
    );
    const agent = p.agent();
    await announce(agent, server.url);
    await p.send([agent]);
    await eventually(async () => (await recentOf(agent)).length === 1, "the acknowledgement");
    expect(elsewhere.received).toEqual([]);
    expect(server.received).toHaveLength(2);
  });

  test("gives up on an endpoint that does not answer in time", async () => {
    await using server = await inbox((_, count) => count === 1 ? "hang" : { status: 200 });
    const agent = p.agent();
    await announce(agent, server.url);
    await p.send([agent]);
    const [recent] = await eventually(
      async () => (await recentOf(agent)).length > 0 && await recentOf(agent),
      "the acknowledgement",
    );
    expect(recent!.attempt_count).toBe(2);
  });

  test("stops after a 410 until the agent names another endpoint; meanwhile it can poll", async () => {
    await using server = await inbox(() => ({ status: 410 }));
    await using next = await inbox();
    const agent = p.agent();
    await announce(agent, server.url);
    const event = await p.send([agent]);
    const [polled] = await eventually(async () => {
      const got = await agent.poll();
      return got.length > 0 && got;
    }, "the delivery to be there for a poll");
    expect(polled!.event_id).toBe(event.id);
    await agent.ack([polled!.id]);
    const later = await p.send([agent]);
    const [waiting] = await agent.poll(10, 5);
    expect(waiting!.event_id).toBe(later.id);
    await agent.ask("delivery.nack", { body: { delivery_ids: [waiting!.id] } });
    const before = server.received.length;
    await announce(agent, next.url);
    await eventually(() => next.events().includes(later.id), "the push to the new endpoint");
    expect(server.received.length).toBe(before);
  });

  test("goes to an endpoint that was gone once the agent has named none, or another, in between", async () => {
    let isGone = true;
    await using server = await inbox(() => ({ status: isGone ? 410 : 200 }));
    const agent = p.agent();
    await announce(agent, server.url);
    const event = await p.send([agent]);
    const states = await openBucket(p.bus.nc, buckets.push);
    const gone = async () => (await states.get(pushKey(p.tenant, agent.id)))?.json<{ gone?: string }>().gone;
    await eventually(async () => await gone() === server.url, "the 410 to be remembered");
    isGone = false;
    await announce(agent, undefined);
    await eventually(async () => await gone() === undefined, "it to be forgotten");
    await announce(agent, server.url);
    await eventually(
      async () => (await recentOf(agent)).some(({ event_id }) => event_id === event.id),
      "the delivery to arrive after all",
    );
  });

  test("sends a few at a time, and everything once", async () => {
    await using server = await inbox();
    const agent = p.agent();
    await announce(agent, server.url);
    const sent = await Promise.all(Array.from({ length: 60 }, () => p.send([agent], { id: ulid() })));
    await eventually(() => new Set(server.events()).size === 60, "all of them");
    expect(server.received).toHaveLength(60);
    expect(new Set(server.events())).toEqual(new Set(sent.map(({ id }) => id)));
    // Two replicas, four each.
    expect(server.mostInHand()).toBeLessThanOrEqual(8);
  });

  test("leaves an inactive agent and one without an endpoint alone", async () => {
    await using server = await inbox();
    const [inactive, without, active] = [p.agent(), p.agent(), p.agent()];
    await announce(inactive, server.url, "inactive");
    await announce(without, undefined);
    await announce(active, server.url);
    await p.send([inactive, without]);
    const event = await p.send([active]);
    await eventually(() => server.received.length > 0, "the active agent's push");
    expect(server.events()).toEqual([event.id]);
    expect(await without.poll()).toHaveLength(1);
    await announce(inactive, server.url);
    await eventually(() => server.received.length === 2, "what was kept for the agent");
  });

  test("a replica signs with the secret of now from its first push on, whatever else there is to know", async () => {
    await using alone = await post({ replicas: 0, env: { PUSH_ALLOW_PRIVATE: "true" } });
    await using server = await inbox();
    const agent = alone.agent();
    const routes = await openBucket(alone.bus.nc, buckets.routes);
    const route = { version: 1, status: "active", delivery_mode: "poll", team_id: null };
    await routes.put(routeKeys.agent(alone.tenant, agent.id), JSON.stringify(route));
    // One that nobody can read, and many of others before ours.
    const states = await openBucket(alone.bus.nc, buckets.push);
    await states.put("ten_x.agt_unreadable", "{}");
    const many = Array.from({ length: 2_000 }, (_, n) => pushKey("ten_x", `agt_${n}`));
    await Promise.all(many.map((key) => states.put(key, JSON.stringify({ secret: 1, rotated_at: "" }))));
    const before = await alone.replica();
    const secrets = [await secretOf(agent), await secretOf(agent), await secretOf(agent)];
    await before[Symbol.asyncDispose]();
    await routes.put(
      routeKeys.agent(alone.tenant, agent.id),
      JSON.stringify({ ...route, version: 2, delivery_mode: "push", delivery_endpoint: server.url }),
    );
    await alone.send([agent]);
    await alone.replica();
    await eventually(() => server.received.length > 0, "the push");
    expect(secrets.map((secret) => verifies(server.received[0]!, secret))).toEqual([false, true, true]);
  });

  test("a private address is refused where the operator has not allowed it", async () => {
    await using strict = await post({ maxAttempts: 1, visibilitySeconds: 2 });
    await using server = await inbox();
    const agent = strict.agent();
    const routes = await openBucket(strict.bus.nc, buckets.routes);
    for (const url of [server.url, server.url.replace("127.0.0.1", "localhost")]) {
      const route = { version: 1, status: "active", delivery_mode: "push", team_id: null, delivery_endpoint: url };
      await routes.put(routeKeys.agent(strict.tenant, agent.id), JSON.stringify(route));
      const event = await strict.send([agent]);
      const dead = await eventually(
        async () =>
          (await agent.ask("delivery.dead_letters", { query: {} })).dlq_items.find((d) => d.event_id === event.id),
        "the dead letter",
      );
      expect(dead.dlq_reason).toMatch(/not a public address/);
    }
    expect(server.received).toEqual([]);
  });
});
