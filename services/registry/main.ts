/** The registry's wiring, top to bottom. */
import { ConnectorLoad, ConnectorState } from "../../contracts/ingestion.ts";
import { buckets } from "../../contracts/streams.ts";
import { isLive, openBucket, pingJetStream } from "../../runtime/buckets.ts";
import { type Bus, connectBus } from "../../runtime/bus.ts";
import { migrate, openDatabase } from "../../runtime/database.ts";
import { readEnv } from "../../runtime/env.ts";
import type { App } from "../../runtime/lifecycle.ts";
import type { Log } from "../../runtime/log.ts";
import { deriveKey } from "../../runtime/secret.ts";
import { serve } from "../../runtime/serve.ts";
import { runService } from "../../runtime/service.ts";
import { startAnnouncer } from "./announce.ts";
import { RegistryEnv } from "./env.ts";
import type { FirstPushSecret } from "./handlers/agents.ts";
import { restoreAnnouncements } from "./restore.ts";
import { registry } from "./registry.ts";
import { stores } from "./store/stores.ts";
import { sealingKeyOf, tokens } from "./tokens.ts";

export async function start(
  app: App,
  log: Log,
  source: Record<string, string | undefined> = process.env,
): Promise<void> {
  const env = readEnv(RegistryEnv, source);
  const { sql } = app.use(openDatabase(env.DATABASE_URL, "registry"));
  await migrate(sql, "registry", new URL("./schema/", import.meta.url));
  const bus = app.use(await connectBus(env, "registry", log));
  const all = stores(sql);
  const announcer = app.use(await startAnnouncer(bus.nc, sql, log));
  await restoreAnnouncements(bus.nc, announcer, all, log);
  const issuing = tokens({
    store: all.signingKeys,
    announcer,
    sealingKey: sealingKeyOf(env.SERVER_SECRET),
  });
  const states = await openBucket(bus.nc, buckets.connectorStates);
  app.use(
    await serve({
      nc: bus.nc,
      service: "registry",
      handlers: registry({
        ...all,
        announcer,
        tokens: issuing,
        hashKey: deriveKey(env.SERVER_SECRET, "api keys"),
        webhookKey: deriveKey(env.SERVER_SECRET, "webhook secrets"),
        connectorKey: deriveKey(env.SERVER_SECRET, "connector secrets"),
        firstPushSecret: firstPushSecretOver(bus, log),
        forget: (connector) => states.purge(connector),
        async stateOf(connector) {
          const entry = await states.get(connector);
          if (!isLive(entry)) return undefined;
          const state = ConnectorState.parse(entry.json());
          // An owner writes it every 15 s at least; one that is silent is gone, and its word of being connected too.
          const isSilent = Date.now() - entry.created.getTime() > 45_000;
          return isSilent ? { ...state, ...ConnectorLoad.parse({}), status: "waiting", owner: null } : state;
        },
      }),
      checks: { postgres: () => sql`select 1`, jetstream: () => pingJetStream(bus.nc) },
      log,
    }),
  );
}

/** Delivery may be away; then the agent asks for a secret later. */
const firstPushSecretOver = (bus: Bus, log: Log): FirstPushSecret => async (tenant, agent, call) => {
  const origin = { ...call, caller: { kind: "service", name: "registry" } } as const;
  try {
    const answer = await bus.ask("push.first_secret", { path: {}, query: {}, body: { tenant, agent } }, origin);
    return answer.read().secret ?? undefined;
  } catch (error) {
    log.warn("push.secret_not_shown", { tenant, agent, error });
    return undefined;
  }
};

if (import.meta.main) await runService("registry", start);
