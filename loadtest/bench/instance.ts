/** An instance to measure: the project's own start command on a folder that is thrown away. */
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";

const root = fileURLToPath(new URL("../../", import.meta.url));

export interface Measured extends AsyncDisposable {
  readonly pid: number;
  readonly url: string;
}

/** Waits for a line of output that says where it listens. */
async function listening(child: ChildProcess, line: RegExp): Promise<string> {
  let output = "";
  return await new Promise((resolve, reject) => {
    child.stdout!.on("data", (data) => {
      output += data;
      const found = line.exec(output)?.[1];
      if (found) resolve(found);
    });
    child.stderr!.on("data", (data) => output += data);
    child.once("exit", (code) => reject(new Error(`It ended with ${code}: ${output}`)));
  });
}

async function stopped(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null) return;
  child.kill("SIGTERM");
  await once(child, "exit");
}

export interface Bootstrap {
  readonly base_url: string;
  readonly agent_id: string;
  readonly agent_key: string;
  readonly org_admin_key: string;
}

/** The start command on a folder, without rate limits, once it is ready. */
export async function launch(dataDir: string, env: Record<string, string>) {
  const child = spawn(process.execPath, ["ops/start.ts"], {
    cwd: root,
    env: {
      ...process.env,
      DATA_DIR: dataDir,
      PORT: "0",
      LOG_LEVEL: "warn",
      RATE_LIMIT_AGENT_PER_MINUTE: "0",
      RATE_LIMIT_TENANT_PER_MINUTE: "0",
      RATE_LIMIT_TOKEN_PER_MINUTE: "0",
      ...env,
    },
  });
  const url = await listening(child, /ready on (\S+)/);
  const bootstrap = JSON.parse(await readFile(join(dataDir, "bootstrap.json"), "utf8")) as Bootstrap;
  return { child, url, bootstrap, token: await exchange(url, bootstrap.agent_key) };
}

export const newDataDir = (): Promise<string> => mkdtemp(join(tmpdir(), "sensorium-bench-"));

export async function startInstance(
  env: Record<string, string> = {},
): Promise<Measured & { bootstrap: Bootstrap; token: string; dataDir: string }> {
  const dataDir = await newDataDir();
  const { child, url, bootstrap, token } = await launch(dataDir, env);
  return {
    pid: child.pid!,
    url,
    bootstrap,
    token,
    dataDir,
    async [Symbol.asyncDispose]() {
      await stopped(child);
      await rm(dataDir, { recursive: true, force: true });
    },
  };
}

export async function startScript(script: string): Promise<Measured> {
  const child = spawn(process.execPath, [script], { cwd: root });
  const url = await listening(child, /listening on (\S+)/);
  return { pid: child.pid!, url, [Symbol.asyncDispose]: () => stopped(child) };
}

export async function exchange(url: string, key: string): Promise<string> {
  const response = await fetch(`${url}/auth/token`, {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ api_key: key }),
  });
  return (await response.json() as { access_token: string }).access_token;
}
