import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { expect, test } from "vitest";
import type { QueuedDelivery } from "../../contracts/pipeline.ts";
import { consumers, deliveryStreamName } from "../../contracts/streams.ts";
import { parseDelivery, subjects } from "../../contracts/subjects.ts";
import { connectBus } from "../../runtime/bus.ts";
import { consume } from "../../runtime/consume.ts";
import { silent } from "../../runtime/log.ts";
import { publisher } from "../../runtime/publish.ts";
import { enqueuer } from "../../services/fanout/enqueue.ts";
import { progressIn } from "../../services/fanout/progress.ts";
import { startRoutes } from "../../services/fanout/routes.ts";
import { spreader } from "../../services/fanout/spread.ts";
import { eventually } from "../support/eventually.ts";
import { type Pipeline, pipeline, SHARDS } from "./pipeline.ts";

const agents = ["agt_1", "agt_2", "agt_3", "agt_4", "agt_5"];

async function withAgents(): Promise<Pipeline> {
  const p = await pipeline();
  for (const agent of agents) {
    await p.announce.agent(agent);
    await p.announce.interest(agent, `int_${agent}`, "*");
  }
  return p;
}

async function publishMany(p: Pipeline, count: number): Promise<void> {
  for (let from = 0; from < count; from += 100) {
    const body = Array.from({ length: 100 }, (_, i) => ({
      specversion: "1.0",
      type: "x",
      source: "s",
      id: `event-${from + i}`,
    }));
    await p.ask("events.publish_batch", { body });
  }
}

/** Every agent has every event once. */
async function expectAllOnce(p: Pipeline, count: number): Promise<void> {
  await eventually(async () => await p.backlog() === 0, "an empty backlog", 60_000);
  const names = (await p.deliveries()).map(({ seq, agent }) => `${seq} ${agent}`).sort();
  const expected = Array.from({ length: count }, (_, i) => agents.map((agent) => `${i + 1} ${agent}`)).flat().sort();
  expect(names).toEqual(expected);
}

/** Fan-out as a process of its own, so that it can be killed. */
async function fanoutProcess(p: Pipeline): Promise<ChildProcess & AsyncDisposable> {
  const main = fileURLToPath(new URL("../../services/fanout/main.ts", import.meta.url));
  const child = spawn(process.execPath, [main], {
    env: { PATH: process.env.PATH, ...p.env },
    stdio: ["ignore", "pipe", "inherit"],
  });
  let output = "";
  child.stdout!.on("data", (chunk) => output += chunk);
  await eventually(() => output.includes("fanout.ready"), "fan-out to be ready");
  return Object.assign(child, {
    async [Symbol.asyncDispose]() {
      if (child.exitCode !== null || child.signalCode !== null) return;
      const ended = once(child, "exit");
      child.kill("SIGKILL");
      await ended;
    },
  });
}

test("fan-out replicas killed in the middle of their batches neither lose nor double a delivery", async () => {
  await using p = await withAgents();
  await p.startIngest();
  await publishMany(p, 100);
  const count = 4_000;
  await using stack = new AsyncDisposableStack();
  let allPublished = false;
  const publishing = publishMany(p, count).then(() => allPublished = true);
  for (let kills = 0; kills < 3; kills++) {
    const replica = stack.use(await fanoutProcess(p));
    const before = (await p.deliveries()).length;
    // On a busy machine a replica may be through with everything before it can be killed.
    const isThrough = async () => allPublished && await p.backlog() === 0;
    await eventually(
      async () => (await p.deliveries()).length > before + 200 || await isThrough(),
      "deliveries to kill it for",
      60_000,
    );
    replica.kill("SIGKILL");
  }
  await publishing;
  stack.use(await fanoutProcess(p));
  stack.use(await fanoutProcess(p));
  await expectAllOnce(p, count);
}, 120_000);

test("fan-out that dies between queueing and acknowledging is repeated without effect", async () => {
  await using p = await withAgents();
  await p.startIngest();
  const survivor = await p.startFanout();
  await survivor[Symbol.asyncDispose]();
  await publishMany(p, 300);

  const dying = await connectBus(p.broker.url, "dying", silent);
  const publish = publisher(dying.nc);
  const routes = startRoutes(dying.nc, publish, silent);
  const enqueue = enqueuer(publish, SHARDS);
  const died = Promise.withResolvers<void>();
  let queued = 0;
  await consume({
    nc: dying.nc,
    consumer: { ...consumers.fanout, ackWaitMs: 2_000 },
    batch: 50,
    work: spreader({
      routes,
      progress: progressIn(dying.nc, publish, silent),
      enqueue: async (event, recipients) => {
        await enqueue(event, recipients);
        if (++queued === 30) await dying.nc.close().then(died.resolve);
        if (queued >= 30) await new Promise(() => {});
      },
      bury: async () => {},
      log: silent,
    }),
    log: silent,
  });
  await died.promise;
  expect((await p.deliveries()).length).toBeGreaterThanOrEqual(30 * agents.length);
  expect(await p.backlog()).toBeGreaterThanOrEqual(250);
  await p.startFanout();
  await expectAllOnce(p, 300);
});

test("fan-out goes on by itself when the broker was killed and came back", async () => {
  await using p = await withAgents();
  await p.startIngest();
  await p.startFanout();
  await p.startFanout();
  await publishMany(p, 500);
  await p.broker.kill();
  await p.broker.start();
  await eventually(() => publishMany(p, 1_000).then(() => true, () => false), "a broker that takes events", 60_000);
  await p.announce.gone("interest.ten_a.agt_9.int_9");
  await expectAllOnce(p, 1_000);
}, 90_000);

test("a fan-out that is stopped gives back what it has not begun, at once", async () => {
  await using p = await withAgents();
  await p.startIngest();
  const first = await p.startFanout();
  await publishMany(p, 1_000);
  await Promise.all([first[Symbol.asyncDispose](), p.startFanout()]);
  await expectAllOnce(p, 1_000);
});

test("an event that cannot be read goes to the tenant's dead letters, however long those are away", async () => {
  await using p = await withAgents();
  await p.startIngest();
  await p.startFanout();
  await publishMany(p, 100);
  p.nc.publish(subjects.event("ten_a"), "this is no event");
  await p.nc.flush();
  await p.publish("x", { id: "after" });
  // What stands behind it is not held up.
  await eventually(async () => (await p.deliveries()).length === 101 * agents.length, "all other deliveries");
  expect(await p.backlog()).toBe(1);
  const letters: unknown[] = [];
  p.nc.subscribe(subjects.request("delivery.bury"), {
    callback: (_, msg) => {
      letters.push(msg.json<{ body: unknown }>().body);
      msg.respond(JSON.stringify({ delivery_id: "dlv_1" }));
    },
  });
  await eventually(async () => await p.backlog() === 0, "the event to be buried");
  expect(letters).toEqual([expect.objectContaining({ tenant: "ten_a", seq: 101, reason: expect.any(String) })]);
});

test("a replay is matched anew for its agent, and an event of another tenant is not found", async () => {
  await using p = await withAgents();
  await p.startIngest();
  await p.startFanout();
  await p.publish("com.shop.order", { data: { total: 5 } });
  const match = (tenant: string, seq: number) =>
    p.ask("fanout.match", { body: { tenant, agent: "agt_1", seq } }, { kind: "service", name: "test" } as never);
  expect(await match("ten_a", 1)).toEqual({ matched: [{ interest_id: "int_agt_1" }], priority: 0, enrichment: "none" });
  await p.announce.interest("agt_1", "int_agt_1", "com.*", {
    filter_expression: "data.total == 5",
    priority: 3,
    enrichment_depth: "full",
  });
  expect(await match("ten_a", 1)).toEqual({ matched: [{ interest_id: "int_agt_1" }], priority: 3, enrichment: "full" });
  await expect(match("ten_b", 1)).rejects.toMatchObject({ code: "not_found" });
  await expect(match("ten_a", 99)).rejects.toMatchObject({ code: "not_found" });
});

test(
  "what an agent has acknowledged does not come again after the broker was killed, beyond what was in flight",
  async () => {
    await using p = await withAgents();
    await p.startIngest();
    await p.startFanout();
    await p.startFanout();
    await using bus = await connectBus(p.broker.url, "agents", silent);
    await using stack = new AsyncDisposableStack();
    const places = new Map<string, Set<number>>();
    for (let shard = 0; shard < SHARDS; shard++) {
      stack.use(
        await consume({
          nc: bus.nc,
          consumer: { stream: deliveryStreamName(shard), name: "agents", ackWaitMs: 30_000, maxInHand: 1_000 },
          batch: 50,
          work: async (batch) =>
            batch.map(({ body, subject, seq: place }) => {
              const { seq } = JSON.parse(new TextDecoder().decode(body)) as QueuedDelivery;
              const name = `${seq} ${parseDelivery(subject)!.agent}`;
              places.set(name, (places.get(name) ?? new Set()).add(place));
              return "done" as const;
            }),
          log: silent,
        }),
      );
    }
    const inFlight = 16;
    const kills = 2;
    let accepted = 0;
    let isOver = false;
    const publishing = Array.from({ length: inFlight }, async (_, publisher) => {
      for (let i = 0; !isOver; i++) {
        const publish = () => p.publish("x", { id: `event-${publisher}-${i}` }).then(() => true, () => false);
        await eventually(publish, "an accepted event", 60_000);
        accepted++;
      }
    });
    for (let kill = 0; kill < kills; kill++) {
      const before = accepted;
      await eventually(() => accepted > before + 1_000, "a thousand more events", 60_000);
      await p.broker.kill();
      await p.broker.start();
    }
    isOver = true;
    await Promise.all(publishing);
    await eventually(() => places.size === accepted * agents.length, "all deliveries", 60_000);
    await eventually(async () => await p.backlog() === 0, "an empty backlog", 60_000);
    const doubled = new Set([...places].filter(([, at]) => at.size > 1).map(([name]) => name.split(" ")[0]));
    expect(doubled.size).toBeLessThanOrEqual(kills * inFlight);
  },
  180_000,
);
