/**
 * `npm run cluster`: the distributed form on one machine. Three nats-servers, one Postgres, two of every process, each on
 * its own, with the environment that docker-compose.yml gives them. CLUSTER_BROKERS and CLUSTER_REPLICAS change the
 * numbers, DATA_DIR the folder (`.data-cluster`).
 */
import { resolve } from "node:path";
import { z } from "zod";
import { bootstrap } from "./bootstrap.ts";
import { startPostgres } from "./embedded/postgres.ts";
import { secretsIn } from "./embedded/secrets.ts";
import { startFleet } from "./fleet.ts";
import { publishInstance } from "./instance.ts";
import { tour } from "./tour.ts";
import { connectBus } from "../runtime/bus.ts";
import { readEnv, wholeNumber } from "../runtime/env.ts";
import { run } from "../runtime/lifecycle.ts";
import { silent } from "../runtime/log.ts";

const ClusterEnv = z.object({
  DATA_DIR: z.string().default(".data-cluster"),
  CLUSTER_BROKERS: wholeNumber(1, 5, 3),
  CLUSTER_REPLICAS: wholeNumber(1, 10, 2),
  RUNTIME: z.enum(["node", "deno"], "must be node or deno").default("node"),
});

await run(async (app) => {
  const env = readEnv(ClusterEnv);
  const dataDir = resolve(env.DATA_DIR);
  const log = (line: string) => console.log(line);
  const postgres = app.use(await startPostgres({ dataDir, log, signal: app.signal }));
  const fleet = app.use(
    await startFleet({
      dataDir,
      databaseUrl: postgres.url,
      serverSecret: (await secretsIn(dataDir)).server,
      brokers: env.CLUSTER_BROKERS,
      replicas: env.CLUSTER_REPLICAS,
      runtime: env.RUNTIME,
      log,
    }),
  );
  const [baseUrl] = fleet.urls;
  const servers = { nats_url: fleet.natsUrl, database_url: postgres.url };
  app.use(await publishInstance(dataDir, { base_url: baseUrl!, ...servers }));
  await using bus = await connectBus(fleet.natsUrl, "bootstrap", silent);
  const made = await bootstrap(dataDir, baseUrl!, bus);
  if (made) log(tour(made, dataDir));
  for (const { name, healthUrl } of fleet.members) log(`${name.padEnd(12)} ${healthUrl}`);
  log(`ready on ${fleet.urls.join(" and ")}`);
});
