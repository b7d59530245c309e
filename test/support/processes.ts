/** Services started in the test's own process, each with connections of its own, as replicas have. */
import type { ServiceName } from "../../contracts/operation.ts";
import { start as gatewayStart } from "../../gateway/main.ts";
import { startService as starts } from "../../ops/all.ts";
import { begin, type Running } from "../../runtime/lifecycle.ts";
import { createLog } from "../../runtime/log.ts";

/** What goes wrong on our side is worth seeing in a test's output; a service that a test has stopped is not. */
const log = createLog({
  level: "error",
  write: (line) => line.includes('"status":503') ? undefined : process.stdout.write(line),
});

export const startService = (name: ServiceName, env: Record<string, string>): Promise<Running> =>
  begin((app) => starts[name](app, log, env));

export async function startGateway(env: Record<string, string>): Promise<Running & { url: string }> {
  let port = 0;
  const running = await begin(async (app) => {
    ({ port } = await gatewayStart(app, log, { exposition: () => Promise.resolve("") }, env));
  });
  return Object.assign(running, { url: `http://127.0.0.1:${port}/v1` });
}
