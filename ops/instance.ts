/** What a running embedded instance leaves in DATA_DIR for the operator's commands to find it. */
import { readFile, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";

export interface Instance {
  readonly base_url: string;
  readonly nats_url: string;
  readonly database_url: string;
}

const fileIn = (dataDir: string) => join(dataDir, "instance.json");

/** Readable to its owner alone: it holds the servers' credentials. */
export async function publishInstance(dataDir: string, instance: Instance): Promise<AsyncDisposable> {
  await writeFile(fileIn(dataDir), JSON.stringify(instance, null, 2) + "\n", { mode: 0o600 });
  return { [Symbol.asyncDispose]: () => rm(fileIn(dataDir), { force: true }) };
}

export async function findInstance(dataDir: string): Promise<Instance | undefined> {
  try {
    return JSON.parse(await readFile(fileIn(dataDir), "utf8")) as Instance;
  } catch {
    return undefined;
  }
}
