/** The connector's wiring, top to bottom. */
import { hostname } from "node:os";
import { newId, ulid } from "../../contracts/identity.ts";
import { AmqpSecrets, ConnectorRoute } from "../../contracts/ingestion.ts";
import { buckets } from "../../contracts/streams.ts";
import { eachAlone, isLive, openBucket, pingJetStream, watchBucket } from "../../runtime/buckets.ts";
import { connectBus } from "../../runtime/bus.ts";
import { readEnv } from "../../runtime/env.ts";
import type { App } from "../../runtime/lifecycle.ts";
import type { Log } from "../../runtime/log.ts";
import { deriveKey, unseal } from "../../runtime/secret.ts";
import { serve } from "../../runtime/serve.ts";
import { runService } from "../../runtime/service.ts";
import { inSpan } from "../../runtime/telemetry.ts";
import { connector } from "./connector.ts";
import { ConnectorEnv } from "./env.ts";
import { ownership } from "./ownership.ts";
import { watchPressure } from "./pressure.ts";
import { startReader } from "./reader.ts";
import { supervise } from "./supervisor.ts";

export async function start(
  app: App,
  log: Log,
  source: Record<string, string | undefined> = process.env,
): Promise<void> {
  const env = readEnv(ConnectorEnv, source);
  const bus = app.use(await connectBus(env, "connector", log));
  const announced = await openBucket(bus.nc, buckets.connectors);
  const states = await openBucket(bus.nc, buckets.connectorStates);
  const key = deriveKey(env.SERVER_SECRET, "connector secrets");
  const secretsOf = ({ sealed }: ConnectorRoute) =>
    AmqpSecrets.parse(JSON.parse(unseal(key, Buffer.from(sealed, "base64")).toString()));
  const leaseMs = env.CONNECTOR_LEASE_SECONDS * 1_000;
  const pressure = app.use(await watchPressure(bus.nc, env.CONNECTOR_MAX_BEHIND, log));

  const supervisor = app.use(supervise({
    ownership: ownership({ states, owner: `${hostname()}-${process.pid}-${ulid().slice(-6)}`, leaseMs }),
    leaseMs,
    log,
    startReader: (id, route, note, own) => {
      const { tenant, source, mapping } = route;
      return startReader({
        id,
        route,
        secrets: secretsOf(route),
        pressure,
        note,
        log: own,
        ingest: async (message) => {
          const origin = {
            caller: { kind: "service", name: "connector" },
            requestId: newId("request"),
            seed: ulid(),
          } as const;
          const body = { tenant, source, mapping, ...message };
          const { address } = route.settings;
          const attributes = {
            "messaging.system.name": "amqp",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.destination.name": address,
            "request.id": origin.requestId,
          };
          // The sender's trace, as a property of the message or an attribute of the CloudEvent.
          const from = (name: string) => message.headers[name] ?? message.headers[`ce-${name}`];
          return await inSpan(
            `process ${address}`,
            { kind: "consumer", attributes, from },
            async () => (await bus.ask("events.ingest", { path: {}, query: {}, body }, origin)).read(),
          );
        },
      });
    },
  }));
  const watch = app.use(watchBucket({
    nc: bus.nc,
    bucket: buckets.connectors,
    log,
    apply: eachAlone((entry) => {
      // The registry's own mark that everything is announced is no connector.
      if (!entry.key.startsWith("con_")) return;
      supervisor.apply(entry.key, isLive(entry) ? ConnectorRoute.parse(entry.json()) : undefined);
    }, log),
  }));
  await watch.ready;

  app.use(
    await serve({
      nc: bus.nc,
      service: "connector",
      handlers: connector({
        async find(id) {
          const entry = /^con_[a-z0-9]+$/.test(id) ? await announced.get(id) : null;
          if (!isLive(entry)) return undefined;
          const route = ConnectorRoute.parse(entry.json());
          return { route, secrets: secretsOf(route) };
        },
      }),
      checks: { jetstream: () => pingJetStream(bus.nc) },
      log,
    }),
  );
}

if (import.meta.main) await runService("connector", start);
