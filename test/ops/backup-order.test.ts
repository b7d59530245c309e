/** What happens between the copies of a backup, and what a restore refuses; on servers that are not embedded. */
import { cp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { jetstreamManager } from "@nats-io/jetstream";
import type { NatsConnection } from "@nats-io/nats-core";
import { afterAll, beforeAll, expect, test } from "vitest";
import { client } from "../../contracts/client.ts";
import type { Memory } from "../../contracts/memory.ts";
import { buckets, consumers, fannedStream } from "../../contracts/streams.ts";
import { routeKeys } from "../../contracts/subjects.ts";
import { Manifest, writeManifest } from "../../ops/backup/archive.ts";
import { takeBackup } from "../../ops/backup/backup.ts";
import { isLeftOut } from "../../ops/backup/order.ts";
import { openForCopy } from "../../ops/backup/tables.ts";
import { runCommand } from "../../ops/program.ts";
import { isLive, openBucket } from "../../runtime/buckets.ts";
import { connectBus } from "../../runtime/bus.ts";
import { silent } from "../../runtime/log.ts";
import { eventually } from "../support/eventually.ts";
import { interested } from "../support/interested.ts";
import { startGateway, startService } from "../support/processes.ts";
import { broker, freshDatabase, temporaryFolder } from "../support/servers.ts";
import { type TestAgent, type TestTenant, type World, world } from "../support/world.ts";

const services = ["registry", "delivery", "fanout", "ingest", "memory", "connector"] as const;
const event = (id: string) => ({ specversion: "1.0" as const, type: "com.shop.order.created", source: "/shop", id });
const query = { wait: 1, limit: 50 };

let w: World;
let tenant: TestTenant;
let agent: TestAgent;
let quiet: TestAgent;
let late: TestAgent;
let folder: Awaited<ReturnType<typeof temporaryFolder>>;
let backup: string;
let memory: Memory;

/** Deliveries that the agent has been handed, by their event. */
const handed = new Map<string, string>();
const received = (id: string) =>
  eventually(async () => {
    if (handed.has(id)) return handed.get(id);
    const { deliveries } = await agent.call("delivery.poll", { query });
    for (const { event_id, id } of deliveries) handed.set(event_id, id);
  }, `the delivery of ${id}`);

const fannedOut = async () => {
  const manager = await jetstreamManager(w.bus.nc);
  await eventually(async () => {
    const { num_pending, num_ack_pending } = await manager.consumers.info(
      consumers.fanout.stream,
      consumers.fanout.name,
    );
    return num_pending + num_ack_pending === 0;
  }, "the end of fan-out");
};

/** Does something when the broker is about to be asked for the copy of a stream. */
const pausing = (nc: NatsConnection, pauses: Readonly<Record<string, () => Promise<unknown>>>): NatsConnection =>
  new Proxy(nc, {
    get(target, key) {
      const value = Reflect.get(target, key);
      if (typeof value !== "function") return value;
      if (key !== "request") return value.bind(target);
      return async (...args: Parameters<NatsConnection["request"]>) => {
        await pauses[/^\$JS\.API\.STREAM\.SNAPSHOT\.(.+)$/.exec(args[0])?.[1] ?? ""]?.();
        return await target.request(...args);
      };
    },
  });

beforeAll(async () => {
  w = await world({ services });
  folder = await temporaryFolder();
  backup = join(folder.path, "backup");
  tenant = await w.tenant();
  agent = await interested(tenant, "com.shop.*");
  quiet = await interested(tenant, "com.shop.*");
  const refuse = async (id: string) => {
    await agent.call("delivery.reject", { body: { delivery_ids: [await received(id)], reason: "unwanted" } });
  };
  for (const id of ["ended", "queued", "refused-later", "replayed-later"]) {
    await agent.call("events.publish", { body: event(id) });
  }
  await agent.call("delivery.ack", { body: { delivery_ids: [await received("ended")] } });
  await refuse("replayed-later");
  const large = {
    type: "semantic" as const,
    scope: "agent" as const,
    title: "Large",
    content: "Tea",
    metadata: { leaves: "x".repeat(200_000) },
  };
  memory = await agent.call("memories.create", { body: large });
  const { dlq_items: [letter] } = await agent.call("delivery.dead_letters", { query: {} });

  const sql = openForCopy(w.env.DATABASE_URL!);
  await takeBackup({
    nc: pausing(w.bus.nc, {
      // Before a single event is copied one more comes, and is dealt with by fan-out.
      EVENTS: async () => {
        await agent.call("events.publish", { body: event("just-before") });
        await fannedOut();
      },
      // Events are copied, queues are not yet.
      "DELIVERIES-0": async () => {
        await agent.call("events.publish", { body: event("unpromised") });
        await received("unpromised");
      },
      // Queues are copied, what has died in them and Postgres are not yet.
      EXPIRY: async () => {
        await refuse("refused-later");
        await agent.call("delivery.replay", { path: { id: letter!.delivery_id } });
        late = await interested(tenant, "com.*.created");
        await agent.call("events.publish", { body: event("keyed") }, { idempotencyKey: "once" });
      },
    }),
    sql,
    folder: backup,
    serverSecret: w.env.SERVER_SECRET!,
    own: new Map(),
    say: () => {},
  });
  await sql.end();
}, 60_000);
afterAll(async () => {
  await w?.[Symbol.asyncDispose]();
  await folder?.[Symbol.asyncDispose]();
});

async function ops(env: Record<string, string>, ...args: string[]) {
  let [stdout, stderr] = ["", ""];
  const code = await runCommand(args, {
    env: { SERVER_SECRET: w.env.SERVER_SECRET!, DATA_DIR: join(folder.path, "none"), ...env },
    print: (line) => stdout += `${line}\n`,
    complain: (line) => stderr += `${line}\n`,
    input: () => Promise.reject(new Error("nobody is asked")),
  });
  return { code, stdout, stderr };
}

test("every stream is in the backup, or left out for a reason", async () => {
  const manager = await jetstreamManager(w.bus.nc);
  const present = await Array.fromAsync(manager.streams.list(), ({ config }) => config.name);
  const manifest = JSON.parse(await readFile(join(backup, "manifest.json"), "utf8"));
  const copied: string[] = manifest.streams.map(({ name }: { name: string }) => name);
  expect([...copied, ...present.filter(isLeftOut)].sort()).toEqual(present.sort());
});

test(
  "what died, was replayed or was registered between the copies is there after a restore, and no event is taken for another",
  async () => {
    await using stack = new AsyncDisposableStack();
    const nats = stack.use(await broker());
    const database = stack.use(await freshDatabase());
    const env = { ...w.env, NATS_URL: nats.url, DATABASE_URL: database.url };
    expect(await ops(env, "restore", backup)).toMatchObject({
      code: 0,
      stderr: "",
      stdout: expect.stringContaining("restart nats-server"),
    });
    expect(await ops(env, "restore", backup), "a second time").toMatchObject({
      code: 1,
      stderr: expect.stringMatching(
        /^A backup is restored into empty servers only, and here table [\w.]+ has rows/,
      ),
    });
    {
      await using bus = await connectBus(nats.url, "test", silent);
      const routes = await openBucket(bus.nc, buckets.routes);
      expect(isLive(await routes.get(routeKeys.agent(tenant.id, late.id))), "known before anyone routes events").toBe(
        true,
      );
      // What a restore finds that comes later than these notes are kept.
      await (await jetstreamManager(bus.nc)).streams.purge(fannedStream.name);
    }
    // As the command says: ids from before are recognised from the broker's next start on.
    await nats.kill();
    await nats.start();
    for (const service of services) stack.use(await startService(service, env));
    const { url } = stack.use(await startGateway(env));

    const call = client(url, agent.token);
    expect(await call("memories.get", { path: memory })).toEqual(memory);
    const { dlq_items } = await call("delivery.dead_letters", { query: {} });
    expect(dlq_items.map(({ event_id }) => event_id).sort()).toEqual(["refused-later", "replayed-later"]);

    expect(await call("events.publish", { body: event("queued") })).toMatchObject({ status: "duplicate" });
    const news = ["new-1", "new-2", "new-3"];
    for (const id of news) await call("events.publish", { body: event(id) });
    // Its first answer came after answers were copied, so the event is not in the backup, and neither is the answer.
    await call("events.publish", { body: event("keyed") }, { idempotencyKey: "once" });
    const inBackup = ["queued", "refused-later", "replayed-later", "just-before"];
    const expected = new Map([[agent, news], [late, news], [quiet, ["ended", ...inBackup, "keyed", ...news]]]);
    for (const [{ token }, ids] of expected) {
      const missing = new Set(ids);
      await eventually(async () => {
        const { deliveries } = await client(url, token)("delivery.poll", { query });
        for (const { event_id, payload } of deliveries) {
          expect(payload.id).toBe(event_id);
          expect(token === agent.token && event_id === "ended", "acknowledged before the backup").toBe(false);
          missing.delete(event_id);
        }
        return missing.size === 0;
      }, `all of ${ids}`);
    }
  },
  60_000,
);

test("a restore says why it refuses, and touches nothing", async () => {
  await using nats = await broker();
  await using database = await freshDatabase();
  const env = { NATS_URL: nats.url, DATABASE_URL: database.url };
  const other = join(folder.path, "other");
  const changed = async (change: () => Promise<unknown>, more: Record<string, string> = {}) => {
    await rm(other, { recursive: true, force: true });
    await cp(backup, other, { recursive: true });
    await change();
    const { code, stderr } = await ops({ ...env, ...more }, "restore", other);
    expect(code).toBe(1);
    return stderr.trim();
  };
  const edit = (file: string, edited: (text: string) => string) => async () => {
    const path = join(other, file);
    await writeFile(path, edited(await readFile(path, "latin1")), "latin1");
  };
  const says = (more: Partial<Manifest>) => async () =>
    await writeManifest(other, {
      ...Manifest.parse(JSON.parse(await readFile(join(other, "manifest.json"), "utf8"))),
      ...more,
    });
  const table = "postgres/registry.agents.copy.gz";

  expect(await changed(edit(table, (text) => text.slice(0, -1)))).toMatch(/damaged: .*registry\.agents\.copy\.gz/);
  expect(await changed(edit("streams/EVENTS", (text) => `${text.slice(0, -1)}?`))).toMatch(/damaged: .*EVENTS/);
  expect(await changed(edit("manifest.json", (text) => text.replace('"rows": 2', '"rows": 3')))).toMatch(
    /damaged: .*manifest\.json/,
  );
  expect(await changed(() => rm(join(other, "manifest.json")))).toMatch(/no manifest\.json: .* not finished/);
  expect(await changed(edit("manifest.json", (text) => text.replace('"format": 1', '"format": 2')))).toMatch(
    /has format 2, and release .* reads up to 1/,
  );
  expect(await changed(says({ release: "99.0.0" }))).toMatch(/made by release 99\.0\.0, and this is/);
  expect(await changed(says({ nats: "99.0.0" }))).toMatch(/copied from nats-server 99\.0\.0, and this is/);
  expect(await changed(() => Promise.resolve(), { SERVER_SECRET: "another secret of the same sufficient length" }))
    .toMatch(/another SERVER_SECRET/);
  expect(await changed(() => Promise.resolve(), { SERVER_SECRET: "" })).toMatch(/Set SERVER_SECRET/);
  expect(await ops({ ...env }, "restore", backup, "--check")).toMatchObject({
    code: 0,
    stdout: expect.stringMatching(/^\d+ rows of \d+ tables and \d+ messages of \d+ streams .* whole/),
  });
  expect(await ops({ ...env, DATABASE_URL: "", DATA_DIR: folder.path }, "restore", backup)).toMatchObject({
    code: 1,
    stderr: expect.stringContaining("is not empty"),
  });
  expect(await ops(env, "restore", backup), "after all that, the servers are still empty").toMatchObject({ code: 0 });
}, 60_000);

test("a backup goes into a folder of its own, and says which instance it cannot find", async () => {
  const env = { NATS_URL: w.env.NATS_URL!, DATABASE_URL: w.env.DATABASE_URL! };
  expect(await ops(env, "backup", backup)).toMatchObject({ code: 1, stderr: expect.stringContaining("is not empty") });
  const elsewhere = join(folder.path, "elsewhere");
  expect(await ops({}, "backup", elsewhere)).toMatchObject({
    code: 1,
    stderr: expect.stringMatching(/^No instance runs/),
  });
  expect(await ops({ ...env, SERVER_SECRET: "x".repeat(40) }, "backup", elsewhere)).toMatchObject({
    code: 1,
    stderr: expect.stringContaining("another SERVER_SECRET"),
  });
  expect(await readdir(folder.path)).not.toContain("elsewhere");
  expect(await ops(env, "backup", elsewhere, "--json")).toMatchObject({ code: 0 });
});
