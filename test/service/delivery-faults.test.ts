/** What an agent can rely on while something is away. */
import { type AddressInfo, connect, createServer, type Socket } from "node:net";
import { expect, test } from "vitest";
import { createLog } from "../../runtime/log.ts";
import { eventually } from "../support/eventually.ts";
import { freshDatabase } from "../support/servers.ts";
import { post, type TestAgent } from "./support.ts";

const totalOf = async (agent: TestAgent) => (await agent.ask("delivery.dead_letters", { query: {} })).total;

test("without Postgres agents poll and acknowledge, and dead letters wait for it", async () => {
  const lines: string[] = [];
  await using database = await interruptible();
  await using p = await post({ maxAttempts: 1, database, log: createLog({ write: (line) => lines.push(line) }) });
  const [agent, other] = [p.agent(), p.agent()];
  await p.send([agent]);
  const [first] = await agent.poll();
  expect(await agent.ack([first!.id])).toBe(1);

  await database.away();
  await p.send([agent]);
  const [lost] = await agent.poll(10, 5);
  await p.send([other]);
  const [fine] = await other.poll(10, 5);
  expect(await other.ack([fine!.id])).toBe(1);
  await eventually(() => lines.some((line) => line.includes("dead_letters.delayed")), "the delivery to die");
  expect(await agent.poll()).toEqual([]);

  await database.back();
  await eventually(async () => await totalOf(agent).catch(() => 0) === 1, "the dead letter", 30_000);
  expect(await agent.ack([lost!.id])).toBe(0);
}, 60_000);

test("a replica started without Postgres serves, and keeps dead letters once it is back", async () => {
  await using database = await interruptible();
  await database.away();
  await using p = await post({ maxAttempts: 1, database });
  const agent = p.agent();
  await p.send([agent]);
  expect(await agent.poll(10, 5)).toHaveLength(1);
  await database.back();
  await eventually(async () => await totalOf(agent).catch(() => 0) === 1, "the dead letter", 30_000);
}, 60_000);

test("a stopping replica gives up its waits, and another one serves on", async () => {
  await using p = await post();
  const second = await p.replica();
  const agents = Array.from({ length: 20 }, () => p.agent());
  const waiting = agents.map((agent) => agent.poll(10, 20));
  // Whatever replica a wait has landed on, its agent gets the event in the end.
  await second[Symbol.asyncDispose]();
  const event = await p.send(agents);
  const got = await Promise.all(waiting);
  for (const [n, agent] of agents.entries()) {
    const deliveries = got[n]!.length > 0 ? got[n]! : await agent.poll(10, 10);
    expect(deliveries.map((d) => d.event_id)).toEqual([event.id]);
  }
}, 60_000);

test("deliveries, leases and ids outlive a kill of the broker", async () => {
  await using p = await post({ replicas: 2, visibilitySeconds: 3 });
  const agent = p.agent();
  for (let n = 0; n < 20; n++) await p.send([agent]);
  const got = await agent.poll(10);
  const ids = got.map((d) => d.id);
  expect(await agent.ack(ids.slice(0, 5))).toBe(5);
  await p.broker.kill();
  await p.broker.start();
  const acknowledged = new Set(ids.slice(0, 5));
  expect(await eventually(() => agent.ack(ids).then((n) => `${n}`, () => undefined), "the broker", 30_000)).toBe("5");
  ids.forEach((id) => acknowledged.add(id));
  const later: string[] = [];
  await eventually(
    async () => {
      const more = await agent.poll(20).catch(() => []);
      expect(more.filter((d) => acknowledged.has(d.id))).toEqual([]);
      if (more.length > 0) later.push(...more.map((d) => d.id));
      for (const { id } of more) await agent.ack([id]);
      return later.length === 10;
    },
    "the other ten",
    30_000,
  );
}, 90_000);

/** A database that can be taken away from everyone who uses it, and given back. */
async function interruptible(): Promise<
  { url: string; away(): Promise<void>; back(): Promise<void> } & AsyncDisposable
> {
  const database = await freshDatabase();
  const target = new URL(database.url);
  const open = new Set<Socket>();
  const server = createServer((from) => {
    const to = connect(Number(target.port), target.hostname);
    for (const [socket, other] of [[from, to], [to, from]] as const) {
      open.add(socket);
      socket.on("error", () => {}).on("close", () => (open.delete(socket), other.destroy())).pipe(other);
    }
  });
  const back = (port = 0) => new Promise<void>((done) => server.listen(port, "127.0.0.1", done));
  const away = () => {
    for (const socket of open) socket.destroy();
    return new Promise<void>((done) => server.close(() => done()));
  };
  await back();
  const url = new URL(database.url);
  const { port } = server.address() as AddressInfo;
  url.port = String(port);
  return {
    url: url.href,
    away,
    back: () => back(port),
    async [Symbol.asyncDispose]() {
      await away();
      await database[Symbol.asyncDispose]();
    },
  };
}
