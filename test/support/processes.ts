/**
 * Services started in the test's own process, each with connections of its own, as replicas have. With TEST_RUNTIME (node
 * or deno) they are processes of that runtime instead: `npm run test:deno` runs every flow that way.
 */
import type { ServiceName } from "../../contracts/operation.ts";
import { start as gatewayStart } from "../../gateway/main.ts";
import { startService as starts } from "../../ops/all.ts";
import { type Member, memberOf, type Program, type Runtime } from "../../ops/fleet.ts";
import { begin, type Running } from "../../runtime/lifecycle.ts";
import { createLog } from "../../runtime/log.ts";
import { temporaryFolder } from "./servers.ts";

/** What goes wrong on our side is worth seeing in a test's output; a service that a test has stopped is not. */
const log = createLog({
  level: "error",
  write: (line) => line.includes('"status":503') ? undefined : process.stdout.write(line),
});

const runtime = process.env.TEST_RUNTIME as Runtime | undefined;

export const startService = (name: ServiceName, env: Record<string, string>): Promise<Running> =>
  runtime ? startApart(name, env, runtime) : begin((app) => starts[name](app, log, env));

export async function startGateway(env: Record<string, string>): Promise<Running & { url: string }> {
  if (runtime) return await startApart("gateway", env, runtime);
  let port = 0;
  const running = await begin(async (app) => {
    ({ port } = await gatewayStart(app, log, { exposition: () => Promise.resolve("") }, env));
  });
  return Object.assign(running, { url: `http://127.0.0.1:${port}/v1` });
}

async function startApart(
  program: Program,
  env: Record<string, string>,
  runtime: Runtime,
): Promise<Running & { url: string }> {
  await using stack = new AsyncDisposableStack();
  const folder = stack.use(await temporaryFolder());
  const member: Member = await memberOf(program, program, { dataDir: folder.path, env, runtime });
  stack.defer(() => member.stop());
  await member.start();
  const kept = stack.move();
  return {
    url: member.url,
    checks: {},
    exposition: async () => await (await fetch(`${member.healthUrl}/metrics`)).text(),
    stopped: new Promise(() => {}),
    [Symbol.asyncDispose]: () => kept.disposeAsync(),
  };
}
