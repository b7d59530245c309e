/** Every process on its own, on servers of its own, with an operator's access; gone when the block ends. */
import { type Fleet, type FleetOptions, type Runtime, startFleet } from "../../ops/fleet.ts";
import { connectBus } from "../../runtime/bus.ts";
import { silent } from "../../runtime/log.ts";
import { freshDatabase, temporaryFolder } from "./servers.ts";
import { type Operated, operated } from "./world.ts";

export interface TestFleet extends Fleet, Operated {}

/** `npm run test:faults`: every process and every broker in its turn, instead of one of each kind. */
export const isFull = process.env.FAULTS === "long";

/** TEST_RUNTIME=deno runs the processes under Deno. */
const runtime = (process.env.TEST_RUNTIME ?? "node") as Runtime;

export async function fleet(
  options: Pick<FleetOptions, "brokers" | "replicas" | "programs" | "runtime" | "env"> = {},
): Promise<TestFleet> {
  await using stack = new AsyncDisposableStack();
  const folder = stack.use(await temporaryFolder());
  const database = stack.use(await freshDatabase());
  const running = stack.use(
    await startFleet({
      programs: ["registry", "delivery", "fanout", "ingest", "memory", "gateway"],
      runtime,
      ...options,
      dataDir: folder.path,
      databaseUrl: database.url,
      serverSecret: "a test secret that is long enough to be one",
      env: { DELIVERY_SHARDS: "4", ...options.env },
    }),
  );
  const bus = stack.use(await connectBus(running.natsUrl, "test", silent));
  const kept = stack.move();
  return { ...running, ...operated(bus, running.urls), [Symbol.asyncDispose]: () => kept.disposeAsync() };
}
