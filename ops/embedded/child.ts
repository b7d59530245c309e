// A server as a child process: started away from the terminal, ended with its parent, its last words kept.
import { execFile, spawn } from "node:child_process";
import { closeSync, existsSync, openSync, readFileSync, renameSync, statSync } from "node:fs";
import { delimiter, join } from "node:path";
import process from "node:process";
import { setTimeout as sleep } from "node:timers/promises";
import { promisify } from "node:util";
import { isMainThread } from "node:worker_threads";
import { type Claim, end, type Ending, identify, sendSignal } from "./claim.ts";

export interface Exit {
  code: number | null;
  signal: NodeJS.Signals | null;
}

/** What a caller gets for every embedded server. */
export interface EmbeddedServer extends AsyncDisposable {
  /** Where clients connect, credentials included. */
  url: string;
  pid: number;
  /** Ends the server and waits for it; safe to call more than once. */
  stop(): Promise<void>;
  /** Settles when the server has ended, whoever ended it. */
  exited: Promise<Exit>;
}

export interface ChildOptions {
  name: string;
  command: string;
  args: string[];
  cwd: string;
  /** Receives stdout and stderr. */
  outputFile: string;
  /** Files whose end explains a failed start; the output file when not given. */
  logFiles?: string[];
  ending: Ending;
  identity?: { uid: number; gid: number };
  /** Descriptors the child finds as 3, 4, … */
  descriptors?: number[];
}

export interface Child {
  pid: number;
  exited: Promise<Exit>;
  stop(): Promise<void>;
  /** Polls until the condition gives a value; throws with the server's last words when it ends or time runs out. */
  ready<T>(condition: () => Promise<T | undefined>, limitMs: number, signal?: AbortSignal): Promise<T>;
  /** What the server wrote since this start. */
  lastWords(): string;
}

// Enough for a long look back; the file before it is kept too.
const OUTPUT_LIMIT_BYTES = 10 * 1024 * 1024;
const LAST_WORDS_LINES = 12;

export async function startChild(held: Claim, options: ChildOptions): Promise<Child> {
  const { name, outputFile, logFiles = [outputFile], ending } = options;
  rotate(outputFile);
  const heard = logFiles.map((file) => ({ file, from: statSync(file, { throwIfNoEntry: false })?.size ?? 0 }));
  const lastWords = () => heard.map(({ file, from }) => readFrom(file, from)).join("");
  const { pid, exited } = await launch(options);
  const identity = await identify(pid);
  if (identity) held.record(identity);

  let stopping: Promise<void> | undefined;
  const stop = () => (stopping ??= endAndWait());
  const endAndWait = async () => {
    if (identity) await end(identity, ending);
    await exited;
  };

  return {
    pid,
    exited,
    stop,
    lastWords,
    async ready(condition, limitMs, signal) {
      let ended: Exit | undefined;
      exited.then((exit) => (ended = exit));
      const deadline = Date.now() + limitMs;
      for (let pauseMs = 5;; pauseMs = Math.min(100, pauseMs * 1.5)) {
        signal?.throwIfAborted();
        const found = await condition();
        if (found !== undefined) return found;
        if (ended) throw new Error(`${name} ended at its start (${describe(ended)})${quote(lastWords())}`);
        if (Date.now() > deadline) {
          throw new Error(`${name} is not ready after ${limitMs / 1000} s${quote(lastWords())}`);
        }
        await Promise.race([sleep(pauseMs), exited]);
      }
    },
  };
}

/** The handle a caller gets; the claim ends with the server. */
export function asServer(child: Child, url: string, held: Claim): EmbeddedServer {
  const exited = child.exited.then(async (exit) => {
    await held.release();
    return exit;
  });
  const stop = async () => {
    await child.stop();
    await exited;
  };
  return { url, pid: child.pid, exited, stop, [Symbol.asyncDispose]: stop };
}

const running = new Map<number, NodeJS.Signals>();

function endAll(): void {
  for (const [pid, signal] of running) sendSignal(pid, signal);
}

async function launch(options: ChildOptions): Promise<{ pid: number; exited: Promise<Exit> }> {
  const [firstSignal] = options.ending[0] ?? ["SIGTERM"];
  const [command, ...args] = [...(await diesWithParent(firstSignal)), options.command, ...options.args] as [string];
  const output = openSync(options.outputFile, "a", 0o600);
  try {
    const child = spawn(command, args, {
      cwd: options.cwd,
      env: plainEnvironment(),
      // A session of its own: Ctrl-C in the terminal reaches the parent alone, which drains before it stops us.
      detached: true,
      stdio: ["ignore", output, output, ...(options.descriptors ?? [])],
      ...options.identity,
    });
    const exited = new Promise<Exit>((resolve) => child.once("exit", (code, signal) => resolve({ code, signal })));
    await new Promise<void>((resolve, reject) => child.once("spawn", resolve).once("error", reject));
    const pid = child.pid as number;
    running.set(pid, firstSignal);
    exited.then(() => running.delete(pid));
    // For an end by process.exit() or an uncaught error, where nobody calls stop().
    if (!process.listeners("exit").includes(endAll)) process.on("exit", endAll);
    return { pid, exited };
  } catch (error) {
    throw new Error(`Cannot start ${options.name} (${options.command}): ${(error as Error).message}`, { cause: error });
  } finally {
    closeSync(output);
  }
}

/** What a server needs of our environment; the keys and tokens in the rest are none of its business. */
export function plainEnvironment(): NodeJS.ProcessEnv {
  const wanted = ["PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "GOMAXPROCS", "GOMEMLIMIT"];
  const present = wanted.flatMap((name) => (process.env[name] === undefined ? [] : [[name, process.env[name]]]));
  return { ...Object.fromEntries(present), LC_ALL: "C" };
}

// With util-linux's setpriv the kernel itself signals the server when its parent is gone, SIGKILL included. Elsewhere
// the next start ends what was left. The kernel watches the thread that started the server, and only the main thread
// lives as long as the process.
async function diesWithParent(signal: NodeJS.Signals): Promise<string[]> {
  if (process.platform !== "linux" || !isMainThread) return [];
  const setpriv = (process.env.PATH ?? "").split(delimiter).map((folder) => join(folder, "setpriv")).find(existsSync);
  if (!setpriv) return [];
  const prefix = ["--pdeathsig", signal.slice("SIG".length), "--"];
  const works = promisify(execFile)(setpriv, [...prefix, "true"]).then(() => true, () => false);
  return (await works) ? [setpriv, ...prefix] : [];
}

function rotate(file: string): void {
  const sizeBytes = statSync(file, { throwIfNoEntry: false })?.size ?? 0;
  if (sizeBytes > OUTPUT_LIMIT_BYTES) renameSync(file, `${file}.1`);
}

function readFrom(file: string, from: number): string {
  try {
    const bytes = readFileSync(file);
    return bytes.subarray(bytes.length < from ? 0 : from).toString();
  } catch {
    return "";
  }
}

function quote(words: string): string {
  const lines = words.split("\n").filter((line) => line.trim() !== "").slice(-LAST_WORDS_LINES);
  return lines.length === 0 ? "" : `; its last words:\n${lines.map((line) => `  ${line}`).join("\n")}`;
}

function describe({ code, signal }: Exit): string {
  return signal ? `signal ${signal}` : `code ${code}`;
}
