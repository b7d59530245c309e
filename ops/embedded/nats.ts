// An embedded nats-server with JetStream, on loopback, with its data under DATA_DIR.
import { mkdir, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { connect } from "node:net";
import { join, resolve } from "node:path";
import { findNatsServer } from "../setup.mjs";
import { asServer, type Child, type EmbeddedServer, startChild } from "./child.ts";
import { claim, type Ending } from "./claim.ts";
import { type Login, secretsIn } from "./secrets.ts";

export type EmbeddedNats = EmbeddedServer;

export interface NatsOptions {
  dataDir: string;
  durability?: Durability;
  /** A free port is chosen when none is given. */
  port?: number;
  /** Who may connect; made once and kept in DATA_DIR when not given. The nodes of a cluster need the same. */
  login?: Login;
  /** One node of several. All of them start together: none is ready before most of them are. */
  cluster?: ClusterNode;
  log?: (line: string) => void;
  signal?: AbortSignal;
}

export interface ClusterNode {
  name: string;
  /** Where the other nodes reach this one. */
  port: number;
  /** Of every node, this one included. */
  ports: readonly number[];
}

export type Durability = keyof typeof SYNC_INTERVAL;

// How long an acknowledged message may live in the operating system's memory alone. A crash of the process loses
// nothing either way; a power cut loses up to this much. JetStream's own default is two minutes. "always" syncs each
// message before it is acknowledged, at a few hundred messages a second on ordinary disks.
const SYNC_INTERVAL = { standard: "1s", strict: "always" } as const;

// A memory of 10 MB with its envelope must fit; the server's default is 1 MB.
const MAX_PAYLOAD = "16MB";
// Streams in memory are for counters and leases only; without a limit the server would plan with most of the RAM.
const MAX_MEMORY_STORE = "256MB";
const LOG_FILE_BYTES = 10 * 1024 * 1024;
// A large store is read through before the server answers.
const START_LIMIT_MS = 120_000;
// SIGTERM closes connections and writes out the stores.
const ENDING: Ending = [["SIGTERM", 15_000], ["SIGKILL", 5_000]];

export async function startNats(options: NatsOptions): Promise<EmbeddedNats> {
  const dataDir = resolve(options.dataDir);
  const held = await claim({ dataDir, name: "nats", ending: ENDING });
  let child: Child | undefined;
  try {
    const server = await findNatsServer();
    if (!server) throw new Error("There is no nats-server here: run `node ops/setup.mjs`, or set NATS_URL");
    options.log?.(`starting nats-server ${server.version}`);
    const login = options.login ?? (await secretsIn(dataDir)).nats;
    const portsDir = join(dataDir, "nats", "ports");
    await rm(portsDir, { recursive: true, force: true });
    await mkdir(portsDir, { recursive: true, mode: 0o700 });
    const logFile = join(dataDir, "nats.log");
    const outputFile = join(dataDir, "nats.out.log");
    const configFile = join(dataDir, "nats.conf");
    await writeConfig(configFile, configuration({ ...options, dataDir, login, logFile, portsDir }));
    child = await startChild(held, {
      name: "nats-server",
      command: server.path,
      args: ["--config", configFile],
      cwd: dataDir,
      // The server writes and rotates its own log; what it says before it can, or in a panic, goes here.
      outputFile,
      logFiles: [outputFile, logFile],
      ending: ENDING,
    });
    const { pid } = child;
    const port = await child.ready(() => portFrom(portsDir, pid), START_LIMIT_MS, options.signal);
    await child.ready(() => answersJetStream(port, login), START_LIMIT_MS, options.signal);
    return asServer(child, `nats://${login.user}:${login.password}@127.0.0.1:${port}`, held);
  } catch (error) {
    await child?.stop();
    await held.release();
    throw error;
  }
}

interface Settings {
  dataDir: string;
  login: Login;
  logFile: string;
  portsDir: string;
  durability?: Durability;
  port?: number;
  cluster?: ClusterNode;
}

// The configuration language takes JSON's strings.
function configuration(settings: Settings): string {
  const { dataDir, login, logFile, portsDir, durability = "standard", port = -1, cluster } = settings;
  const text = JSON.stringify;
  return `# Written at every start.
server_name: ${text(cluster?.name ?? "sensorium")}
host: "127.0.0.1"
# -1: a free port of the server's choosing, told in the ports file.
port: ${port}
ports_file_dir: ${text(portsDir)}
authorization { user: ${text(login.user)}, password: ${text(login.password)} }
max_payload: ${MAX_PAYLOAD}
jetstream {
  store_dir: ${text(join(dataDir, "nats"))}
  max_memory_store: ${MAX_MEMORY_STORE}
  sync_interval: ${text(SYNC_INTERVAL[durability])}
}
log_file: ${text(logFile)}
logfile_size_limit: ${LOG_FILE_BYTES}
logfile_max_num: 3
${cluster ? clusterSection(cluster, login) : ""}`;
}

function clusterSection({ port, ports }: ClusterNode, login: Login): string {
  const credentials = `${login.user}:${login.password}`;
  const routes = ports.map((each) => JSON.stringify(`nats-route://${credentials}@127.0.0.1:${each}`));
  return `cluster {
  name: "sensorium"
  listen: "127.0.0.1:${port}"
  authorization { user: ${JSON.stringify(login.user)}, password: ${JSON.stringify(login.password)} }
  routes: [${routes.join(", ")}]
}
`;
}

// Removed first, so that a file left with other rights cannot lend them to the password in it.
async function writeConfig(file: string, content: string): Promise<void> {
  await rm(file, { force: true });
  await writeFile(file, content, { mode: 0o600 });
}

// The server writes the file once it listens; its name carries the pid.
async function portFrom(portsDir: string, pid: number): Promise<number | undefined> {
  const name = (await readdir(portsDir)).find((file) => file.endsWith(`_${pid}.ports`));
  if (!name) return undefined;
  const port = /127\.0\.0\.1:(\d+)/.exec(await readFile(join(portsDir, name), "utf8"))?.[1];
  return port === undefined ? undefined : Number(port);
}

// Asks JetStream for its account information in the server's plain protocol: connected, let in and answered.
function answersJetStream(port: number, { user, password }: Login): Promise<true | undefined> {
  return new Promise((resolve) => {
    const socket = connect({ host: "127.0.0.1", port });
    let received = "";
    const settle = (answer?: true) => {
      socket.destroy();
      resolve(answer);
    };
    const hello = JSON.stringify({ user, pass: password, verbose: false, pedantic: false, headers: true });
    const question = `CONNECT ${hello}\r\nSUB ready.reply 1\r\nPUB $JS.API.INFO ready.reply 0\r\n\r\n`;
    socket.setTimeout(2_000, settle);
    socket.once("connect", () => socket.write(question));
    socket.on("data", (chunk) => {
      received += chunk;
      if (received.includes("-ERR")) settle();
      // An answer with an error in it comes from a JetStream that is not up yet.
      else if (/\r\nMSG ready\.reply .*\r\n.*\r\n/.test(received)) {
        settle(received.includes('"error"') ? undefined : true);
      }
    });
    socket.once("error", () => settle());
    socket.once("close", () => settle());
  });
}
