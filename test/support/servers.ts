/** Real servers for one test: a nats-server of its own, and a database of its own. */
import { randomBytes } from "node:crypto";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import postgres from "postgres";
import { inject } from "vitest";
import { type EmbeddedNats, startNats } from "../../ops/embedded/nats.ts";

/** Removed when the block ends, also while a server that was killed is still writing its last file there. */
export async function temporaryFolder(): Promise<{ path: string } & AsyncDisposable> {
  const path = await mkdtemp(join(tmpdir(), "sensorium-test-"));
  return {
    path,
    [Symbol.asyncDispose]: () => rm(path, { recursive: true, force: true, maxRetries: 10, retryDelay: 100 }),
  };
}

/** A broker that can be stopped, killed and started again on the same port with the same data. */
export interface Broker extends AsyncDisposable {
  readonly url: string;
  kill(): Promise<void>;
  start(): Promise<void>;
}

export async function broker(): Promise<Broker> {
  const folder = await temporaryFolder();
  let server: EmbeddedNats = await startNats({ dataDir: folder.path });
  const port = Number(new URL(server.url).port);
  return {
    url: server.url,
    async kill() {
      process.kill(server.pid, "SIGKILL");
      await server.exited;
      await server.stop();
    },
    async start() {
      server = await startNats({ dataDir: folder.path, port });
    },
    async [Symbol.asyncDispose]() {
      await server.stop();
      await folder[Symbol.asyncDispose]();
    },
  };
}

export async function freshDatabase(): Promise<{ url: string } & AsyncDisposable> {
  const base = inject("databaseUrl");
  const name = `test_${randomBytes(8).toString("hex")}`;
  const run = async (statement: string) => {
    const sql = postgres(base, { max: 1, onnotice: () => {} });
    await sql.unsafe(statement);
    await sql.end();
  };
  await run(`create database ${name}`);
  const url = new URL(base);
  url.pathname = `/${name}`;
  return { url: url.href, [Symbol.asyncDispose]: () => run(`drop database if exists ${name} with (force)`) };
}
