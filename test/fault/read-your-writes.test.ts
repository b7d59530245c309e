/** An interest counts from the moment its answer comes, for whoever publishes next, wherever. */
import { expect, test } from "vitest";
import { eventually } from "../support/eventually.ts";
import { world } from "../support/world.ts";

const isLong = process.env.FAULTS === "long";
const ROUNDS = Number(process.env.READ_YOUR_WRITES_ROUNDS ?? (isLong ? 1_000 : 40));
const LANES = 4;

test(
  `${ROUNDS} times, an interest made here is matched by the next event published there, and a deleted one is not`,
  async () => {
    await using w = await world({
      services: ["registry", "delivery", "fanout", "ingest"],
      replicas: 2,
      gateways: 2,
      env: { RATE_LIMIT_AGENT_PER_MINUTE: "0", RATE_LIMIT_TENANT_PER_MINUTE: "0" },
    });
    const tenant = await w.tenant();
    const [agent, sender] = [await tenant.agent(), await tenant.agent()];
    const publish = async (type: string, id: string) => {
      const body = { specversion: "1.0", type, source: "urn:test", id };
      expect((await w.request("POST", "/events", { token: sender.token, body }, 1)).status).toBe(202);
    };
    let next = 0;
    const writing = Array.from({ length: LANES }, async () => {
      while (next < ROUNDS) {
        const round = next++;
        const type = `com.round${round}`;
        const { id } = await agent.call("interests.create", {
          path: { id: agent.id },
          body: { event_type: type, priority: 0, enrichment_depth: "none" },
        });
        await publish(type, `with-${round}`);
        await agent.call("interests.delete", { path: { id: agent.id, interest_id: id } });
        await publish(type, `without-${round}`);
      }
    });

    const seen: string[] = [];
    const isWritten = Promise.all(writing).then(async () => {
      // Comes after all others of its publisher, so when it is here the ones that do not come never will.
      await agent.call("interests.create", {
        path: { id: agent.id },
        body: { event_type: "com.last", priority: 0, enrichment_depth: "none" },
      });
      await publish("com.last", "last");
    });
    await Promise.all([
      isWritten,
      eventually(
        async () => {
          const { deliveries } = await agent.call("delivery.poll", { query: { limit: 100, wait: 1 } });
          if (deliveries.length === 0) return seen.includes("last") && seen.length >= ROUNDS + 1;
          seen.push(...deliveries.map(({ event_id }) => event_id));
          await agent.call("delivery.ack", { body: { delivery_ids: deliveries.map(({ id }) => id) } });
        },
        `${ROUNDS} deliveries`,
        60_000 + ROUNDS * 200,
      ).catch((error) => expect([String(error), seen.length]).toEqual([])),
    ]);
    const expected = Array.from({ length: ROUNDS }, (_, round) => `with-${round}`);
    expect([...new Set(seen)].sort()).toEqual([...expected, "last"].sort());
  },
  isLong ? 600_000 : 90_000,
);
