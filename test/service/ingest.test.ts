import { jetstreamManager } from "@nats-io/jetstream";
import { expect, test } from "vitest";
import type { CloudEvent } from "../../contracts/events.ts";
import { eventHeaders } from "../../contracts/pipeline.ts";
import { eventually } from "../support/eventually.ts";
import { pipeline, TENANT } from "./pipeline.ts";

const whole = { specversion: "1.0", type: "com.shop.order", source: "shop", id: "one" };

const stored = async (p: Awaited<ReturnType<typeof pipeline>>, seq: number) =>
  await (await jetstreamManager(p.nc, { checkAPI: false })).streams.getMessage("EVENTS", { seq });

test("an event is answered as accepted once, then as a duplicate, in each tenant for itself", async () => {
  await using p = await pipeline();
  await p.startIngest();
  const publish = (tenant: string) => p.ask("events.publish", { body: whole }, { tenant });
  expect(await publish("ten_a")).toEqual({ event_id: "one", status: "accepted" });
  expect(await publish("ten_a")).toEqual({ event_id: "one", status: "duplicate" });
  expect(await publish("ten_b")).toEqual({ event_id: "one", status: "accepted" });
  const statuses = await Promise.all(Array.from({ length: 20 }, async () => {
    const { status } = await p.ask("events.publish", { body: { ...whole, id: "raced" } });
    return status;
  }));
  expect(statuses.filter((status) => status === "accepted")).toHaveLength(1);
});

test("what was accepted is stored as it came, extension attributes and all", async () => {
  await using p = await pipeline();
  await p.startIngest();
  const event = { ...whole, partitionkey: "7", data: { nested: { list: [1, 2.5, null] } } };
  await p.ask("events.publish", { body: event });
  const message = await stored(p, 1);
  expect(message!.json<CloudEvent>()).toEqual(event);
  expect(message!.header.get(eventHeaders.acceptedAt)).toMatch(/^\d{4}-\d\d-\d\dT/);
});

test("an id is known after the broker was killed, after ingest was started anew, and by another replica", async () => {
  await using p = await pipeline();
  const first = await p.startIngest();
  const ids = Array.from({ length: 500 }, (_, i) => `event-${i}`);
  const publishAll = () =>
    Promise.all(ids.map(async (id) => (await p.ask("events.publish", { body: { ...whole, id } })).status));
  const answered = (status: string) => ids.map(() => status);
  expect(await publishAll()).toEqual(answered("accepted"));

  await p.broker.kill();
  await p.broker.start();
  await eventually(
    () => p.ask("events.publish", { body: { ...whole, id: "event-0" } }).then(() => true, () => false),
    "ingest on the broker that came back",
  );
  expect(await publishAll()).toEqual(answered("duplicate"));

  await first[Symbol.asyncDispose]();
  await p.startIngest();
  await p.startIngest();
  expect(await publishAll()).toEqual(answered("duplicate"));
});

test("a publish while the broker is away is answered as unavailable, and can be tried again", async () => {
  await using p = await pipeline();
  await p.startIngest();
  await p.broker.kill();
  await expect(p.ask("events.publish", { body: whole })).rejects.toMatchObject({ code: "service_unavailable" });
  await p.broker.start();
  const { status } = await eventually(
    () => p.ask("events.publish", { body: whole }).catch(() => undefined),
    "an answer",
  );
  // The first try may have been stored after its answer; either way there is one event.
  expect(["accepted", "duplicate"]).toContain(status);
  expect((await p.ask("events.publish", { body: whole })).status).toBe("duplicate");
});

test("a batch is answered event by event, and nothing of it is taken when one envelope is wrong", async () => {
  await using p = await pipeline();
  await p.startIngest();
  const batch = (body: unknown) => p.ask("events.publish_batch", { body });
  const event = (id: string) => ({ ...whole, id });
  expect(await batch([event("a"), event("b"), event("a")])).toEqual({
    results: [
      { event_id: "a", status: "accepted" },
      { event_id: "b", status: "accepted" },
      { event_id: "a", status: "duplicate" },
    ],
  });
  await expect(batch([event("c"), { ...whole, type: "" }])).rejects.toMatchObject({
    code: "invalid_event",
    details: { field: "[1].type" },
  });
  expect(await batch([event("c")])).toEqual({ results: [{ event_id: "c", status: "accepted" }] });
  for (const wrong of [[], Array.from({ length: 101 }, (_, i) => event(`n${i}`)), whole, null]) {
    await expect(batch(wrong)).rejects.toMatchObject({ code: "invalid_event" });
  }
});

test("a test event goes to its agent by name; an inactive agent is refused and an unknown one not found", async () => {
  await using p = await pipeline();
  await p.startIngest();
  await p.startFanout();
  const send = (id: string) => p.ask("events.test", { path: { id } });
  await expect(send("agt_1")).rejects.toMatchObject({ code: "not_found", details: { resource_type: "agent" } });
  await expect(send("agt.*")).rejects.toMatchObject({ code: "not_found" });
  await p.announce.agent("agt_elsewhere", "active", "ten_other");
  await expect(send("agt_elsewhere")).rejects.toMatchObject({ code: "not_found" });
  await p.announce.agent("agt_1");
  const { event_id } = await send("agt_1");
  expect((await stored(p, 1))!.json<CloudEvent>()).toMatchObject({
    id: event_id,
    type: "test.dashboard",
    source: "dashboard.test-event",
    subject: "agt_1",
  });
  const [delivery] = await eventually(async () => {
    const list = await p.deliveries();
    return list.length > 0 && list;
  }, "the delivery");
  expect(delivery).toMatchObject({ agent: "agt_1", event_id, matched: [] });
  await p.announce.agent("agt_1", "inactive");
  await expect(send("agt_1")).rejects.toMatchObject({
    code: "business_rule_violation",
    details: { rule: "agent_inactive" },
  });
});

test("usage counts every accepted event of a day once, over replicas and restarts", async () => {
  await using p = await pipeline();
  const first = await p.startIngest();
  for (let i = 0; i < 20; i++) await p.publish("x", { id: `e${i % 15}` });
  await first[Symbol.asyncDispose]();
  await p.startIngest();
  await p.startIngest();
  for (let i = 0; i < 10; i++) await p.publish("x", { id: `later-${i}` });
  await p.ask("events.publish", { body: whole }, { tenant: "ten_b" });
  const today = new Date().toISOString().slice(0, 10);
  const usage = async (query = {}) =>
    (await p.ask("operator.usage", { body: query }, { kind: "operator" } as never)).usage;
  await eventually(async () => (await usage({ tenant: TENANT }))[0]?.events === 25, "25 events");
  expect(await usage()).toMatchObject([
    { tenant: TENANT, day: today, events: 25, bytes: expect.any(Number) },
    { tenant: "ten_b", day: today, events: 1 },
  ]);
  expect(await usage({ to: "2020-01-01" })).toEqual([]);
});
