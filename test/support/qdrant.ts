/**
 * A real Qdrant in a folder of its own, for tests that take it away and bring it back. There is none to install from a
 * registry of packages: QDRANT_BIN says where its program is, and without it such tests are skipped.
 */
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { freePorts } from "../../ops/fleet.ts";
import { eventually } from "./eventually.ts";
import { temporaryFolder } from "./servers.ts";

export interface Qdrant extends AsyncDisposable {
  readonly url: string;
  start(): Promise<void>;
  kill(): Promise<void>;
  /** From now on it takes connections and says nothing. */
  freeze(): void;
  thaw(): void;
  /** Everything it has stored is gone; to be called while it is not running. */
  erase(): Promise<void>;
}

export const qdrantProgram = process.env.QDRANT_BIN;

export async function qdrant(options: { readonly apiKey?: string } = {}): Promise<Qdrant> {
  if (!qdrantProgram) throw new Error("QDRANT_BIN does not say where the program is");
  const program = qdrantProgram;
  const folder = await temporaryFolder();
  const [port, grpcPort] = await freePorts(2);
  const url = `http://127.0.0.1:${port}`;
  const storage = join(folder.path, "storage");
  let child: ChildProcess | undefined;
  const self: Qdrant = {
    url,
    async start() {
      child = spawn(program, {
        cwd: folder.path,
        stdio: "ignore",
        env: {
          ...process.env,
          QDRANT__STORAGE__STORAGE_PATH: storage,
          QDRANT__STORAGE__SNAPSHOTS_PATH: join(folder.path, "snapshots"),
          QDRANT__SERVICE__HOST: "127.0.0.1",
          QDRANT__SERVICE__HTTP_PORT: String(port),
          QDRANT__SERVICE__GRPC_PORT: String(grpcPort),
          QDRANT__TELEMETRY_DISABLED: "true",
          QDRANT__LOG_LEVEL: "WARN",
          ...(options.apiKey ? { QDRANT__SERVICE__API_KEY: options.apiKey } : {}),
        },
      });
      const isReady = async () => (await fetch(`${url}/readyz`).catch(() => undefined))?.ok;
      await eventually(isReady, "Qdrant to be ready", 60_000);
    },
    async kill() {
      if (!child) return;
      const ended = once(child, "exit");
      child.kill("SIGKILL");
      await ended;
      child = undefined;
    },
    freeze: () => void child?.kill("SIGSTOP"),
    thaw: () => void child?.kill("SIGCONT"),
    erase: () => rm(storage, { recursive: true, force: true }),
    async [Symbol.asyncDispose]() {
      await self.kill();
      await folder[Symbol.asyncDispose]();
    },
  };
  await self.start();
  return self;
}
