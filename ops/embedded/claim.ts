// Who owns an embedded server's data: one live process at a time, known by its pid and the moment it started.
import { execFile } from "node:child_process";
import { randomBytes } from "node:crypto";
import { constants, readFileSync, renameSync, writeFileSync } from "node:fs";
import { access, link, mkdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import { promisify } from "node:util";

/** A process that cannot be mistaken for a later one with the same pid. */
export interface ProcessIdentity {
  pid: number;
  started: string;
}

export interface Claim {
  /** Remembers the server, so that a later start can end it should we be killed. Returns once it is on disk. */
  record(child: ProcessIdentity): void;
  release(): Promise<void>;
}

/** Signals to send in order, each with the time the process has to end before the next. */
export type Ending = readonly (readonly [signal: NodeJS.Signals, waitMs: number])[];

interface ClaimFile {
  token: string;
  owner: ProcessIdentity;
  child?: ProcessIdentity;
}

export interface ClaimOptions {
  dataDir: string;
  /** Names the claim file: one claim for each server. */
  name: string;
  ending: Ending;
}

/**
 * Takes the server's claim in the data folder, or throws when its owner lives. A claim whose owner is gone is stale: the
 * server it left behind is ended first, for two servers must never write to the same files.
 */
export async function claim({ dataDir, name, ending }: ClaimOptions): Promise<Claim> {
  await makeFolder(dataDir);
  const file = join(dataDir, `${name}.lock`);
  const mine: ClaimFile = { token: randomBytes(8).toString("hex"), owner: await identifySelf() };
  while (!(await createExclusively(file, mine))) {
    const held = await read(file);
    if (held && (await isAlive(held.owner))) {
      throw new Error(`${dataDir} is in use by process ${held.owner.pid}: stop that one, or choose another DATA_DIR`);
    }
    if (held?.child) await end(held.child, ending);
    await takeAway(file, held?.token);
  }
  return {
    record(child) {
      const draft = `${file}.${mine.token}`;
      writeFileSync(draft, JSON.stringify({ ...mine, child }), { mode: 0o600 });
      renameSync(draft, file);
    },
    async release() {
      if ((await read(file))?.token === mine.token) await rm(file, { force: true });
    },
  };
}

// Others may pass through but not look around: Postgres, which runs as somebody else when we are root, has its own
// folder in it.
async function makeFolder(dataDir: string): Promise<void> {
  try {
    await mkdir(dataDir, { recursive: true, mode: 0o711 });
    await access(dataDir, constants.W_OK | constants.X_OK);
  } catch (cause) {
    throw new Error(`Cannot keep data in ${dataDir}: ${(cause as Error).message}`, { cause });
  }
}

/** Ends the process, if it is still the one that was meant. */
export async function end(target: ProcessIdentity, ending: Ending): Promise<void> {
  for (const [signal, waitMs] of ending) {
    if (!(await isAlive(target))) return;
    sendSignal(target.pid, signal);
    const deadline = Date.now() + waitMs;
    while (Date.now() < deadline && (await isAlive(target))) await sleep(20);
  }
  if (await isAlive(target)) throw new Error(`Cannot end process ${target.pid}: it outlived ${ending.at(-1)?.[0]}`);
}

export function sendSignal(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(pid, signal);
  } catch (error) {
    // Gone already is what we wanted.
    if (codeOf(error) === "ESRCH") return;
    throw new Error(`Cannot end process ${pid} with ${signal}: ${(error as Error).message}`, { cause: error });
  }
}

export async function isAlive(identity: ProcessIdentity): Promise<boolean> {
  return (await identify(identity.pid))?.started === identity.started;
}

/** The process that has this pid now; undefined when there is none, or only its remains. */
export async function identify(pid: number): Promise<ProcessIdentity | undefined> {
  const started = process.platform === "linux" ? linuxStart(pid) : await unixStart(pid);
  return started === undefined ? undefined : { pid, started };
}

async function identifySelf(): Promise<ProcessIdentity> {
  const self = await identify(process.pid);
  if (!self) throw new Error(`Cannot find the own process ${process.pid} in the process table`);
  return self;
}

// Clock ticks since boot, with the boot they count from: both start again at small numbers after a reboot.
function linuxStart(pid: number): string | undefined {
  try {
    const fields = readFileSync(`/proc/${pid}/stat`, "utf8").split(") ").at(-1)?.split(" ") ?? [];
    const [state, ticks] = [fields[0], fields[19]];
    // A zombie holds no files; where nobody reaps it, as in some containers, it stays for ever.
    if (state === "Z" || state === "X" || ticks === undefined) return undefined;
    return `${readFileSync("/proc/sys/kernel/random/boot_id", "utf8").trim()} ${ticks}`;
  } catch (error) {
    if (codeOf(error) === "ENOENT" || codeOf(error) === "ESRCH") return undefined;
    throw error;
  }
}

async function unixStart(pid: number): Promise<string | undefined> {
  try {
    const options = { env: { ...process.env, LC_ALL: "C", TZ: "UTC" } };
    const { stdout } = await promisify(execFile)("ps", ["-o", "stat=,lstart=", "-p", String(pid)], options);
    const [state = "", ...started] = stdout.trim().split(/\s+/);
    return state === "" || state.startsWith("Z") ? undefined : started.join(" ");
  } catch {
    return undefined;
  }
}

// Linked from a finished draft, so that nobody reads a claim that is half written.
async function createExclusively(file: string, content: ClaimFile): Promise<boolean> {
  const draft = `${file}.${content.token}`;
  await writeFile(draft, JSON.stringify(content), { mode: 0o600 });
  try {
    await link(draft, file);
    return true;
  } catch (error) {
    if (codeOf(error) === "EEXIST") return false;
    throw error;
  } finally {
    await rm(draft, { force: true });
  }
}

// Renamed before it is removed: when another start was quicker, what we hold is its new claim, and goes back.
async function takeAway(file: string, staleToken: string | undefined): Promise<void> {
  const aside = `${file}.${randomBytes(8).toString("hex")}`;
  try {
    await rename(file, aside);
    if ((await read(aside))?.token !== staleToken) await link(aside, file);
  } catch (error) {
    if (codeOf(error) !== "ENOENT" && codeOf(error) !== "EEXIST") throw error;
  } finally {
    await rm(aside, { force: true });
  }
}

async function read(file: string): Promise<ClaimFile | undefined> {
  try {
    const { token, owner, child } = JSON.parse(await readFile(file, "utf8"));
    return isIdentity(owner) ? { token, owner, ...(isIdentity(child) && { child }) } : undefined;
  } catch {
    // Missing, or cut short by a full disk: nobody's claim.
    return undefined;
  }
}

function isIdentity(value: unknown): value is ProcessIdentity {
  const { pid, started } = (value ?? {}) as Partial<ProcessIdentity>;
  return Number.isSafeInteger(pid) && Number(pid) > 1 && typeof started === "string";
}

function codeOf(error: unknown): string | undefined {
  return (error as NodeJS.ErrnoException).code;
}
