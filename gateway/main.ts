/** The gateway's wiring, top to bottom. */
import { getConnInfo } from "@hono/node-server/conninfo";
import type { Context } from "hono";
import { buckets } from "../contracts/streams.ts";
import { openBucket } from "../runtime/buckets.ts";
import { connectBus } from "../runtime/bus.ts";
import { LogEnv, readEnv } from "../runtime/env.ts";
import { type App, run } from "../runtime/lifecycle.ts";
import { createLog, type Log } from "../runtime/log.ts";
import { deriveKey } from "../runtime/secret.ts";
import { startTelemetry, type Telemetry, TelemetryEnv } from "../runtime/telemetry.ts";
import { version } from "../runtime/version.ts";
import { gateway } from "./app.ts";
import { startAuthenticator } from "./authenticate.ts";
import { GatewayEnv } from "./env.ts";
import { idempotency } from "./idempotency.ts";
import { listen } from "./listen.ts";
import { probes } from "./probes.ts";
import { rateLimiter } from "./rate-limit.ts";
import { sentOver } from "./sent.ts";
import { webhooks } from "./webhooks.ts";

export async function start(
  app: App,
  log: Log,
  telemetry: Pick<Telemetry, "exposition">,
  source: Record<string, string | undefined> = process.env,
): Promise<{ port: number }> {
  const env = readEnv(GatewayEnv, source);
  const bus = app.use(await connectBus(env, "gateway", log));
  const authenticator = app.use(await startAuthenticator(bus.nc, log));
  const limiter = rateLimiter({ kv: await openBucket(bus.nc, buckets.quotas), replicas: env.GATEWAY_REPLICAS, log });
  const addressOf = (c: Context) => getConnInfo(c).remote.address ?? "unknown";
  const routes = gateway({
    bus,
    authenticator,
    limiter,
    limits: {
      agent: env.RATE_LIMIT_AGENT_PER_MINUTE,
      tenant: env.RATE_LIMIT_TENANT_PER_MINUTE,
      address: env.RATE_LIMIT_TOKEN_PER_MINUTE,
    },
    idempotency: idempotency({
      kv: await openBucket(bus.nc, buckets.idempotency),
      sealingKey: deriveKey(env.SERVER_SECRET, "idempotency answers"),
      log,
    }),
    sent: app.use(sentOver(bus.nc)),
    addressOf,
    stopping: app.signal,
    log,
  });
  webhooks(routes, { bus, limiter, perMinute: env.RATE_LIMIT_WEBHOOK_PER_MINUTE, addressOf, log });
  probes(routes, {
    nc: bus.nc,
    authenticator,
    exposition: telemetry.exposition,
    version: await version(),
    isDraining: () => app.signal.aborted,
  });
  return app.use(
    await listen(routes.fetch, {
      host: env.HOST,
      port: env.PORT,
      noticeSeconds: env.DRAIN_NOTICE_SECONDS,
      drainSeconds: env.DRAIN_SECONDS,
    }),
  );
}

if (import.meta.main) {
  await run(async (app) => {
    const log = createLog({ level: readEnv(LogEnv).LOG_LEVEL, fields: { service: "gateway" } });
    const telemetry = app.use(await startTelemetry("gateway", readEnv(TelemetryEnv)));
    const { port } = await start(app, log, telemetry);
    log.info("gateway.ready", { port });
  });
}
