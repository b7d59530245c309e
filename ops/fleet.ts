/**
 * Every process on its own, as docker-compose.yml runs them: the same commands with the same environment, as children of
 * this one on loopback. `npm run cluster` starts it to be looked at; tests start it to be broken.
 */
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { createWriteStream, existsSync } from "node:fs";
import { mkdir, readFile } from "node:fs/promises";
import { type AddressInfo, createServer } from "node:net";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { type EmbeddedNats, startNats } from "./embedded/nats.ts";

const root = fileURLToPath(new URL("../", import.meta.url));
// The package's own `deno` command is a script around the binary, and a signal sent to it goes no further.
const denoBinary = join(root, `node_modules/@deno/linux-${process.arch}-glibc/deno`);

export type Runtime = "node" | "deno";
const commands: Record<Runtime, readonly [string, ...string[]]> = {
  node: [process.versions.deno ? "node" : process.execPath],
  // With the default permissions of deno.json.
  deno: [existsSync(denoBinary) ? denoBinary : "deno", "run", "-P"],
};

/** In the order of their needs; the gateway last, so that nothing is promised before it can be kept. */
export const programs = ["registry", "delivery", "fanout", "ingest", "memory", "connector", "gateway"] as const;
export type Program = (typeof programs)[number];

const fileOf = (program: Program) => program === "gateway" ? "gateway/main.ts" : `services/${program}/main.ts`;

/** One process: it can be stopped as a deploy stops it, killed as a fault kills it, and started again. */
export interface Member {
  readonly program: Program;
  readonly name: string;
  /** Where the gateway listens; for the others nothing. */
  readonly url: string;
  readonly healthUrl: string;
  start(): Promise<void>;
  stop(signal?: NodeJS.Signals): Promise<void>;
}

export interface BrokerNode {
  readonly name: string;
  start(): Promise<void>;
  kill(): Promise<void>;
}

export interface Fleet extends AsyncDisposable {
  readonly natsUrl: string;
  readonly members: readonly Member[];
  readonly brokers: readonly BrokerNode[];
  /** Addresses of the gateways, with the version segment. */
  readonly urls: readonly string[];
}

/** Migrations and announcements first, the door last; between them everyone at once, as containers do. */
const stages: ((program: Program) => boolean)[] = [
  (program) => program === "registry",
  (program) => program !== "registry" && program !== "gateway",
  (program) => program === "gateway",
];

/** Waited for as a whole, so that what did start is stopped when something did not. */
const allOf = <T>(results: readonly PromiseSettledResult<T>[]): T[] =>
  results.map((result) => {
    if (result.status === "rejected") throw result.reason;
    return result.value;
  });

export interface FleetOptions {
  /** Holds the brokers' data and everyone's output. */
  readonly dataDir: string;
  readonly databaseUrl: string;
  readonly serverSecret: string;
  /** How many nats-servers; from three on streams are kept on three of them. */
  readonly brokers?: number;
  /** How many of each process. */
  readonly replicas?: number;
  readonly programs?: readonly Program[];
  readonly runtime?: Runtime;
  readonly env?: Record<string, string>;
  readonly log?: (line: string) => void;
}

export async function startFleet(options: FleetOptions): Promise<Fleet> {
  const { dataDir, brokers = 1, replicas = 1, runtime = "node", log = () => {} } = options;
  await mkdir(dataDir, { recursive: true });
  await using stack = new AsyncDisposableStack();
  const nodes = await brokerNodes(dataDir, brokers);
  for (const node of nodes) stack.defer(() => node.stop());
  await Promise.all(nodes.map((node) => node.start()));
  log(`${brokers} nats-server${brokers > 1 ? "s" : ""} ready`);

  const natsUrl = nodes.map(({ url }) => url).join(",");
  const env = {
    NATS_URL: natsUrl,
    NATS_REPLICAS: String(brokers >= 3 ? 3 : 1),
    DATABASE_URL: options.databaseUrl,
    SERVER_SECRET: options.serverSecret,
    GATEWAY_REPLICAS: String(replicas),
    ...options.env,
  };
  const present = (options.programs ?? programs).filter((program) => existsSync(join(root, fileOf(program))));
  const startGroup = async (program: Program) => {
    // Two replicas that start at once is the common case, and must work.
    const group = await Promise.allSettled(Array.from({ length: replicas }, async (_, i) => {
      const member = await memberOf(program, `${program}-${i + 1}`, { dataDir, env, runtime });
      stack.defer(() => member.stop());
      await member.start();
      return member;
    }));
    log(`${program} ready${replicas > 1 ? `, ${replicas} times` : ""}`);
    return allOf(group);
  };
  const members: Member[] = [];
  for (const stage of stages) {
    const groups = await Promise.allSettled(present.filter((program) => stage(program)).map(startGroup));
    members.push(...allOf(groups).flat());
  }
  const kept = stack.move();
  return {
    natsUrl,
    members,
    brokers: nodes,
    urls: members.filter(({ program }) => program === "gateway").map(({ url }) => url),
    [Symbol.asyncDispose]: () => kept.disposeAsync(),
  };
}

export async function memberOf(
  program: Program,
  name: string,
  { dataDir, env, runtime }: { dataDir: string; env: Record<string, string>; runtime: Runtime },
): Promise<Member> {
  // Its own for good: whoever watches it must find it again after a restart.
  const [port, healthPort] = await freePorts(2);
  const [command, ...args] = commands[runtime];
  const healthUrl = `http://127.0.0.1:${healthPort}`;
  let child: ChildProcess | undefined;
  let ended: Promise<unknown> = Promise.resolve();
  return {
    program,
    name,
    url: program === "gateway" ? `http://127.0.0.1:${port}/v1` : "",
    healthUrl,
    async start() {
      const output = createWriteStream(join(dataDir, `${name}.log`), { flags: "a" });
      const started = spawn(command, [...args, fileOf(program)], {
        cwd: root,
        env: { ...process.env, ...env, PORT: String(port), HOST: "127.0.0.1", HEALTH_PORT: String(healthPort) },
        stdio: ["ignore", "pipe", "pipe"],
      });
      child = started;
      started.stdout.pipe(output, { end: false });
      started.stderr.pipe(output, { end: false });
      ended = once(started, "close").then(() => output.end());
      await isReady(healthUrl, started, name, dataDir);
    },
    async stop(signal = "SIGTERM") {
      if (child?.exitCode === null && child.signalCode === null) child.kill(signal);
      await ended;
    },
  };
}

async function isReady(healthUrl: string, child: ChildProcess, name: string, dataDir: string): Promise<void> {
  for (const until = Date.now() + 60_000; Date.now() < until;) {
    if (child.exitCode !== null || child.signalCode !== null) break;
    const answer = await fetch(`${healthUrl}/readyz`).catch(() => undefined);
    await answer?.arrayBuffer();
    if (answer?.ok) return;
    await new Promise((done) => setTimeout(done, 50));
  }
  const said = await readFile(join(dataDir, `${name}.log`), "utf8").catch(() => "");
  throw new Error(`${name} did not become ready: ${said.split("\n").slice(-12).join("\n")}`);
}

async function brokerNodes(
  dataDir: string,
  count: number,
): Promise<(BrokerNode & { url: string; stop(): Promise<void> })[]> {
  const login = { user: "sensorium", password: "only-on-loopback" };
  const ports = await freePorts(2 * count);
  const routes = ports.slice(count);
  return Array.from({ length: count }, (_, i) => {
    const name = `nats-${i + 1}`;
    const folder = join(dataDir, name);
    let server: EmbeddedNats | undefined;
    return {
      name,
      url: `nats://${login.user}:${login.password}@127.0.0.1:${ports[i]}`,
      async start() {
        await mkdir(folder, { recursive: true });
        const cluster = { name, port: routes[i]!, ports: routes };
        server = await startNats({ dataDir: folder, port: ports[i]!, login, ...(count > 1 ? { cluster } : {}) });
      },
      async kill() {
        process.kill(server!.pid, "SIGKILL");
        await server!.exited;
        await server!.stop();
      },
      stop: async () => await server?.stop(),
    };
  });
}

/** Free a moment ago; all held at once so that they differ. */
export async function freePorts(count: number): Promise<number[]> {
  const probes = await Promise.all(Array.from({ length: count }, async () => {
    const probe = createServer();
    await new Promise<void>((done, fail) => probe.once("error", fail).listen(0, "127.0.0.1", done));
    return probe;
  }));
  const ports = probes.map((probe) => (probe.address() as AddressInfo).port);
  await Promise.all(probes.map((probe) => new Promise((done) => probe.close(done))));
  return ports;
}
