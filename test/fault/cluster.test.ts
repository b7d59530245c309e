/** What a cluster of three brokers and two of every process keeps through the sudden death of any one of them. */
import { jetstreamManager } from "@nats-io/jetstream";
import { expect, test } from "vitest";
import { fleet, isFull } from "../support/fleet.ts";
import { interested } from "../support/interested.ts";
import { startLoad } from "../support/load.ts";

test(
  "a broker and processes are killed under load: nothing accepted is lost or comes again",
  async () => {
    await using system = await fleet({
      brokers: 3,
      replicas: 2,
      programs: ["registry", "delivery", "fanout", "ingest", "gateway"],
      env: { DELIVERY_SHARDS: "2", VISIBILITY_TIMEOUT_SECONDS: "5", FANOUT_ACK_WAIT_SECONDS: "5" },
    });
    const tenant = await system.tenant();
    const publisher = await tenant.agent();
    const receivers = [await interested(tenant, "load.*"), await interested(tenant, "load.*")];
    const gateways = system.members.filter(({ program }) => program === "gateway");
    await using load = startLoad({
      gateways,
      publisher,
      receivers,
      perSecond: isFull ? 50 : 25,
      eventType: "load.made",
    });
    await load.more(25);
    const said: string[] = [];
    const killed = async (name: string, kill: () => Promise<void>, start: () => Promise<void>) => {
      const at = performance.now();
      await kill();
      await load.more(10);
      said.push(`${name}: ten more events accepted ${Math.round(performance.now() - at)} ms after its SIGKILL`);
      await start();
      await load.more(10);
    };
    // The worst of the three: the one that every event goes through, until the others have chosen another.
    const leader = (await (await jetstreamManager(system.bus.nc)).streams.info("EVENTS")).cluster?.leader;
    for (const broker of system.brokers.filter(({ name }) => isFull || name === leader)) {
      await killed(
        broker.name === leader ? `${broker.name}, leader of EVENTS` : broker.name,
        broker.kill,
        broker.start,
      );
    }
    for (const member of system.members.filter(({ name }) => isFull || ["delivery-1", "fanout-1"].includes(name))) {
      await killed(member.name, () => member.stop("SIGKILL"), member.start);
    }
    await load.finish();
    console.log(said.join("\n"));

    expect(load.again).toEqual([]);
    for (const [agent, events] of load.received) expect(events, agent).toEqual(load.accepted);
  },
  600_000,
);
