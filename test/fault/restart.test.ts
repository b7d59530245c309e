/** Everything stops at once, servers included, and is started again on the same data. */
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import process from "node:process";
import { expect, test } from "vitest";
import { type Client, client } from "../../contracts/client.ts";
import type { Delivery } from "../../contracts/deliveries.ts";
import { eventually } from "../support/eventually.ts";
import { bootstrapOf, instance, type TestInstance } from "../support/instance.ts";
import { temporaryFolder } from "../support/servers.ts";

const VISIBILITY_MS = 5_000;
const env = { VISIBILITY_TIMEOUT_SECONDS: String(VISIBILITY_MS / 1_000), MAX_DELIVERY_ATTEMPTS: "2" };
/** The broker writes the ends of leases down in whole seconds. */
const EARLY_MS = 1_050;

test.concurrent.each(["SIGTERM", "SIGKILL"] as const)(
  "attempts, leases, dead letters and acknowledgements outlive a %s of everything",
  async (signal) => {
    await using folder = await temporaryFolder();
    await using running = { current: await instance(folder.path, { env }), [Symbol.asyncDispose]: () => stop(running) };
    const { agent_key, agent_id } = await bootstrapOf(folder.path);
    const token = await client(running.current.baseUrl)("auth.token", { body: { api_key: agent_key! } });
    let call: Client = client(running.current.baseUrl, token.access_token);
    const restart = async () => {
      await endAll(running.current, folder.path, signal);
      running.current = await instance(folder.path, { env });
      // The token of before is as good as it was.
      call = client(running.current.baseUrl, token.access_token);
    };
    const publish = (id: string) =>
      call("events.publish", { body: { specversion: "1.0", type: "com.restart.made", source: "urn:test", id } });
    const poll = async (limit: number, wait = 0) =>
      (await call("delivery.poll", { query: { limit, wait } })).deliveries as Delivery[];
    const taken = async (id: string) => {
      await publish(id);
      const [delivery] = await poll(1, 20);
      expect([delivery?.event_id, delivery?.attempt_count]).toEqual([id, 1]);
      return delivery!.id;
    };

    await call("interests.create", {
      path: { id: agent_id! },
      body: { event_type: "com.restart.*", priority: 0, enrichment_depth: "none" },
    });
    const rejected = await taken("rejected");
    await call("delivery.reject", { body: { delivery_ids: [rejected], reason: "no use" } });
    const acknowledged = await taken("acknowledged");
    expect(await call("delivery.ack", { body: { delivery_ids: [acknowledged] } })).toEqual({ acknowledged: 1 });
    const extended = await taken("extended");
    await call("delivery.extend", { body: { delivery_ids: [extended], seconds: 600 } });
    const leasedAt = performance.now();
    const leased = await taken("leased");
    await publish("queued");

    await restart();
    expect(await publish("acknowledged")).toEqual({ event_id: "acknowledged", status: "duplicate" });
    // A broker that is killed may have forgotten the last few it handed out: they come again, under the same number.
    const forgetful = signal === "SIGKILL";
    const seen = new Map<string, number>();
    await eventually(
      async () => {
        for (const { id, event_id, attempt_count } of await poll(10, 1)) {
          if (event_id === "leased" && !forgetful) {
            expect(performance.now()).toBeGreaterThan(leasedAt + VISIBILITY_MS - EARLY_MS);
          }
          if (event_id === "leased" && attempt_count === 1) expect(forgetful).toBe(true);
          if (event_id === "leased") expect(id).toBe(leased);
          if (event_id === "extended") expect(forgetful).toBe(true);
          expect(["leased", "queued", ...(forgetful ? ["extended"] : [])]).toContain(event_id);
          seen.set(event_id, attempt_count);
          if (event_id === "queued") expect(attempt_count).toBe(1);
          if (event_id !== "leased") {
            expect(await call("delivery.ack", { body: { delivery_ids: [id] } })).toEqual({ acknowledged: 1 });
          }
        }
        return seen.get("leased") === 2 && seen.has("queued");
      },
      "the second attempt",
      60_000,
    );
    expect(await call("delivery.ack", { body: { delivery_ids: [extended] } })).toEqual({
      acknowledged: seen.has("extended") ? 0 : 1,
    });
    expect(await call("delivery.ack", { body: { delivery_ids: [extended, acknowledged] } })).toEqual({
      acknowledged: 0,
    });

    // The last attempt runs out with nobody polling, whoever was there when it was handed out.
    await restart();
    const letters = await eventually(
      async () => {
        const { dlq_items } = await call("delivery.dead_letters", { query: {} });
        return dlq_items.length >= 2 && dlq_items;
      },
      "the dead letter",
      60_000,
    );
    expect(letters.map(({ delivery_id, attempt_count }) => [delivery_id, attempt_count])).toEqual([
      [leased, 2],
      [rejected, 1],
    ]);
    const recent = await call("delivery.recent", { path: { id: agent_id! }, query: {} });
    expect(recent.events.map(({ event_id }) => event_id).sort()).toEqual(["acknowledged", "extended", "queued"]);
    expect(await poll(10, 1)).toEqual([]);

    const replay = () =>
      call("delivery.replay", { path: { id: leased } }, { idempotencyKey: "once" }) as Promise<unknown>;
    const first = await replay();
    await restart();
    expect(await replay()).toEqual(first);
    const again = await poll(10, 20);
    expect(again.map(({ id, attempt_count }) => [id, attempt_count])).toEqual([[leased, 1]]);
    expect(await call("delivery.ack", { body: { delivery_ids: [leased] } })).toEqual({ acknowledged: 1 });
  },
  180_000,
);

const stop = async (running: { current: TestInstance }): Promise<void> => void await running.current.stop();

async function endAll({ process: node, stop }: TestInstance, dataDir: string, signal: NodeJS.Signals): Promise<void> {
  if (signal === "SIGTERM") return void await stop();
  const servers = await Promise.all(["nats", "postgres"].map(async (name) => {
    const { child } = JSON.parse(await readFile(join(dataDir, `${name}.lock`), "utf8")) as { child: { pid: number } };
    return child.pid;
  }));
  // All before any of them can put its things in order.
  for (const pid of [...servers, node.pid!]) process.kill(pid, "SIGKILL");
  await stop("SIGKILL");
}
