/** A deploy that nobody notices. */
import { expect, test } from "vitest";
import { fleet, isFull } from "../support/fleet.ts";
import { startLoad } from "../support/load.ts";
import { interested } from "../support/interested.ts";

test("processes are restarted in turn at 200 events a second, and every request is answered 2xx", async () => {
  await using system = await fleet({
    replicas: 2,
    programs: ["registry", "delivery", "fanout", "ingest", ...(isFull ? ["memory" as const] : []), "gateway"],
    // Long enough for the balancer of these clients to notice; see `test/support/load.ts`.
    env: { DRAIN_NOTICE_SECONDS: "1", RATE_LIMIT_AGENT_PER_MINUTE: "0", RATE_LIMIT_TENANT_PER_MINUTE: "0" },
  });
  const tenant = await system.tenant();
  const publisher = await tenant.agent();
  const receivers = [await interested(tenant, "load.*"), await interested(tenant, "load.*")];
  const gateways = system.members.filter(({ program }) => program === "gateway");
  await using load = startLoad({ gateways, publisher, receivers, perSecond: 200, eventType: "load.made" });
  await load.more(100);
  for (const member of system.members.filter(({ name }) => isFull || name.endsWith("-1"))) {
    await member.stop();
    await member.start();
    await load.more(20);
  }
  await load.finish();

  expect(load.refused).toEqual([]);
  expect(load.again).toEqual([]);
  for (const [agent, events] of load.received) expect(events, agent).toEqual(load.accepted);
}, 300_000);
