/** Where a backup is taken from: the two servers of one instance, its secret, and what it has made for itself. */
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { findInstance } from "../instance.ts";

type Environment = Readonly<Record<string, string | undefined>>;

export interface Servers {
  readonly natsUrl: string;
  readonly databaseUrl: string;
}

export interface Source extends Servers {
  readonly serverSecret: string;
  /** Files that travel with the backup, by name. */
  readonly own: ReadonlyMap<string, Uint8Array>;
}

/** Names of those files. The first keys are there for people who follow the tour, and keep a start from making new ones. */
export const own = { secret: "server-secret", bootstrap: "bootstrap.json" } as const;

export const serversIn = ({ NATS_URL, DATABASE_URL }: Environment): Partial<Servers> => ({
  ...(NATS_URL ? { natsUrl: NATS_URL } : {}),
  ...(DATABASE_URL ? { databaseUrl: DATABASE_URL } : {}),
});

/** As the environment says, or as the instance in DATA_DIR says of itself; never one server of each. */
export async function sourceOf(env: Environment, dataDir: string): Promise<Source> {
  const { natsUrl, databaseUrl } = serversIn(env);
  const given = env.SERVER_SECRET || undefined;
  if (natsUrl && databaseUrl) {
    if (!given) throw new Error("Set SERVER_SECRET: a backup says which one it opens with");
    return { natsUrl, databaseUrl, serverSecret: given, own: new Map() };
  }
  const instance = await findInstance(dataDir);
  if (!instance) {
    throw new Error(`No instance runs in ${dataDir}: start one, or set DATA_DIR, or both NATS_URL and DATABASE_URL`);
  }
  const { nats_url, database_url } = instance;
  if (natsUrl && natsUrl !== nats_url || databaseUrl && databaseUrl !== database_url) {
    throw new Error(
      `Set both NATS_URL and DATABASE_URL: the one that is set is not that of the instance in ${dataDir}`,
    );
  }
  const servers = { natsUrl: nats_url, databaseUrl: database_url };
  if (given) return { ...servers, serverSecret: given, own: new Map() };
  const { server } = JSON.parse(await readFile(join(dataDir, "secrets.json"), "utf8")) as { server: string };
  const bootstrap = await readFile(join(dataDir, own.bootstrap)).catch(() => undefined);
  return {
    ...servers,
    serverSecret: server,
    own: new Map([[own.secret, Buffer.from(server)], ...bootstrap ? [[own.bootstrap, bootstrap] as const] : []]),
  };
}
