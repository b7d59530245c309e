/** Fan-out's wiring, top to bottom. */
import { jetstreamManager } from "@nats-io/jetstream";
import type { NatsConnection } from "@nats-io/nats-core";
import { ulid } from "../../contracts/identity.ts";
import { buckets, consumers, deliveryStreams, eventStream, fannedStream } from "../../contracts/streams.ts";
import { openBucket } from "../../runtime/buckets.ts";
import { type Bus, connectBus } from "../../runtime/bus.ts";
import { consume } from "../../runtime/consume.ts";
import { readEnv } from "../../runtime/env.ts";
import { ensureStreams } from "../../runtime/jetstream.ts";
import type { App } from "../../runtime/lifecycle.ts";
import type { Log } from "../../runtime/log.ts";
import { publisher } from "../../runtime/publish.ts";
import { serve } from "../../runtime/serve.ts";
import { runService } from "../../runtime/service.ts";
import { enqueuer } from "./enqueue.ts";
import { FanoutEnv } from "./env.ts";
import { fanout, type StoredEvent } from "./fanout.ts";
import { progressIn } from "./progress.ts";
import { startRoutes } from "./routes.ts";
import { type Letter, spreader } from "./spread.ts";

/** Larger shares one barrier among more events; smaller keeps the first of them from waiting for the last. */
const BATCH = 256;

export async function start(
  app: App,
  log: Log,
  source: Record<string, string | undefined> = process.env,
): Promise<void> {
  const env = readEnv(FanoutEnv, source);
  const retentionMs = env.EVENT_RETENTION_HOURS * 3_600_000;
  const bus = app.use(await connectBus(env, "fanout", log));
  await ensureStreams(bus.nc, [
    eventStream(retentionMs),
    ...deliveryStreams(env.DELIVERY_SHARDS, retentionMs),
    fannedStream,
  ]);
  await openBucket(bus.nc, buckets.routes);
  const publish = app.use(publisher(bus.nc));
  const routes = app.use(startRoutes(bus.nc, publish, log));
  await routes.ready;
  const consumption = app.use(
    await consume({
      nc: bus.nc,
      consumer: { ...consumers.fanout, ackWaitMs: env.FANOUT_ACK_WAIT_SECONDS * 1_000 },
      batch: BATCH,
      work: spreader({
        routes,
        progress: progressIn(bus.nc, publish, log),
        enqueue: enqueuer(publish, env.DELIVERY_SHARDS),
        bury: buryOver(bus),
        log,
      }),
      log,
    }),
  );
  app.use(
    await serve({
      nc: bus.nc,
      service: "fanout",
      handlers: fanout({ routes, eventAt: eventsIn(bus.nc) }),
      checks: {
        routes: () => routes.barrier(),
        events: async () => {
          if (!consumption.isAlive()) throw new Error("no word from the stream of events");
        },
      },
      log,
    }),
  );
}

const buryOver = (bus: Bus) => async (letter: Letter): Promise<void> => {
  const seed = ulid();
  const origin = { caller: { kind: "service" as const, name: "fanout" }, requestId: `fanout-${seed}`, seed };
  await bus.ask("delivery.bury", { path: {}, query: {}, body: letter }, origin);
};

const eventsIn = (nc: NatsConnection) => async (seq: number): Promise<StoredEvent | undefined> => {
  const manager = await jetstreamManager(nc, { checkAPI: false });
  const stored = await manager.direct.getMessage(consumers.fanout.stream, { seq });
  return stored ? { subject: stored.subject, body: stored.data } : undefined;
};

if (import.meta.main) await runService("fanout", start);
