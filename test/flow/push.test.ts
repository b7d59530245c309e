/** Push from its setting to its arrival, over HTTP. */
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { DeliveryContext } from "../../contracts/deliveries.ts";
import { services } from "../../contracts/operation.ts";
import { eventually } from "../support/eventually.ts";
import { inbox, verifies } from "../support/inbox.ts";
import { interested } from "../support/interested.ts";
import { type TestAgent, type TestTenant, type World, world } from "../support/world.ts";

let w: World;
let t: TestTenant;
beforeAll(async () => {
  w = await world({ services, env: { PUSH_ALLOW_PRIVATE: "true" } });
  t = await w.tenant();
}, 60_000);
afterAll(() => w?.[Symbol.asyncDispose]());

describe("the secret of pushes", () => {
  const set = (id: string, token: string, delivery_endpoint: string | null, key?: string) =>
    w.request("PATCH", `/agents/${id}`, {
      token,
      body: { delivery_mode: "push", delivery_endpoint },
      ...(key ? { headers: { "idempotency-key": key } } : {}),
    });

  test("is in the answer that first sets an endpoint, and signs what arrives there", async () => {
    await using server = await inbox();
    const agent = await interested(t, "com.push.first");
    const { status, body } = await set(agent.id, agent.token, server.url);
    expect([status, body.id, body.delivery_endpoint]).toEqual([200, agent.id, server.url]);
    expect(body.push_secret).toMatch(/^whsec_/);
    const event = { specversion: "1.0" as const, type: "com.push.first", source: "/a", id: "first" };
    await agent.call("events.publish", { body: event });
    await eventually(() => server.received.length > 0, "the push");
    expect(verifies(server.received[0]!, body.push_secret)).toBe(true);
  });

  test("is shown once: not by another change, another endpoint, or a look at the agent", async () => {
    const { id, token } = await t.agent();
    expect((await set(id, token, "https://one.example.com/")).body).toHaveProperty("push_secret");
    for (const endpoint of ["https://one.example.com/", null, "https://two.example.com/"]) {
      const { status, body } = await set(id, token, endpoint);
      expect([status, "push_secret" in body]).toEqual([200, false]);
    }
    expect((await w.request("GET", `/agents/${id}`, { token })).body).not.toHaveProperty("push_secret");
  });

  test("is shown again to the same request, whose answer may have been lost", async () => {
    const { id, token } = await t.agent();
    const first = await set(id, token, "https://one.example.com/", `key-${id}`);
    const again = await set(id, token, "https://one.example.com/", `key-${id}`);
    expect(first.body.push_secret).toMatch(/^whsec_/);
    expect(again.body).toEqual(first.body);
  });

  test("is not shown to whoever sets an endpoint after asking for one", async () => {
    const agent = await t.agent();
    const { secret } = await agent.call("push.secret", { path: { id: agent.id } });
    expect(secret).toMatch(/^whsec_/);
    expect((await set(agent.id, agent.token, "https://one.example.com/")).body).not.toHaveProperty("push_secret");
  });
});

describe("a push to an agent that wants to know more", () => {
  /** What arrives at the agent's server for one event. */
  const pushed = async (
    through: World,
    team: string | undefined,
    depth: "none" | "light" | "full",
    prepare: (agent: TestAgent) => Promise<unknown> = async () => {},
  ) => {
    await using server = await inbox();
    const tenant = await through.tenant();
    const agent = await tenant.agent(team ? { team } : {});
    await prepare(agent);
    await agent.call("agents.update", {
      path: { id: agent.id },
      body: { delivery_mode: "push", delivery_endpoint: server.url },
    });
    const type = `com.push.${depth}`;
    await agent.call("interests.create", {
      path: { id: agent.id },
      body: { event_type: type, priority: 0, enrichment_depth: depth },
    });
    const data = { text: "a customer asks for a refund of 700 euros" };
    const event = { specversion: "1.0" as const, type, source: "/a", id: "one", data };
    await agent.call("events.publish", { body: event });
    await eventually(() => server.received.length > 0, "the push");
    const { context, ...rest } = JSON.parse(server.received[0]!.body);
    expect(rest).toMatchObject(event);
    return context;
  };
  const remember = (agent: TestAgent) =>
    agent.call("memories.create", {
      body: {
        type: "semantic",
        scope: "team",
        team_id: "treasury",
        title: "Refund policy",
        content: "A refund over 500 euros needs the approval of the treasurer",
      },
    });

  test("brings the nearest memories of the agent and its team, as text; with none it brings nothing", async () => {
    const complete = (depth: "light" | "full") =>
      // On a busy machine memory may not answer in time; that is a promise of its own.
      eventually(
        async () => {
          const context = DeliveryContext.parse(JSON.parse(await pushed(w, "treasury", depth, remember)));
          return !context.incomplete && context;
        },
        "memory in time",
        60_000,
      );
    expect((await complete("light")).memories).toEqual([
      { id: expect.any(String), title: "Refund policy", type: "semantic", score: expect.any(Number) },
    ]);
    expect((await complete("full")).memories).toMatchObject([
      { title: "Refund policy", content: expect.stringMatching(/treasurer$/), relationships: [] },
    ]);
    expect(await pushed(w, "treasury", "none", remember)).toBeUndefined();
  }, 150_000);

  test("comes without the memory service too, and says that something is missing", async () => {
    await using alone = await world({
      services: services.filter((name) => name !== "memory"),
      env: { PUSH_ALLOW_PRIVATE: "true" },
    });
    expect(JSON.parse(await pushed(alone, undefined, "full"))).toEqual({ memories: [], incomplete: true });
  });
});
