/** Deliveries as server-sent events, and what becomes of a wait whose client leaves. */
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { Delivery } from "../../contracts/deliveries.ts";
import { services } from "../../contracts/operation.ts";
import { eventually } from "../support/eventually.ts";
import { readStream } from "../support/sse.ts";
import { type TestAgent, type TestTenant, type World, world } from "../support/world.ts";

let w: World;
let t: TestTenant;
let count = 0;
beforeAll(async () => {
  w = await world({
    services,
    replicas: 2,
    env: { VISIBILITY_TIMEOUT_SECONDS: "2", MAX_DELIVERY_ATTEMPTS: "50", RATE_LIMIT_TOKEN_PER_MINUTE: "0" },
  });
  t = await w.tenant();
}, 60_000);
afterAll(() => w?.[Symbol.asyncDispose]());

async function listener() {
  const agent = await t.agent();
  const type = `com.stream${count++}.thing`;
  await agent.call("interests.create", {
    path: { id: agent.id },
    body: { event_type: type, priority: 0, enrichment_depth: "none" },
  });
  const publish = async (data: unknown = {}) => {
    const id = `s-${count++}`;
    await agent.call("events.publish", { body: { specversion: "1.0", type, source: "urn:test", id, data } });
    return id;
  };
  return { agent, publish };
}

const open = (agent: Pick<TestAgent, "token">, path = "/delivery/stream") => readStream(w.urls[0] + path, agent);

describe("a stream", () => {
  test("brings a delivery as it comes, under its id", async () => {
    const { agent, publish } = await listener();
    using stream = await open(agent);
    expect(stream.response.headers.get("content-type")).toMatch(/^text\/event-stream/);
    expect(stream.response.headers.get("x-request-id")).toBeTruthy();
    expect(await stream.frame()).toHaveProperty("comment");
    const id = await publish({ total: 3 });
    const frame = await stream.frame();
    const delivery = Delivery.parse(JSON.parse(frame!.data!));
    expect(frame).toMatchObject({ id: delivery.id, event: "delivery" });
    expect(delivery).toMatchObject({ event_id: id, attempt_count: 1, payload: { data: { total: 3 } } });
    expect(await agent.call("delivery.ack", { body: { delivery_ids: [delivery.id] } })).toEqual({ acknowledged: 1 });
  });

  test("brings an unacknowledged delivery again", async () => {
    const { agent, publish } = await listener();
    using stream = await open(agent);
    await publish();
    const first = await stream.delivery();
    expect(await stream.delivery()).toMatchObject({ id: first.id, attempt_count: 2 });
  });

  test("goes on where it broke off: nothing is lost, whatever the reader had taken", async () => {
    const { agent, publish } = await listener();
    const sent = new Set<string>();
    for (let n = 0; n < 30; n++) sent.add(await publish("x".repeat(10_000)));
    const seen = new Set<string>();
    for (let streams = 0; seen.size < sent.size; streams++) {
      expect(streams).toBeLessThan(20);
      using stream = await open(agent, "/delivery/stream?limit=7");
      for (let n = 0; n < 4 && seen.size < sent.size; n++) {
        const { id, event_id } = await stream.delivery();
        seen.add(event_id);
        await agent.call("delivery.ack", { body: { delivery_ids: [id] } });
      }
    }
    expect(seen).toEqual(sent);
  }, 60_000);

  test("takes no more from the queue than a slow reader takes from it", async () => {
    const { agent, publish } = await listener();
    for (let n = 0; n < 40; n++) await publish("x".repeat(200_000));
    using stream = await open(agent, "/delivery/stream?limit=2");
    await stream.delivery();
    // What the sockets between us hold is not in our hands; half of eight megabytes is far more than that.
    const { deliveries } = await agent.call("delivery.poll", { query: { limit: 100, wait: 5 } });
    expect(deliveries.length).toBeGreaterThan(10);
  });

  test("is refused like any request: without a token, to an org-admin", async () => {
    const without = await w.request("GET", "/delivery/stream");
    expect([without.status, without.body.error.code]).toEqual([401, "authentication_failed"]);
    const admin = await w.request("GET", "/delivery/stream", { token: t.adminToken });
    expect([admin.status, admin.body.error.details.rule]).toEqual([422, "agent_required"]);
  });

  test("is one of a hundred at most that an agent may have; one that ends makes room", async () => {
    const { agent, publish } = await listener();
    await using stack = new AsyncDisposableStack();
    const streams = await Promise.all(Array.from({ length: 100 }, async () => stack.use(await open(agent))));
    expect(new Set(streams.map(({ response }) => response.status))).toEqual(new Set([200]));
    const refused = await w.request("GET", "/delivery/stream", { token: agent.token });
    expect([refused.status, refused.body.error.details.rule]).toEqual([422, "too_many_streams"]);
    const other = await listener();
    using others = await open(other.agent);
    expect(others.response.status).toBe(200);
    for (const { leave } of streams) leave();
    using last = await eventually(async () => {
      const stream = await open(agent);
      return stream.response.status === 200 && stream;
    }, "room for another");
    const id = await publish();
    expect(await last.delivery()).toMatchObject({ event_id: id });
  });

  test("hands nothing over once its key is revoked", async () => {
    const { agent } = await listener();
    using stream = await open(agent);
    await stream.frame();
    const { keys } = await t.admin("keys.list", { path: { id: agent.id } });
    await t.admin("keys.revoke", { path: { id: agent.id, key_id: keys[0]!.id } });
    await eventually(
      async () => (await w.request("GET", "/delivery/poll", { token: agent.token })).status === 401,
      "the revocation",
    );
    const { key } = await t.admin("keys.mint", { path: { id: agent.id }, body: { scopes: ["send", "receive"] } });
    const token = await w.token(key);
    await w.request("POST", "/agents/" + agent.id + "/test-event", { token });
    expect(await stream.frame()).toBeUndefined();
    using next = await open({ token });
    expect(await next.delivery()).toMatchObject({ payload: { type: "test.dashboard" } });
  });
});

test("a client that leaves a waiting poll takes no delivery with it", async () => {
  const { agent, publish } = await listener();
  for (let n = 0; n < 5; n++) {
    const leave = new AbortController();
    const waiting = fetch(`${w.urls[0]}/delivery/poll?wait=20`, {
      headers: { authorization: `Bearer ${agent.token}` },
      signal: leave.signal,
    });
    // It is waiting once the consumer of its queue has a pull at hand, which nobody outside can see; leaving before
    // that is as good a case as leaving after it.
    await agent.call("delivery.poll", { query: { limit: 1 } });
    leave.abort();
    await expect(waiting).rejects.toThrow();
  }
  await agent.call("delivery.poll", { query: { limit: 1 } });
  const id = await publish();
  const { deliveries } = await agent.call("delivery.poll", { query: { wait: 10 } });
  expect(deliveries).toMatchObject([{ event_id: id, attempt_count: 1 }]);
});
