/** Connectors between a real RabbitMQ and the agents: nothing lost, nothing twice, whoever is killed. */
import { spawn } from "node:child_process";
import { once } from "node:events";
import { fileURLToPath } from "node:url";
import postgres from "postgres";
import { type Message, message as amqp } from "rhea-promise";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { Input } from "../../contracts/operations.ts";
import { buckets } from "../../contracts/streams.ts";
import { openBucket } from "../../runtime/buckets.ts";
import type { Running } from "../../runtime/lifecycle.ts";
import { startTelemetry, TelemetryEnv } from "../../runtime/telemetry.ts";
import { eventually } from "../support/eventually.ts";
import { startService } from "../support/processes.ts";
import { findRabbitMq, type RabbitMq, rabbitMq } from "../support/rabbitmq.ts";
import { type TestAgent, type TestTenant, type World, world } from "../support/world.ts";

/** `npm run test:amqp` sends ten thousand. */
const MESSAGES = Number(process.env.AMQP_MESSAGES ?? 300);
const LIMIT_MS = 30_000 + MESSAGES * 30;

const program = await findRabbitMq();
if (typeof program === "string") console.warn(`\nSKIPPED: the tests of connectors, because ${program}\n`);

const root = fileURLToPath(new URL("../../", import.meta.url));

describe.skipIf(typeof program === "string")("with a real RabbitMQ", () => {
  let rabbit: RabbitMq;
  let w: World;
  let env: Record<string, string>;
  let tenant: TestTenant;
  let fanout: Running;
  const stack = new AsyncDisposableStack();

  beforeAll(async () => {
    if (typeof program === "string") return;
    const starting = rabbitMq(program);
    w = stack.use(await world({ services: ["registry", "delivery"] }).finally(() => starting));
    rabbit = stack.use(await starting);
    env = { ...w.env, CONNECTOR_LEASE_SECONDS: "2", CONNECTOR_MAX_BEHIND: "50" };
    fanout = await startService("fanout", w.env);
    stack.use(await startService("ingest", w.env));
    tenant = await w.tenant();
  }, 120_000);
  afterAll(async () => {
    await fanout?.[Symbol.asyncDispose]();
    await stack.disposeAsync();
  });

  /** A process of its own, as a replica is; killed when the block ends. */
  async function connectorProcess() {
    const child = spawn("node", ["services/connector/main.ts"], {
      cwd: root,
      env: { ...process.env, ...env },
      stdio: ["ignore", "pipe", "inherit"],
    });
    let output = "";
    child.stdout.on("data", (data) => output += data);
    const ended = once(child, "exit");
    await eventually(() => output.includes("connector.ready"), "a connector to be ready");
    const kill = async (signal: NodeJS.Signals) => {
      child.kill(signal);
      await ended;
    };
    return { child, output: () => output, kill, [Symbol.asyncDispose]: () => kill("SIGKILL") };
  }

  const mapping = { entity: "order", action: "/action", id: "/id", entity_id: "/order" };
  type Create = Partial<Input<"operator.connector_create">["body"]>;
  const create = (queue: string, more: Create = {}, settings: Record<string, unknown> = {}) =>
    w.operator("operator.connector_create", {
      tenant: tenant.slug,
      source: "shop",
      settings: {
        host: "127.0.0.1",
        port: rabbit.port,
        sasl: "plain",
        username: "guest",
        address: `/queue/${queue}`,
        credit: 50,
        tls: null,
        ...settings,
      },
      secrets: { password: "guest" },
      mapping,
      paused: false,
      ...more,
    });
  const show = (id: string) => w.operator("operator.connector_show", { tenant: tenant.slug, id });
  const remove = (id: string) => w.operator("operator.connector_delete", { tenant: tenant.slug, id });
  const stateOf = async (id: string) => (await show(id)).state;

  const orders = (count: number, tag: string): Message[] =>
    Array.from({ length: count }, (_, n) => ({
      body: JSON.stringify({ action: "paid", id: `${tag}-${n}`, order: n, text: "é ☃" }),
      content_type: "application/json",
      message_id: `m-${tag}-${n}`,
    }));

  /** An agent that cares for everything of one source, and remembers what it got. */
  async function listener(source: string) {
    const agent: TestAgent = await tenant.agent();
    await agent.call("interests.create", {
      path: { id: agent.id },
      body: { event_type: `com.${source}.*`, priority: 0, enrichment_depth: "none" },
    });
    // deno-lint-ignore no-explicit-any -- payloads of every shape
    const got: any[] = [];
    const poll = async () => {
      const { deliveries } = await agent.call("delivery.poll", { query: { limit: 100, wait: 1 } });
      if (deliveries.length === 0) return;
      got.push(...deliveries.map((delivery) => delivery.payload));
      await agent.call("delivery.ack", { body: { delivery_ids: deliveries.map(({ id }) => id) } });
    };
    const until = (count: number, limitMs = 20_000) =>
      eventually(
        async () => {
          await poll();
          return new Set(got.map(({ id }) => id)).size >= count;
        },
        `${count} events of ${source}`,
        limitMs,
      ).catch((error) => {
        throw new Error(`${error.message}: there are ${new Set(got.map(({ id }) => id)).size}`);
      });
    return { got, until, poll };
  }

  test(`${MESSAGES} messages arrive as mapped and once, though broker and connector are killed meanwhile`, async () => {
    const { got, until } = await listener("shop");
    const third = Math.ceil(MESSAGES / 3);
    const all = orders(MESSAGES, "big");
    const processes = await Promise.all([connectorProcess(), connectorProcess()]);
    await using one = processes[0];
    await using other = processes[1];
    await rabbit.send("big", all.slice(0, third));
    const { id } = await create("big");
    await until(1, LIMIT_MS);
    const owner = await eventually(async () => (await stateOf(id)).owner ?? undefined, "an owner");
    const [first, second] = owner.includes(`-${one.child.pid}-`) ? [one, other] : [other, one];
    await first.kill("SIGKILL");
    await rabbit.send("big", all.slice(third, 2 * third));
    await until(third + 1, LIMIT_MS);
    expect(second.output()).toContain("connector.owned");
    await rabbit.send("big", all.slice(2 * third));
    await rabbit.kill();
    await rabbit.start();
    await until(MESSAGES, LIMIT_MS);

    expect(await eventually(async () => await rabbit.depth("big") === 0, "the queue to be empty", LIMIT_MS)).toBe(true);
    // A delivery is at least once; beyond what was in flight, once.
    const ids = got.map(({ id }) => id);
    expect(new Set(ids)).toEqual(new Set(Array.from({ length: MESSAGES }, (_, n) => `big-${n}`)));
    expect(ids.length).toBe(MESSAGES);
    const sample = got.find(({ id }) => id === "big-7");
    expect(sample).toMatchObject({
      type: "com.shop.order.paid",
      source: "shop",
      subject: "order/7",
      data: {
        source: "shop",
        entity: "order",
        entity_id: "7",
        action: "paid",
        body: { action: "paid", id: "big-7", order: 7, text: "é ☃" },
      },
    });
    // The counts go on from owner to owner; what a killed one had not written yet is counted as duplicate or not at all.
    const state = await eventually(async () => {
      const state = await stateOf(id);
      return state.accepted + state.duplicate >= MESSAGES * 0.5 && state.status === "connected" ? state : undefined;
    }, "the state to say so");
    expect(state.rejected).toBe(0);
    expect(state.last_message_at).toBeTruthy();
    await remove(id);
  }, LIMIT_MS * 3);

  describe("and a connector in this process", () => {
    let here: Running;
    beforeAll(async () => {
      here = await startService("connector", env);
    });
    afterAll(() => here?.[Symbol.asyncDispose]());

    test("a message that can be no event is rejected with its reason, and the rest goes on", async () => {
      const { got, until } = await listener("poison");
      const messages: Message[] = orders(30, "poison");
      messages.splice(10, 0, { body: "<not json>", message_id: "bad-1" });
      messages.splice(20, 0, { body: JSON.stringify({ id: "no-action" }), message_id: "bad-2" });
      messages.splice(25, 0, { body: "x".repeat(1024 * 1024 + 10), message_id: "bad-3" });
      await rabbit.send("poison", messages);
      const { id } = await create("poison", { source: "poison" }, { credit: 4 });
      await until(30);
      expect(got.map((payload) => payload.id)).toEqual(orders(30, "poison").map((_, n) => `poison-${n}`));
      const state = await eventually(async () => {
        const state = await stateOf(id);
        return state.rejected === 3 && state.accepted === 30 ? state : undefined;
      }, "the counts");
      expect(state.rejections.map(({ message_id }) => message_id).sort()).toEqual(["bad-1", "bad-2", "bad-3"]);
      expect(state.rejections.find(({ message_id }) => message_id === "bad-2")!.reason).toContain("/action");
      await remove(id);
    });

    test("an announcement that nobody can read keeps no other connector from being read", async () => {
      const announced = await openBucket(w.bus.nc, buckets.connectors);
      await announced.put("con_unreadable", "{}");
      const { until } = await listener("readable");
      await rabbit.send("readable", orders(1, "readable"));
      const { id } = await create("readable", { source: "readable" });
      await until(1);
      await remove(id);
      await announced.purge("con_unreadable");
    });

    test("the same message twice is one event, and counted as a duplicate", async () => {
      const { until } = await listener("twice");
      await rabbit.send("twice", [...orders(5, "twice"), ...orders(5, "twice"), ...orders(1, "twice-last")]);
      const { id } = await create("twice", { source: "twice" });
      await until(6);
      await eventually(async () => {
        const { accepted, duplicate } = await stateOf(id);
        return accepted === 6 && duplicate === 5;
      }, "6 accepted and 5 duplicate");
      await remove(id);
    });

    test("CloudEvents are taken as they are, structured and binary, by both spellings", async () => {
      const { got, until } = await listener("acme");
      const event = { specversion: "1.0", id: "amqp-ce-1", type: "com.acme.a.b", source: "/acme", data: { n: 1 } };
      const attributes = (id: string, sign: string) => ({
        [`cloudEvents${sign}specversion`]: "1.0",
        [`cloudEvents${sign}id`]: id,
        [`cloudEvents${sign}type`]: "com.acme.a.b",
        [`cloudEvents${sign}source`]: "/acme",
        [`cloudEvents${sign}subject`]: "100% café",
      });
      await rabbit.send("events", [
        { body: JSON.stringify(event), content_type: "application/cloudevents+json" },
        {
          body: amqp.data_section(Buffer.from('{"n":2}')),
          content_type: "application/json",
          application_properties: attributes("amqp-ce-2", ":"),
        },
        {
          body: amqp.data_section(Buffer.from("just text")),
          content_type: "text/plain",
          application_properties: attributes("amqp-ce-3", "_"),
        },
        { body: "no event", content_type: "text/plain", message_id: "no-event" },
      ]);
      const { id } = await create("events", { mapping: null });
      await until(3);
      expect(got[0]).toMatchObject({ id: "amqp-ce-1", data: { n: 1 }, source: "/acme" });
      expect(got[1]).toMatchObject({ id: "amqp-ce-2", data: { n: 2 }, subject: "100% café" });
      expect(got[2]).toMatchObject({ id: "amqp-ce-3", data: "just text" });
      await eventually(async () => (await stateOf(id)).rejected === 1, "the fourth to be rejected");
      await remove(id);
    });

    test("properties of the message can be mapped, and its id names an event that has none", async () => {
      const { got, until } = await listener("props");
      await rabbit.send("props", [{
        body: "{}",
        message_id: "props-1",
        subject: "the-subject",
        application_properties: { Verb: "made", count: 7 },
      }]);
      const { id } = await create("props", {
        source: "props",
        mapping: { entity: "thing", action: "header:verb", subject: "{header:amqp-subject}/{header:count}" },
      });
      await until(1);
      expect(got[0]).toMatchObject({ id: "props-1", type: "com.props.thing.made", subject: "the-subject/7" });
      await remove(id);
    });

    test("paused, it leaves messages with the broker; resumed, it reads them", async () => {
      const { got, until, poll } = await listener("paused");
      const { id } = await create("paused", { source: "paused" });
      await rabbit.send("paused", orders(3, "before"));
      await until(3);
      await w.operator("operator.connector_pause", { tenant: tenant.slug, id });
      await eventually(async () => (await stateOf(id)).owner === null, "its owner to let go");
      expect((await stateOf(id)).status).toBe("paused");
      await rabbit.send("paused", orders(3, "meanwhile"));
      await poll();
      expect(got).toHaveLength(3);
      expect(await rabbit.depth("paused")).toBe(3);
      await w.operator("operator.connector_resume", { tenant: tenant.slug, id });
      await until(6);
      await remove(id);
    });

    test("credit is withheld while fan-out is behind, and given again when it is not", async () => {
      const { until } = await listener("behind");
      await fanout[Symbol.asyncDispose]();
      await rabbit.send("behind", orders(500, "behind"));
      const { id } = await create("behind", { source: "behind" }, { credit: 10 });
      await eventually(async () => {
        const { status, accepted } = await stateOf(id);
        return status === "held" && accepted > 50;
      }, "the connector to hold");
      expect(await rabbit.depth("behind")).toBeGreaterThan(0);
      fanout = await startService("fanout", w.env);
      await until(500);
      await eventually(async () => (await stateOf(id)).status === "connected", "the connector to go on");
      await remove(id);
    }, 60_000);

    test(
      "what waits at the broker, is under way and became of the rest is told, to operators and as metrics",
      async () => {
        await using telemetry = await startTelemetry("test", TelemetryEnv.parse({}));
        const { until } = await listener("told");
        await fanout[Symbol.asyncDispose]();
        await rabbit.send("told", orders(300, "told"));
        const { id } = await create("told", { source: "told" }, { credit: 10 });
        const gauge = async (name: string) => {
          const line = new RegExp(`^connector_${name}\\{[^}]*connector="${id}"[^}]*\\} ([\\d.]+)`, "m");
          return Number(line.exec(await telemetry.exposition() + await here.exposition())?.[1] ?? NaN);
        };
        const held = await eventually(async () => {
          const state = await stateOf(id);
          return state.status === "held" && state.unsettled === 0 ? state : undefined;
        }, "the connector to hold");
        expect(held.received).toBe(held.accepted);
        expect(held.credit).toBe(0);
        // By the broker's word when it was last asked for more; nothing has come since.
        expect(held.waiting).toBe(300 - held.received);
        await eventually(async () => await gauge("waiting_messages") === held.waiting, "the gauge");
        expect([await gauge("down"), await gauge("unsettled_messages"), await gauge("received_total")])
          .toEqual([0, 0, held.received]);
        fanout = await startService("fanout", w.env);
        await until(300);
        const read = await eventually(async () => {
          const state = await stateOf(id);
          return state.accepted === 300 && state.unsettled === 0 ? state : undefined;
        }, "all to be told of");
        expect(read).toMatchObject({ received: 300, duplicate: 0, rejected: 0, released: 0, waiting: 0 });
        expect(read.credit).toBeGreaterThan(0);
        await rabbit.kill();
        await eventually(async () => (await stateOf(id)).status === "connecting", "the loss of the broker");
        await eventually(async () => await gauge("down") === 1, "it to be told");
        await rabbit.start();
        await eventually(async () => (await stateOf(id)).reconnects > 0, "the reconnection", 60_000);
        await remove(id);
      },
      120_000,
    );

    test(
      "while the pipeline is gone messages are held or stay where they are, and arrive when it is back",
      async () => {
        const { got, until } = await listener("gone");
        const { id } = await create("gone", { source: "gone" }, { credit: 5 });
        await rabbit.send("gone", orders(50, "gone"));
        await until(1);
        await w.broker.kill();
        await rabbit.send("gone", orders(50, "gone-later"));
        await w.broker.start();
        await until(100, 60_000);
        expect(new Set(got.map((payload) => payload.id)).size).toBe(100);
        await remove(id);
      },
      90_000,
    );

    test("a broker that refuses us is said to, tried again, and no secret is told", async () => {
      const { id } = await create("refused", { secrets: { password: "wrong-pass-word" } });
      const good = await create("refused");
      const tried = async (id: string) => w.operator("operator.connector_test", { tenant: tenant.id, id });
      expect(await tried(id)).toMatchObject({ ok: false });
      expect(await tried(good.id)).toMatchObject({ ok: true });
      const state = await eventually(async () => {
        const state = await stateOf(id);
        return state.last_error ? state : undefined;
      }, "the error to be known");
      expect(state.status).toBe("connecting");
      const listed = JSON.stringify(await w.operator("operator.connector_list", { tenant: tenant.slug }));
      const sql = postgres(w.env.DATABASE_URL!, { max: 1 });
      const rows = JSON.stringify(
        await sql`select settings, encode(secrets_sealed, 'escape') as text from registry.connectors`,
      );
      await sql.end();
      for (const text of [listed, rows]) {
        expect(text).not.toContain("wrong-pass-word");
        expect(text).toContain("/queue/refused");
      }
      await expect(w.operator("operator.connector_test", { tenant: (await w.tenant()).id, id: good.id })).rejects
        .toMatchObject({ code: "not_found" });
      await remove(id);
      await remove(good.id);
    });

    test("of two processes one reads, and the other goes on when it stops", async () => {
      const { until } = await listener("handed");
      const { id } = await create("handed", { source: "handed" });
      await rabbit.send("handed", orders(2, "one"));
      await until(2);
      const { owner } = await eventually(async () => {
        const state = await stateOf(id);
        return state.accepted === 2 ? state : undefined;
      }, "two to be counted");
      await using _second = await startService("connector", env);
      await here[Symbol.asyncDispose]();
      await rabbit.send("handed", orders(2, "two"));
      await until(4);
      const state = await eventually(async () => {
        const state = await stateOf(id);
        return state.accepted === 4 ? state : undefined;
      }, "four to be counted");
      expect(state.owner).not.toBe(owner);
      await remove(id);
    });
  });
});
