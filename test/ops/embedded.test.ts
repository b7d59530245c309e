// The embedded servers: what a user may rely on when they start, stop, are killed, or meet each other.
import { jetstream, jetstreamManager } from "@nats-io/jetstream";
import { connect } from "@nats-io/transport-node";
import { type ChildProcess, spawn } from "node:child_process";
import { existsSync } from "node:fs";
import { chmod, mkdir, mkdtemp, readdir, readFile, rm, stat, writeFile } from "node:fs/promises";
import { type AddressInfo, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import process from "node:process";
import { createInterface } from "node:readline";
import postgres from "postgres";
import { describe, expect, it } from "vitest";
import { identify, isAlive, type ProcessIdentity } from "../../ops/embedded/claim.ts";
import { startNats } from "../../ops/embedded/nats.ts";
import { startPostgres } from "../../ops/embedded/postgres.ts";
import { projectDir } from "../../ops/setup.mjs";

const isRoot = process.geteuid?.() === 0;
const hasSetpriv = ["/usr/bin/setpriv", "/bin/setpriv"].some((file) => existsSync(file));

describe("both servers", () => {
  it("keep messages and rows over a restart", async () => {
    await using folder = await newFolder();
    {
      await using servers = await start(folder.path);
      await publish(servers.nats.url, "kept");
      await query(servers.postgres.url, (sql) => sql`create table kept as select 42 as answer`);
    }
    await using servers = await start(folder.path);
    expect(await messages(servers.nats.url)).toEqual(["kept"]);
    expect(await query(servers.postgres.url, (sql) => sql`select answer from kept`)).toEqual([{ answer: 42 }]);
  });

  it("keep what was acknowledged when they are killed, and say that they ended", async () => {
    await using folder = await newFolder();
    const servers = await start(folder.path);
    await publish(servers.nats.url, "kept");
    await query(servers.postgres.url, (sql) => sql`create table kept as select 42 as answer`);
    process.kill(servers.nats.pid, "SIGKILL");
    process.kill(servers.postgres.pid, "SIGKILL");
    expect(await servers.nats.exited).toEqual({ code: null, signal: "SIGKILL" });
    expect(await servers.postgres.exited).toEqual({ code: null, signal: "SIGKILL" });

    await using again = await start(folder.path);
    expect(await messages(again.nats.url)).toEqual(["kept"]);
    expect(await query(again.postgres.url, (sql) => sql`select answer from kept`)).toEqual([{ answer: 42 }]);
  });

  it("run side by side with those of another folder", async () => {
    await using one = await newFolder();
    await using other = await newFolder();
    await using first = await start(one.path);
    await using second = await start(other.path);
    await publish(first.nats.url, "first");
    await publish(second.nats.url, "second");

    expect(await messages(first.nats.url)).toEqual(["first"]);
    expect(await messages(second.nats.url)).toEqual(["second"]);
    expect(first.postgres.url).not.toBe(second.postgres.url);
  });

  it("refuse a folder that a living process uses, in one line that names it", async () => {
    await using folder = await newFolder();
    await using parent = await startParent(folder.path);
    const refusal = `${folder.path} is in use by process ${parent.pid}: stop that one, or choose another DATA_DIR`;

    await expect(startNats({ dataDir: folder.path })).rejects.toThrow(refusal);
    await expect(startPostgres({ dataDir: folder.path })).rejects.toThrow(refusal);
    expect(await allAlive(parent.servers)).toBe(true);
  });

  it("left behind by a killed parent are ended before new ones start on their data", async () => {
    await using folder = await newFolder();
    // Without a PATH there is no setpriv to end them at once.
    await using parent = await startParent(folder.path, { PATH: "" });
    await parent.kill();
    expect(await allAlive(parent.servers)).toBe(true);

    await using _servers = await start(folder.path);
    expect(await Promise.all(parent.servers.map(isAlive))).toEqual([false, false]);
  });

  it.runIf(hasSetpriv)("end with a killed parent where the kernel can tell them", async () => {
    await using folder = await newFolder();
    await using parent = await startParent(folder.path);
    await parent.kill();
    await expect.poll(() => Promise.all(parent.servers.map(isAlive)), { timeout: 10_000 }).toEqual([false, false]);
  });

  it("leave a process alone that was given the pid of a server long gone", async () => {
    await using folder = await newFolder();
    const bystander = spawn(process.execPath, ["-e", "setInterval(() => {}, 1000)"]);
    try {
      const gone = { pid: 2 ** 22 + 1, started: "before" };
      const reused = { pid: bystander.pid, started: "before" };
      for (const name of ["nats", "postgres"]) {
        await writeFile(
          join(folder.path, `${name}.lock`),
          JSON.stringify({ token: "old", owner: gone, child: reused }),
        );
      }
      await using _servers = await start(folder.path);
      expect(bystander.exitCode ?? bystander.signalCode).toBeNull();
      expect(await identify(bystander.pid as number)).toBeDefined();
    } finally {
      bystander.kill("SIGKILL");
    }
  });

  it("do not hear the terminal's Ctrl-C, so that the parent can drain first", async () => {
    await using folder = await newFolder();
    await using parent = await startParent(folder.path);
    process.kill(-parent.pid, "SIGINT");
    expect(await parent.nextLine()).toBe("SIGINT");
    expect(await allAlive(parent.servers)).toBe(true);
  });

  it("let nobody in without the password", async () => {
    await using folder = await newFolder();
    await using servers = await start(folder.path);
    const without = (url: string) => url.replace(/:[0-9a-f]+@/, ":wrong@");

    const nats = new URL(servers.nats.url);
    await expect(connect({ servers: nats.host, user: nats.username, pass: "wrong" })).rejects.toThrow(/Authorization/);
    await expect(query(without(servers.postgres.url), (sql) => sql`select 1`)).rejects.toThrow(/password/);
  });

  it("keep their secrets from other users of the machine", async () => {
    await using folder = await newFolder();
    await using _servers = await start(folder.path);
    for (const file of ["secrets.json", "nats.conf", "nats.lock", "postgres.lock"]) {
      expect([file, (await stat(join(folder.path, file))).mode & 0o077]).toEqual([file, 0]);
    }
    expect((await stat(join(folder.path, "postgres"))).mode & 0o077).toBe(0);
  });

  it.runIf(isRoot && process.platform === "linux")("run for root in a folder that only root can enter", async () => {
    await using folder = await newFolder();
    await chmod(folder.path, 0o700);
    const dataDir = join(folder.path, "data");
    {
      await using servers = await start(dataDir);
      await query(servers.postgres.url, (sql) => sql`create table kept as select 42 as answer`);
    }
    await using servers = await start(dataDir);
    expect(await query(servers.postgres.url, (sql) => sql`select answer from kept`)).toEqual([{ answer: 42 }]);
  });

  it("say in one line that a folder cannot hold their data", async () => {
    await using folder = await newFolder();
    const dataDir = join(folder.path, "file");
    await writeFile(dataDir, "");
    await expect(startNats({ dataDir })).rejects.toThrow(/^Cannot keep data in .*\/file: .*$/);
    await expect(startPostgres({ dataDir })).rejects.toThrow(/^Cannot keep data in .*\/file: .*$/);
  });

  it("say that the secrets are gone rather than make new ones that open nothing", async () => {
    await using folder = await newFolder();
    await (await start(folder.path))[Symbol.asyncDispose]();
    await rm(join(folder.path, "secrets.json"));
    await expect(startPostgres({ dataDir: folder.path })).rejects.toThrow(/secrets\.json is missing/);
  });
});

describe("nats-server", () => {
  it("says its last words when it cannot start, and leaves the folder free", async () => {
    await using folder = await newFolder();
    const taken = createServer();
    await new Promise<void>((resolve) => taken.listen(0, "127.0.0.1", resolve));
    const { port } = taken.address() as AddressInfo;
    try {
      await expect(startNats({ dataDir: folder.path, port })).rejects.toThrow(/address already in use/);
    } finally {
      taken.close();
    }
    await using nats = await startNats({ dataDir: folder.path });
    expect(nats.url).toMatch(/^nats:\/\/sensorium:[0-9a-f]+@127\.0\.0\.1:\d+$/);
  });

  it("takes a message of 12 MB, enough for the largest memory", async () => {
    await using folder = await newFolder();
    await using nats = await startNats({ dataDir: folder.path });
    await publish(nats.url, "x".repeat(12 * 1024 * 1024));
    expect((await messages(nats.url))[0]).toHaveLength(12 * 1024 * 1024);
  });

  it.each(
    [
      ["standard", "1s"],
      ["strict", "always"],
    ] as const,
  )("with %s durability syncs to disk: %s", async (durability, interval) => {
    await using folder = await newFolder();
    await using _nats = await startNats({ dataDir: folder.path, durability });
    expect(await readFile(join(folder.path, "nats.conf"), "utf8")).toContain(`sync_interval: "${interval}"`);
  });

  it("stops when its start is no longer wanted", async () => {
    await using folder = await newFolder();
    const starting = startNats({ dataDir: folder.path, signal: AbortSignal.abort(new Error("not wanted")) });
    await expect(starting).rejects.toThrow("not wanted");
    expect(existsSync(join(folder.path, "nats.lock"))).toBe(false);
  });
});

describe("Postgres", () => {
  it("begins again when it was killed while it made its database", async () => {
    await using folder = await newFolder();
    await mkdir(join(folder.path, "postgres.new-abcdef", "cluster"), { recursive: true });
    await using server = await startPostgres({ dataDir: folder.path });
    expect(await query(server.url, (sql) => sql`select current_database() as name`)).toEqual([{ name: "sensorium" }]);
    expect((await readdir(folder.path)).filter((name) => name.startsWith("postgres.new-"))).toEqual([]);
  });

  it("starts although the pid in its own lock belongs to another process by now", async () => {
    await using folder = await newFolder();
    await (await startPostgres({ dataDir: folder.path })).stop();
    const cluster = join(folder.path, "postgres");
    // Postgres worries only about processes of its own user.
    const { uid, gid } = await stat(cluster);
    const bystander = spawn("sleep", ["600"], isRoot ? { uid, gid } : {});
    try {
      await writeFile(join(cluster, "postmaster.pid"), `${bystander.pid}\n${cluster}\n`);
      await using server = await startPostgres({ dataDir: folder.path });
      expect(await query(server.url, (sql) => sql`select 1 as one`)).toEqual([{ one: 1 }]);
      expect(bystander.exitCode ?? bystander.signalCode).toBeNull();
    } finally {
      bystander.kill("SIGKILL");
    }
  });

  it("writes text in Unicode and time in UTC, whatever the machine's settings", async () => {
    await using folder = await newFolder();
    await using server = await startPostgres({ dataDir: folder.path });
    const found = await query(
      server.url,
      (sql) =>
        sql`select upper('née') as upper, current_setting('server_encoding') as encoding,
        current_setting('timezone') as timezone, current_setting('synchronous_commit') as commit`,
    );
    expect(found).toEqual([{ upper: "NÉE", encoding: "UTF8", timezone: "UTC", commit: "on" }]);
  });
});

async function newFolder() {
  const path = await mkdtemp(join(tmpdir(), "sensorium-embedded-"));
  // As an ordinary folder: mkdtemp's own mode would shut out the user that Postgres runs as.
  await chmod(path, 0o755);
  return {
    path,
    [Symbol.asyncDispose]: () => rm(path, { recursive: true, force: true, maxRetries: 10, retryDelay: 100 }),
  };
}

async function start(dataDir: string) {
  const [nats, postgres] = await Promise.all([startNats({ dataDir }), startPostgres({ dataDir })]);
  return {
    nats,
    postgres,
    [Symbol.asyncDispose]: async () => {
      await Promise.all([nats.stop(), postgres.stop()]);
    },
  };
}

/** Another process with servers of its own, in a process group of its own. */
async function startParent(dataDir: string, env: Record<string, string> = {}) {
  const script = join(projectDir, "test", "ops", "embedded-parent.ts");
  const child: ChildProcess = spawn(process.execPath, [script, dataDir], {
    detached: true,
    env: { ...process.env, ...env },
    stdio: ["ignore", "pipe", "inherit"],
  });
  const ended = new Promise((resolve) => child.once("exit", resolve));
  const lines = createInterface({ input: child.stdout as NonNullable<typeof child.stdout> })[Symbol.asyncIterator]();
  const nextLine = async () => (await lines.next()).value as string;
  const pids: number[] = JSON.parse(await nextLine());
  const servers = (await Promise.all(pids.map(identify))) as ProcessIdentity[];
  const kill = async () => {
    child.kill("SIGKILL");
    await ended;
  };
  return {
    pid: child.pid as number,
    servers,
    nextLine,
    kill,
    async [Symbol.asyncDispose]() {
      await kill();
      for (const server of servers) if (await isAlive(server)) process.kill(server.pid, "SIGKILL");
      await expect.poll(() => Promise.all(servers.map(isAlive)), { timeout: 10_000 }).toEqual([false, false]);
    },
  };
}

async function allAlive(servers: ProcessIdentity[]): Promise<boolean> {
  return (await Promise.all(servers.map(isAlive))).every(Boolean);
}

async function publish(url: string, text: string): Promise<void> {
  const connection = await open(url);
  try {
    await (await jetstreamManager(connection)).streams.add({ name: "KEPT", subjects: ["kept"] });
    await jetstream(connection).publish("kept", text);
  } finally {
    await connection.close();
  }
}

async function messages(url: string): Promise<string[]> {
  const connection = await open(url);
  try {
    const { streams } = await jetstreamManager(connection);
    const { state } = await streams.info("KEPT");
    const numbers = Array.from({ length: state.messages }, (_, index) => state.first_seq + index);
    return await Promise.all(numbers.map(async (seq) => (await streams.getMessage("KEPT", { seq }))?.string() ?? ""));
  } finally {
    await connection.close();
  }
}

function open(url: string) {
  const { host, username, password } = new URL(url);
  return connect({ servers: host, user: username, pass: password });
}

async function query(url: string, ask: (sql: postgres.Sql) => Promise<readonly postgres.Row[]>): Promise<unknown[]> {
  const sql = postgres(url, { max: 1, onnotice: () => {} });
  try {
    return (await ask(sql)).map((row) => ({ ...row }));
  } finally {
    await sql.end();
  }
}
