// An embedded Postgres server, on loopback, with its data under DATA_DIR.
import { existsSync } from "node:fs";
import { chown, mkdtemp, readdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { type AddressInfo, createServer } from "node:net";
import { join, resolve } from "node:path";
import { asServer, type Child, type EmbeddedServer, startChild } from "./child.ts";
import { claim, type Ending } from "./claim.ts";
import { postgresRunner, type Runner } from "./postgres-runner.ts";
import { type Login, secretsIn } from "./secrets.ts";

export type EmbeddedPostgres = EmbeddedServer;

export interface PostgresOptions {
  dataDir: string;
  log?: (line: string) => void;
  signal?: AbortSignal;
}

const DATABASE = "sensorium";
const WORKSHOP = "postgres.new-";

const SETTINGS = {
  listen_addresses: "127.0.0.1",
  unix_socket_directories: "",
  max_connections: "100",
  shared_buffers: "128MB",
  fsync: "on",
  synchronous_commit: "on",
  timezone: "UTC",
  log_timezone: "UTC",
  // Failed statements are reported to the client that sent them; the log is for the server's own affairs and so
  // stays small without rotation while it runs.
  log_min_messages: "log",
  log_checkpoints: "off",
  // Compiling queries pays off for long analytic ones, of which there are none here.
  jit: "off",
};

// After a crash the write-ahead log is replayed before the server answers.
const START_LIMIT_MS = 120_000;
const START_ATTEMPTS = 5;
// Fast shutdown; then an immediate one, which costs a recovery at the next start; the last is never meant to happen.
const ENDING: Ending = [["SIGINT", 30_000], ["SIGQUIT", 5_000], ["SIGKILL", 5_000]];

export async function startPostgres(options: PostgresOptions): Promise<EmbeddedPostgres> {
  const dataDir = resolve(options.dataDir);
  const held = await claim({ dataDir, name: "postgres", ending: ENDING });
  let child: Child | undefined;
  try {
    const { postgres: login } = await secretsIn(dataDir);
    const cluster = join(dataDir, "postgres");
    const runner = await postgresRunner(dataDir, cluster);
    await sweep(dataDir);
    if (!existsSync(cluster)) {
      options.log?.("making the database; this happens once");
      await makeCluster(dataDir, cluster, runner, login);
    }
    options.log?.("starting Postgres");
    await dropForeignLock(cluster);
    for (let attempt = 1;; attempt++) {
      const port = await freePort();
      const folder = await runner.open(cluster);
      try {
        const settings = Object.entries({ ...SETTINGS, port: String(port) });
        child = await startChild(held, {
          name: "Postgres",
          command: runner.binary("postgres"),
          args: ["-D", folder.path, ...settings.flatMap(([name, value]) => ["-c", `${name}=${value}`])],
          cwd: "/",
          outputFile: join(dataDir, "postgres.log"),
          ending: ENDING,
          identity: runner.identity,
          descriptors: folder.descriptors,
        });
        const { pid } = child;
        await child.ready(() => isReady(cluster, pid), START_LIMIT_MS, options.signal);
        const url = `postgres://${login.user}:${login.password}@127.0.0.1:${port}/${DATABASE}`;
        return asServer(child, url, held);
      } catch (error) {
        if (attempt === START_ATTEMPTS || !isPassing(child?.lastWords() ?? "")) throw error;
        await child?.stop();
      } finally {
        folder.close();
      }
    }
  } catch (error) {
    await child?.stop();
    await held.release();
    throw error;
  }
}

// Made under another name and moved when it is whole, so that a start which was killed half-way leaves no cluster
// that looks finished. The single-user server creates the database without opening a port.
async function makeCluster(dataDir: string, cluster: string, runner: Runner, login: Login): Promise<void> {
  const workshop = await mkdtemp(join(dataDir, WORKSHOP));
  const passwordFile = join(workshop, "password");
  await writeFile(passwordFile, `${login.password}\n`, { mode: 0o600 });
  if (runner.identity) {
    const { uid, gid } = runner.identity;
    await Promise.all([workshop, passwordFile].map((path) => chown(path, uid, gid)));
  }
  const folder = await runner.open(workshop);
  const fresh = join(folder.path, "cluster");
  try {
    const names = ["--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"];
    const entry = [`--username=${login.user}`, `--pwfile=${join(folder.path, "password")}`, "--auth=scram-sha-256"];
    await runner.run("initdb", ["-D", fresh, ...names, ...entry, "--no-instructions"], folder);
    const single = ["--single", "-c", "exit_on_error=on", "-D", fresh, "postgres"];
    await runner.run("postgres", single, folder, `CREATE DATABASE ${DATABASE}\n`);
    await rename(join(workshop, "cluster"), cluster);
  } finally {
    folder.close();
    await rm(workshop, { recursive: true, force: true });
  }
}

async function sweep(dataDir: string): Promise<void> {
  const left = (await readdir(dataDir)).filter((name) => name.startsWith(WORKSHOP));
  await Promise.all(left.map((name) => rm(join(dataDir, name), { recursive: true, force: true })));
}

// The server's own lock names a pid. After a restart of a container that number often belongs to something else, and
// Postgres would refuse to start; our claim has already made sure that the server before us is gone.
async function dropForeignLock(cluster: string): Promise<void> {
  const file = join(cluster, "postmaster.pid");
  const pid = (await lines(file))[0];
  if (pid === undefined || !/^\d+$/.test(pid)) return;
  const command = await readFile(`/proc/${pid}/cmdline`, "utf8").catch(() => undefined);
  if (command !== undefined && !command.includes("postgres")) await rm(file, { force: true });
}

// Line 8 of postmaster.pid says how far the server has come.
async function isReady(cluster: string, pid: number): Promise<true | undefined> {
  const found = await lines(join(cluster, "postmaster.pid"));
  return found[0] === String(pid) && found[7]?.trim() === "ready" ? true : undefined;
}

async function lines(file: string): Promise<string[]> {
  return (await readFile(file, "utf8").catch(() => "")).split("\n");
}

// Postgres cannot choose a port itself. Between our choice and its start somebody else may take the port, and the last
// processes of a killed server may still be leaving: both pass.
function isPassing(words: string): boolean {
  return /Address already in use|pre-existing shared memory block/.test(words);
}

async function freePort(): Promise<number> {
  const probe = createServer();
  await new Promise<void>((resolve, reject) => probe.once("error", reject).listen(0, "127.0.0.1", resolve));
  const { port } = probe.address() as AddressInfo;
  await new Promise((resolve) => probe.close(resolve));
  return port;
}
