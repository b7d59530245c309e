/** Services started in the test's own process, each with connections of its own, as replicas have. */
import { start as gatewayStart } from "../../gateway/main.ts";
import { begin, type Running } from "../../runtime/lifecycle.ts";
import { createLog } from "../../runtime/log.ts";
import { start as registryStart } from "../../services/registry/main.ts";

/** What goes wrong on our side is worth seeing in a test's output. */
const log = createLog({ level: "error" });

export const startRegistry = (env: Record<string, string>): Promise<Running> =>
  begin((app) => registryStart(app, log, env));

export async function startGateway(env: Record<string, string>): Promise<Running & { url: string }> {
  let port = 0;
  const running = await begin(async (app) => {
    ({ port } = await gatewayStart(app, log, { exposition: () => Promise.resolve("") }, env));
  });
  return Object.assign(running, { url: `http://127.0.0.1:${port}/v1` });
}
