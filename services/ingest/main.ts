/** Ingest's wiring, top to bottom. It needs the bus alone: events are taken in while the database is away. */
import type { KV } from "@nats-io/kv";
import { ulid } from "../../contracts/identity.ts";
import { AgentRoute } from "../../contracts/routes.ts";
import { buckets, eventStream, usageStream } from "../../contracts/streams.ts";
import { routeKeys } from "../../contracts/subjects.ts";
import { isLive, openBucket, pingJetStream } from "../../runtime/buckets.ts";
import { connectBus } from "../../runtime/bus.ts";
import { readEnv } from "../../runtime/env.ts";
import { ensureStreams } from "../../runtime/jetstream.ts";
import type { App } from "../../runtime/lifecycle.ts";
import type { Log } from "../../runtime/log.ts";
import { publisher } from "../../runtime/publish.ts";
import { deriveKey } from "../../runtime/secret.ts";
import { serve } from "../../runtime/serve.ts";
import { runService } from "../../runtime/service.ts";
import { watchBacklog } from "./backlog.ts";
import { IngestEnv } from "./env.ts";
import { eventLog } from "./event-log.ts";
import { ingest } from "./ingest.ts";
import { usageMeter, usageReader } from "./usage.ts";
import { openWebhookDirectory } from "./webhook-routes.ts";

export async function start(
  app: App,
  log: Log,
  source: Record<string, string | undefined> = process.env,
): Promise<void> {
  const env = readEnv(IngestEnv, source);
  const bus = app.use(await connectBus(env, "ingest", log));
  await ensureStreams(bus.nc, [eventStream(env.EVENT_RETENTION_HOURS * 3_600_000), usageStream]);
  const routes = await openBucket(bus.nc, buckets.routes);
  const publish = app.use(publisher(bus.nc));
  const meter = app.use(usageMeter({ publisher: publish, process: ulid(), log }));
  app.use(watchBacklog(bus.nc));
  const sealingKey = deriveKey(env.SERVER_SECRET, "webhook secrets");
  const directory = app.use(await openWebhookDirectory(bus.nc, sealingKey, log));
  app.use(
    await serve({
      nc: bus.nc,
      service: "ingest",
      handlers: ingest({
        log: eventLog(publish),
        meter,
        usage: usageReader(bus.nc),
        findAgent: agentsIn(routes),
        directory,
      }),
      checks: { jetstream: () => pingJetStream(bus.nc) },
      log,
    }),
  );
}

/** Read where the registry announces: an agent whose registration was answered is there. */
const agentsIn = (routes: KV) => async (tenant: string, agent: string) => {
  if (!/^[A-Za-z0-9_-]+$/.test(agent)) return undefined; // no id of ours, and no key either
  const entry = await routes.get(routeKeys.agent(tenant, agent));
  return isLive(entry) ? AgentRoute.parse(entry.json()) : undefined;
};

if (import.meta.main) await runService("ingest", start);
