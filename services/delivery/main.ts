/** Delivery's wiring, top to bottom. */
import {
  buckets,
  deliveryStreams,
  eventStream,
  expiryStream,
  historyStream,
  noteStream,
} from "../../contracts/streams.ts";
import { routeKeys } from "../../contracts/subjects.ts";
import { isLive, openBucket, pingJetStream } from "../../runtime/buckets.ts";
import { type Bus, connectBus } from "../../runtime/bus.ts";
import { migrate, openDatabase, type Sql } from "../../runtime/database.ts";
import { readEnv } from "../../runtime/env.ts";
import { ensureStreams } from "../../runtime/jetstream.ts";
import type { App } from "../../runtime/lifecycle.ts";
import type { Log } from "../../runtime/log.ts";
import { outageOr } from "../../runtime/outage.ts";
import { publisher as publisherOn } from "../../runtime/publish.ts";
import { deriveKey } from "../../runtime/secret.ts";
import { serve } from "../../runtime/serve.ts";
import { runService } from "../../runtime/service.ts";
import { type Rematch, undertaker } from "./dead-letters.ts";
import { delivery } from "./delivery.ts";
import { deliveryIds } from "./delivery-id.ts";
import { watchDepth } from "./depth.ts";
import { DeliveryEnv } from "./env.ts";
import { endpoints } from "./endpoint.ts";
import { enrichOver } from "./enrich.ts";
import { events as eventsOn } from "./events.ts";
import { jetstreamQueue } from "./jetstream-queue.ts";
import { startPush } from "./push.ts";
import { room } from "./room.ts";
import { deadLetterStore } from "./store.ts";
import { wire as wireOn } from "./wire.ts";

export async function start(
  app: App,
  log: Log,
  source: Record<string, string | undefined> = process.env,
): Promise<void> {
  const env = readEnv(DeliveryEnv, source);
  const retentionMs = env.EVENT_RETENTION_HOURS * 3_600_000;
  const { sql } = app.use(openDatabase(env.DATABASE_URL, "delivery"));
  await prepare(sql, app, log);
  const bus = app.use(await connectBus(env, "delivery", log));
  await ensureStreams(bus.nc, [
    eventStream(retentionMs),
    ...deliveryStreams(env.DELIVERY_SHARDS, retentionMs),
    historyStream(retentionMs),
    noteStream(retentionMs),
    expiryStream(env.DELIVERY_SHARDS),
  ]);
  const wire = app.use(wireOn(bus.nc));
  const publisher = app.use(publisherOn(bus.nc));
  const events = eventsOn(wire);
  const ids = deliveryIds(deriveKey(env.SERVER_SECRET, "delivery ids"));
  const store = deadLetterStore(sql);
  const queue = app.use(
    await jetstreamQueue({
      nc: bus.nc,
      wire,
      publisher,
      shards: env.DELIVERY_SHARDS,
      visibilityMs: env.VISIBILITY_TIMEOUT_SECONDS * 1_000,
      maxAttempts: env.MAX_DELIVERY_ATTEMPTS,
      retentionMs,
      keep: undertaker({ events, ids, store }),
      log,
    }),
  );
  const enrich = enrichOver(bus);
  const push = app.use(
    await startPush({
      nc: bus.nc,
      queue,
      events,
      ids,
      endpoint: app.use(endpoints({ allowPrivate: env.PUSH_ALLOW_PRIVATE })),
      enrich,
      secretKey: deriveKey(env.SERVER_SECRET, "push secrets"),
      visibilityMs: env.VISIBILITY_TIMEOUT_SECONDS * 1_000,
      maxAttempts: env.MAX_DELIVERY_ATTEMPTS,
      backoffMs: env.PUSH_BACKOFF_SECONDS * 1_000,
      log,
    }),
  );
  app.use(watchDepth(wire, env.DELIVERY_SHARDS, log));
  const routes = await openBucket(bus.nc, buckets.routes);
  app.use(
    await serve({
      nc: bus.nc,
      service: "delivery",
      handlers: delivery({
        queue,
        events,
        ids,
        store,
        wire,
        publisher,
        push,
        enrich,
        rematch: rematchOver(bus, log),
        // JSON writes some bytes longer than they came; half of what a message may hold leaves room for that.
        room: room((bus.nc.info?.max_payload ?? 1024 * 1024) / 2),
        isAgent: async (tenant, id) => isLive(await routes.get(routeKeys.agent(tenant, id)).catch(() => null)),
        stopping: app.signal,
      }),
      checks: {
        postgres: () => sql`select 1`,
        jetstream: () => pingJetStream(bus.nc),
        expiry: async () => {
          if (!queue.isAlive()) throw new Error("Expired deliveries do not arrive");
        },
      },
      log,
    }),
  );
}

/** Agents poll and acknowledge without Postgres, so its absence at the start only delays dead letters. */
async function prepare(sql: Sql, app: App, log: Log): Promise<void> {
  const attempt = async (): Promise<boolean> => {
    try {
      await migrate(sql, "delivery", new URL("./schema/", import.meta.url));
      return true;
    } catch (error) {
      if (outageOr(error) === error) throw error;
      return false;
    }
  };
  if (await attempt()) return;
  log.warn("delivery.without_postgres");
  app.watch((async () => {
    while (!app.signal.aborted && !await attempt()) await new Promise((done) => setTimeout(done, 1_000));
  })());
}

/** Fan-out may be away; then the delivery comes as it did before. */
const rematchOver = (bus: Bus, log: Log): Rematch => async (tenant, agent, seq) => {
  const origin = { caller: { kind: "service", name: "delivery" }, requestId: "", seed: "" } as const;
  try {
    return (await bus.ask("fanout.match", { path: {}, query: {}, body: { tenant, agent, seq } }, origin)).read();
  } catch (error) {
    log.warn("replay.not_matched_again", { tenant, error });
    return undefined;
  }
};

if (import.meta.main) await runService("delivery", start);
