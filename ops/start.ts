/** The embedded default: nats-server and Postgres as children, every service in this process, one command. */
import { createServer } from "node:net";
import { resolve } from "node:path";
import { startAll } from "./all.ts";
import { bootstrap } from "./bootstrap.ts";
import { startNats } from "./embedded/nats.ts";
import { startPostgres } from "./embedded/postgres.ts";
import { secretsIn } from "./embedded/secrets.ts";
import { StartEnv } from "./env.ts";
import { publishInstance } from "./instance.ts";
import { openLogFile } from "./log-file.ts";
import { tour } from "./tour.ts";
import { traceTree } from "./trace-tree.ts";
import { connectBus } from "../runtime/bus.ts";
import { readEnv } from "../runtime/env.ts";
import { type App, run } from "../runtime/lifecycle.ts";
import { startTelemetry, TelemetryEnv } from "../runtime/telemetry.ts";

await run(async (app) => {
  const env = readEnv(StartEnv);
  await assertFree(env.HOST, env.PORT);
  const dataDir = resolve(env.DATA_DIR);
  const say = (line: string) => console.log(line);

  const server = { dataDir, log: say, signal: app.signal };
  // Both are awaited whatever happens: one that starts while the other fails must be stopped as well.
  const [nats, postgres] = await bothOf(
    env.NATS_URL
      ? undefined
      : startNats({ ...server, durability: env.DURABILITY }).then((s) => guard(app, "nats-server", s)),
    env.DATABASE_URL ? undefined : startPostgres(server).then((s) => guard(app, "Postgres", s)),
  );
  const { server: serverSecret } = await secretsIn(dataDir);
  const source = {
    ...process.env,
    NATS_URL: env.NATS_URL ?? nats!.url,
    DATABASE_URL: env.DATABASE_URL ?? postgres!.url,
    SERVER_SECRET: env.SERVER_SECRET ?? serverSecret,
  };

  const log = app.use(await openLogFile(dataDir, env.LOG_LEVEL));
  const shown = process.argv.includes("--trace") ? { exporter: traceTree((text) => process.stdout.write(text)) } : {};
  const telemetry = app.use(await startTelemetry("sensorium", readEnv(TelemetryEnv), shown));
  const { port } = await startAll(app, log, telemetry, source);
  const baseUrl = `http://${env.HOST}:${port}/v1`;
  await ready(`http://${env.HOST}:${port}/readyz`, app.signal);

  const { NATS_URL: nats_url, DATABASE_URL: database_url } = source;
  app.use(await publishInstance(dataDir, { base_url: baseUrl, nats_url, database_url }));
  await using bus = await connectBus(source.NATS_URL, "bootstrap", log);
  const made = await bootstrap(dataDir, baseUrl, bus);
  if (made) say(tour(made, dataDir));
  say(`ready on ${baseUrl}`);
});

async function bothOf<A, B>(
  a: Promise<A> | undefined,
  b: Promise<B> | undefined,
): Promise<[A | undefined, B | undefined]> {
  await Promise.allSettled([a, b]);
  return [await a, await b];
}

/** Closed with the process; and a server that ends before us ends us. */
function guard<S extends AsyncDisposable & { exited: Promise<unknown> }>(app: App, name: string, server: S): S {
  const ended = server.exited.then((how) => {
    if (!app.signal.aborted) throw new Error(`${name} ended: ${JSON.stringify(how)}`);
  });
  const stopping = new Promise<void>((done) => app.signal.addEventListener("abort", () => done(), { once: true }));
  app.use(server);
  app.watch(Promise.race([ended, stopping]));
  return server;
}

/** Before anything is started: a taken port is the likeliest mistake. */
async function assertFree(host: string, port: number): Promise<void> {
  const probe = createServer();
  await new Promise<void>((done, fail) => {
    probe.once(
      "error",
      (error: NodeJS.ErrnoException) =>
        fail(new Error(`Cannot start: ${host}:${port} cannot be listened on (${error.code}); set PORT or HOST`)),
    );
    probe.listen(port, host, done);
  });
  await new Promise((done) => probe.close(done));
}

async function ready(url: string, signal: AbortSignal): Promise<void> {
  let last = "";
  for (const until = Date.now() + 30_000; Date.now() < until && !signal.aborted;) {
    const response = await fetch(url).catch(() => undefined);
    if (response?.ok) return;
    last = await response?.text() ?? "no answer";
    await new Promise((done) => setTimeout(done, 50));
  }
  if (!signal.aborted) throw new Error(`Cannot start: not ready after 30 s: ${last}`);
}
