/** A running instance is backed up, destroyed and restored; what was promised before the backup still holds. */
import { readFile, rm } from "node:fs/promises";
import { join } from "node:path";
import { expect, test } from "vitest";
import { client } from "../../contracts/client.ts";
import { runCommand } from "../../ops/program.ts";
import { connectBus } from "../../runtime/bus.ts";
import { silent } from "../../runtime/log.ts";
import { eventually } from "../support/eventually.ts";
import { instance } from "../support/instance.ts";
import { interested } from "../support/interested.ts";
import { temporaryFolder } from "../support/servers.ts";
import { operated, type TestAgent } from "../support/world.ts";

async function ops(env: Record<string, string>, ...args: string[]) {
  let [stdout, stderr] = ["", ""];
  const code = await runCommand(args, {
    env,
    print: (line) => stdout += `${line}\n`,
    complain: (line) => stderr += `${line}\n`,
    input: () => Promise.reject(new Error("nobody is asked")),
  });
  return { code, stdout, stderr };
}
const done = { code: 0, stderr: "" };
const event = (id: string) => ({ specversion: "1.0" as const, type: "com.shop.order.created", source: "/shop", id });
const memory = (content: string) => ({ type: "semantic" as const, scope: "agent" as const, title: "Kitchen", content });

/** What clients were told, and when: everything that was answered before a moment holds for good. */
function clients(agents: readonly TestAgent[]) {
  const accepted = new Map<string, number>();
  const acknowledged = new Map(agents.map(({ id }) => [id, new Map<string, number>()]));
  const stop = { asked: false };
  const unlessStopped = (error: unknown) => {
    if (!stop.asked) throw error;
  };
  const publish = async (lane: number) => {
    for (let n = 0; !stop.asked; n++) {
      const id = `${lane}-${n}`;
      await agents[0]!.call("events.publish", { body: event(id) });
      accepted.set(id, performance.now());
    }
  };
  /** Every third is left alone, and comes again. */
  const receive = async ({ id, call }: TestAgent) => {
    while (!stop.asked) {
      const { deliveries } = await call("delivery.poll", { query: { wait: 1, limit: 10 } });
      const taken = deliveries.filter(({ event_id }) => Number(event_id.split("-")[1]) % 3 > 0);
      if (taken.length === 0) continue;
      await call("delivery.ack", { body: { delivery_ids: taken.map(({ id }) => id) } });
      for (const { event_id } of taken) acknowledged.get(id)!.set(event_id, performance.now());
    }
  };
  const remember = async ({ call }: TestAgent) => {
    for (let n = 0; !stop.asked; n++) await call("memories.create", { body: memory(`Kettle number ${n} whistles`) });
  };
  const running = Promise.all([
    ...[1, 2, 3].map((lane) => publish(lane).catch(unlessStopped)),
    ...agents.map((agent) => receive(agent).catch(unlessStopped)),
    remember(agents[0]!).catch(unlessStopped),
  ]);
  running.catch(() => {});
  return {
    accepted,
    acceptedBefore: (moment: number) => [...accepted].filter(([, at]) => at < moment).map(([id]) => id),
    acknowledgedBefore: (moment: number, agent: string) =>
      new Set([...acknowledged.get(agent)!].filter(([, at]) => at < moment).map(([id]) => id)),
    more: (count: number) => {
      const wanted = accepted.size + count;
      return Promise.race([eventually(() => accepted.size >= wanted, `${count} more events`, 30_000), running]);
    },
    async end() {
      stop.asked = true;
      await running;
    },
    leave: () => void (stop.asked = true),
  };
}

test("an instance backed up under load and then destroyed comes back with all it had promised by then", async () => {
  await using folder = await temporaryFolder();
  const [before, after, backup] = ["before", "after", "backup"].map((name) => join(folder.path, name)) as [
    string,
    string,
    string,
  ];
  const settings = { VISIBILITY_TIMEOUT_SECONDS: "3", MAX_DELIVERY_ATTEMPTS: "90", DELIVERY_SHARDS: "4" };
  await using first = await instance(before, { env: settings });
  const { nats_url } = JSON.parse(await readFile(join(before, "instance.json"), "utf8"));
  const bus = await connectBus(nats_url, "test", silent);
  const tenant = await operated(bus, [first.baseUrl]).tenant();
  const agents = [await interested(tenant, "com.shop.*"), await interested(tenant, "com.*.created")];
  const [one] = agents as [TestAgent, TestAgent];

  await one.call("events.publish", { body: event("refused") });
  const refused = await eventually(
    async () => (await one.call("delivery.poll", { query: { wait: 1 } })).deliveries[0],
    "the first delivery",
  );
  await one.call("delivery.reject", { body: { delivery_ids: [refused.id], reason: "not ours" } });
  const keyed = { body: memory("The copper kettle is for guests") };
  const remembered = await one.call("memories.create", keyed, { idempotencyKey: "guests" });
  await bus[Symbol.asyncDispose]();

  const load = clients(agents);
  await load.more(150);
  const beganAt = performance.now();
  expect(await ops({ DATA_DIR: before }, "backup", backup)).toMatchObject(done);
  const endedAt = performance.now();
  await load.more(100);
  load.leave();
  await first.stop("SIGKILL");
  await load.end();
  await rm(before, { recursive: true, maxRetries: 10, retryDelay: 100 });

  expect(await ops({ DATA_DIR: after }, "restore", backup)).toMatchObject(done);
  await using second = await instance(after, { env: settings });
  const callOf = ({ token }: TestAgent) => client(second.baseUrl, token);
  const call = callOf(one);
  await call("events.publish", { body: event("afterwards-1") });
  const promised = load.acceptedBefore(beganAt);
  for (const agent of agents) {
    const acknowledged = load.acknowledgedBefore(beganAt, agent.id);
    // What was acknowledged while the backup was taken may be in it, or not.
    const ended = load.acknowledgedBefore(endedAt, agent.id);
    const missing = new Set(["afterwards-1", ...promised.filter((id) => !ended.has(id))]);
    const again: string[] = [];
    const isEmpty = async () => {
      const { deliveries } = await callOf(agent)("delivery.poll", { query: { wait: 1, limit: 100 } });
      if (deliveries.length === 0) return missing.size === 0;
      for (const { event_id, payload } of deliveries) {
        expect(payload.id).toBe(event_id);
        missing.delete(event_id);
        if (acknowledged.has(event_id)) again.push(event_id);
      }
      await callOf(agent)("delivery.ack", { body: { delivery_ids: deliveries.map(({ id }) => id) } });
      return false;
    };
    await eventually(isEmpty, `everything promised to ${agent.id}`, 60_000).catch(() => {});
    expect({ missing: [...missing], again }).toEqual({ missing: [], again: [] });
    expect(acknowledged.size).toBeGreaterThan(0);
  }

  for (const id of ["refused", ...promised.slice(-5)]) {
    expect(await call("events.publish", { body: event(id) }), id).toMatchObject({ status: "duplicate" });
  }
  const { dlq_items } = await call("delivery.dead_letters", { query: {} });
  expect(dlq_items).toMatchObject([{ delivery_id: refused.id, dlq_reason: "not ours", payload: { id: "refused" } }]);
  expect(await call("memories.create", keyed, { idempotencyKey: "guests" })).toEqual(remembered);
  const { results } = await call("memories.search", { body: { query: "which kettle do visitors get?" } });
  expect(results.map(({ memory }) => memory.id)).toContain(remembered.id);
  const anew = await client(second.baseUrl)("auth.token", { body: { api_key: one.key } });
  const { interests } = await client(second.baseUrl, anew.access_token)("interests.list", { path: { id: one.id } });
  expect(interests.map(({ event_type }) => event_type)).toEqual(["com.shop.*"]);
}, 240_000);
