/** Every service in one process. They still speak over the bus, exactly as they do apart. */
import { start as startGateway } from "../gateway/main.ts";
import type { ServiceName } from "../contracts/operation.ts";
import type { App } from "../runtime/lifecycle.ts";
import type { Log } from "../runtime/log.ts";
import type { Telemetry } from "../runtime/telemetry.ts";
import { start as startConnector } from "../services/connector/main.ts";
import { start as startDelivery } from "../services/delivery/main.ts";
import { start as startFanout } from "../services/fanout/main.ts";
import { start as startIngest } from "../services/ingest/main.ts";
import { start as startMemory } from "../services/memory/main.ts";
import { start as startRegistry } from "../services/registry/main.ts";

/** Each needs the ones before it to have made their streams. */
export const startService = {
  registry: startRegistry,
  delivery: startDelivery,
  fanout: startFanout,
  ingest: startIngest,
  memory: startMemory,
  connector: startConnector,
} satisfies Record<ServiceName, unknown>;

/** The gateway last: when it listens, everything behind it answers. It therefore also stops first. */
export async function startAll(
  app: App,
  log: Log,
  telemetry: Pick<Telemetry, "exposition">,
  source: Record<string, string | undefined>,
): Promise<{ port: number }> {
  for (const [service, start] of Object.entries(startService)) await start(app, log.with({ service }), source);
  return await startGateway(app, log.with({ service: "gateway" }), telemetry, source);
}
