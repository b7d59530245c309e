/** Every service in one process. They still speak over the bus, exactly as they do apart. */
import { start as startGateway } from "../gateway/main.ts";
import type { App } from "../runtime/lifecycle.ts";
import type { Log } from "../runtime/log.ts";
import type { Telemetry } from "../runtime/telemetry.ts";
import { start as startRegistry } from "../services/registry/main.ts";

/** The gateway last: when it listens, everything behind it answers. It therefore also stops first. */
export async function startAll(
  app: App,
  log: Log,
  telemetry: Pick<Telemetry, "exposition">,
  source: Record<string, string | undefined>,
): Promise<{ port: number }> {
  await startRegistry(app, log.with({ service: "registry" }), source);
  return await startGateway(app, log.with({ service: "gateway" }), telemetry, source);
}
