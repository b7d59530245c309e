/** `npm start` as a user runs it: a process of its own, stopped and gone when the block ends. */
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

export interface TestInstance extends AsyncDisposable {
  readonly baseUrl: string;
  readonly output: () => string;
  readonly process: ChildProcess;
  stop(signal?: NodeJS.Signals): Promise<number | null>;
}

const root = fileURLToPath(new URL("../../", import.meta.url));
const node = ["node", "ops/start.ts"] as const;
// The package's own `deno` command is a script around the binary, and a signal sent to it goes no further.
const binary = `${root}node_modules/@deno/linux-${process.arch}-glibc/deno`;
const deno = [existsSync(binary) ? binary : "deno", "run", "-P=start", "ops/start.ts"] as const;

/** Starts it and waits for the line that says it is ready, or throws what it said instead. */
export async function instance(
  dataDir: string,
  options: { env?: Record<string, string>; runtime?: "node" | "deno"; args?: string[] } = {},
): Promise<TestInstance> {
  const [command, ...args] = options.runtime === "deno" ? deno : node;
  const child = spawn(command, [...args, ...options.args ?? []], {
    cwd: root,
    env: { ...process.env, DATA_DIR: dataDir, PORT: "0", ...options.env },
  });
  let output = "";
  child.stdout.on("data", (data) => output += data);
  child.stderr.on("data", (data) => output += data);
  const ended = once(child, "exit") as Promise<[number | null, string | null]>;
  const stop = async (signal: NodeJS.Signals = "SIGTERM") => {
    child.kill(signal);
    return (await ended)[0];
  };
  const baseUrl = await new Promise<string>((resolve, reject) => {
    const look = () => {
      const [, url] = /ready on (\S+)/.exec(output) ?? [];
      if (url) resolve(url);
    };
    child.stdout.on("data", look);
    void ended.then(([code]) => reject(Object.assign(new Error(`It ended with ${code}: ${output}`), { code, output })));
  });
  return { baseUrl, output: () => output, process: child, stop, [Symbol.asyncDispose]: async () => void await stop() };
}

export async function bootstrapOf(dataDir: string): Promise<Record<string, string>> {
  return JSON.parse(await readFile(join(dataDir, "bootstrap.json"), "utf8"));
}
