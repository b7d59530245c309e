/**
 * A real RabbitMQ with its AMQP 1.0 plugin, on free ports and in a folder of its own. One that is installed is used;
 * else Debian's packages are fetched once, without root, into the project's cache. Where neither can be had, whoever
 * asks is told why.
 */
import { type ChildProcess, execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { appendFile, mkdir, mkdtemp, readdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { Connection, type Message } from "rhea-promise";
import { temporaryFolder } from "./servers.ts";

const run = promisify(execFile);
const cache = fileURLToPath(new URL("../../.cache/", import.meta.url));

/** Where its programs are. */
interface Program {
  readonly sbin: string;
  readonly erlang: string;
}

export interface RabbitMq extends AsyncDisposable {
  readonly port: number;
  kill(): Promise<void>;
  start(): Promise<void>;
  /** Puts messages into a queue; settles when the broker has them. */
  send(queue: string, messages: readonly Message[]): Promise<void>;
  /** How many messages a queue holds, those handed out and not settled included. */
  depth(queue: string): Promise<number>;
}

/** The programs, or the reason why there are none. */
export async function findRabbitMq(): Promise<Program | string> {
  const installed = await programIn("/");
  if (installed) return installed;
  const root = join(cache, `rabbitmq-${process.arch}`);
  const cached = await programIn(root);
  if (cached) return cached;
  try {
    await fetchPackages(root);
    return await programIn(root) ?? "Debian's rabbitmq-server has no server in it";
  } catch (error) {
    return `rabbitmq-server is not installed and Debian's packages cannot be had: ${firstLine(error)}`;
  }
}

async function programIn(root: string): Promise<Program | undefined> {
  const lib = join(root, "usr/lib/rabbitmq/lib");
  const [version] = (await readdir(lib).catch(() => [])).filter((name) => name.startsWith("rabbitmq_server-"));
  const program = { sbin: join(lib, version ?? "", "sbin"), erlang: join(root, "usr/lib/erlang") };
  return version && existsSync(join(program.erlang, "bin/erl")) ? program : undefined;
}

/** With lists and caches of our own, apt needs no root. */
async function fetchPackages(root: string): Promise<void> {
  await mkdir(cache, { recursive: true });
  const work = await mkdtemp(join(cache, "rabbitmq-"));
  const options = ["Dir::State::Lists", "Dir::Cache"].flatMap((name) => ["-o", `${name}=${join(work, "apt")}`]);
  options.push("-o", "Debug::NoLocking=true", "-o", "APT::Sandbox::User=root", "-o", "Acquire::Languages=none");
  options.push("-o", "Acquire::Retries=1", "-o", "Acquire::http::Timeout=10", "-o", "Acquire::https::Timeout=10");
  // A machine without a mirror skips these tests; it must not wait for long before it knows.
  const limits = { cwd: work, timeout: 90_000, maxBuffer: 16 * 1024 * 1024 };
  try {
    await mkdir(join(work, "apt/partial"), { recursive: true });
    await mkdir(join(work, "apt/archives/partial"), { recursive: true });
    await run("apt-get", ["-qq", ...options, "update"], limits);
    const { stdout } = await run("apt-cache", [
      ...options,
      "depends",
      "--recurse",
      "--no-recommends",
      "--no-suggests",
      "--no-conflicts",
      "--no-breaks",
      "--no-replaces",
      "--no-enhances",
      "rabbitmq-server",
    ], limits);
    const erlang = new Set(stdout.split("\n").filter((name) => /^(erlang-[a-z0-9-]+|libsctp1)$/.test(name)));
    await run("apt-get", ["-qq", ...options, "download", "rabbitmq-server", ...erlang], limits);
    const made = join(work, "root");
    for (const deb of (await readdir(work)).filter((name) => name.endsWith(".deb"))) {
      await run("dpkg-deb", ["-x", join(work, deb), made], limits);
    }
    // Its start script knows one place only.
    const erl = join(made, "usr/lib/erlang/bin/erl");
    const script = await readFile(erl, "utf8");
    await writeFile(erl, script.replaceAll("ROOTDIR=/usr/lib/erlang", `ROOTDIR=${join(root, "usr/lib/erlang")}`));
    await rename(made, root);
  } finally {
    await rm(work, { recursive: true, force: true });
  }
}

export async function rabbitMq({ sbin, erlang }: Program): Promise<RabbitMq> {
  await using stack = new AsyncDisposableStack();
  const folder = stack.use(await temporaryFolder());
  const [port, distribution, epmd] = [await freePort(), await freePort(), await freePort()];
  const file = (name: string) => join(folder.path, name);
  await writeFile(file("plugins"), "[rabbitmq_amqp1_0].\n");
  await writeFile(
    file("rabbitmq.conf"),
    [
      `listeners.tcp.1 = 127.0.0.1:${port}`,
      "log.console = true",
      "log.console.level = error",
      "disk_free_limit.absolute = 1MB",
    ].join("\n"),
  );
  const env = {
    HOME: folder.path,
    HOSTNAME: "localhost",
    LANG: "C.UTF-8",
    PATH: `${erlang}/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin`,
    ERL_EPMD_PORT: String(epmd),
    ERL_EPMD_ADDRESS: "127.0.0.1",
    RABBITMQ_NODENAME: "sensorium@localhost",
    RABBITMQ_DIST_PORT: String(distribution),
    RABBITMQ_CONFIG_FILE: file("rabbitmq.conf"),
    RABBITMQ_MNESIA_BASE: file("mnesia"),
    RABBITMQ_LOG_BASE: file("log"),
    RABBITMQ_LOGS: "-",
    RABBITMQ_ENABLED_PLUGINS_FILE: file("plugins"),
    RABBITMQ_PID_FILE: file("pid"),
    RABBITMQ_CONF_ENV_FILE: file("none"),
    // One core of two: the system under test needs the other.
    RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS: "+S 1:1 +sbwt none",
  };
  const launch = (command: string, args: string[] = []): ChildProcess => {
    // A group of its own, because the server is a grandchild.
    const child = spawn(command, args, { env, cwd: folder.path, detached: true });
    for (const stream of [child.stdout, child.stderr]) stream?.on("data", (data) => void appendFile(file("out"), data));
    return child;
  };
  const names = launch(`${erlang}/bin/epmd`, ["-port", String(epmd), "-address", "127.0.0.1"]);
  stack.defer(() => end(names));
  let server: ChildProcess | undefined;
  stack.defer(async () => void (server && await end(server)));
  const start = async () => {
    server = launch(join(sbin, "rabbitmq-server"));
    for (const until = Date.now() + 60_000;;) {
      if (await answers(port)) return;
      if (server.exitCode !== null || Date.now() > until) {
        throw new Error(`RabbitMQ did not start: ${await readFile(file("out"), "utf8").catch(() => "")}`);
      }
      await new Promise((done) => setTimeout(done, 100));
    }
  };
  await start();
  const kept = stack.move();
  return {
    port,
    start,
    async kill() {
      if (server) await end(server);
    },
    async send(queue, messages) {
      const connection = await link(port);
      try {
        // Made by whoever comes first, and durable only if that one says so.
        const target = { address: `/queue/${queue}`, durable: 2 };
        const sender = await connection.createAwaitableSender({ target });
        for (let i = 0; i < messages.length; i += 200) {
          await Promise.all(messages.slice(i, i + 200).map((message) => sender.send({ durable: true, ...message })));
        }
      } finally {
        await connection.close();
      }
    },
    async depth(queue) {
      const { stdout } = await run(join(sbin, "rabbitmqctl"), ["-q", "list_queues", "name", "messages"], { env });
      const [, count] = new RegExp(`^${queue}\\s+(\\d+)$`, "m").exec(stdout) ?? [];
      return Number(count ?? 0);
    },
    [Symbol.asyncDispose]: () => kept.disposeAsync(),
  };
}

async function link(port: number): Promise<Connection> {
  const connection = new Connection({
    host: "127.0.0.1",
    port,
    username: "guest",
    password: "guest",
    reconnect: false,
    operationTimeoutInSeconds: 20,
  });
  return await connection.open();
}

async function answers(port: number): Promise<boolean> {
  try {
    await (await link(port)).close();
    return true;
  } catch {
    return false;
  }
}

async function end(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const exited = once(child, "exit");
  try {
    process.kill(-child.pid!, "SIGKILL");
  } catch {
    child.kill("SIGKILL");
  }
  await exited;
}

async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as { port: number };
  await new Promise((done) => server.close(done));
  return port;
}

const firstLine = (error: unknown) => (error as Error).message.split("\n")[0]!;
