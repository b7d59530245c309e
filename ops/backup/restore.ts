/** Puts a backup into empty servers, which no process of ours uses yet. */
import { createReadStream } from "node:fs";
import { readFile } from "node:fs/promises";
import { basename, join } from "node:path";
import { jetstreamManager } from "@nats-io/jetstream";
import type { NatsConnection } from "@nats-io/nats-core";
import type { Tx } from "../../runtime/database.ts";
import { begin } from "../../runtime/lifecycle.ts";
import { silent } from "../../runtime/log.ts";
import { version } from "../../runtime/version.ts";
import { deadLetterStore } from "../../services/delivery/store.ts";
import { start as startRegistry } from "../../services/registry/main.ts";
import { isAtLeast } from "../setup.mjs";
import { type Manifest, readManifest, verifyFiles } from "./archive.ts";
import { inOrder, isLeftOut, isNumbered } from "./order.ts";
import { fingerprint } from "./secret.ts";
import { own, type Servers } from "./source.ts";
import { CHUNK_BYTES, leaveOut, restoreSnapshot } from "./snapshots.ts";
import { assertKnown, firstFilled, loadTables, openForCopy, schemaFolders, shapeTables } from "./tables.ts";

export interface RestoreOptions extends Servers {
  readonly folder: string;
  readonly manifest: Manifest;
  readonly nc: NatsConnection;
  readonly serverSecret: string;
  /** How many copies of each stream; as many as the target has nodes for, whatever the backup's had. */
  readonly replicas: number;
  readonly say: (line: string) => void;
}

/** Throws unless the backup is whole and this release can read it. */
export async function checkedManifest(folder: string): Promise<Manifest> {
  const manifest = await readManifest(folder, { release: await version() });
  await assertKnown(manifest.migrations, await schemaFolders());
  await verifyFiles(folder, manifest);
  return manifest;
}

/** Where a file lies that the instance had made for itself; undefined when the backup was made without. */
export function ownFile(manifest: Manifest, folder: string, name: string): string | undefined {
  const found = manifest.own.find(({ file }) => basename(file) === name);
  return found && join(folder, found.file);
}

/** The secret that the backup opens with: the one given, or the one in it. */
export async function secretFor(manifest: Manifest, folder: string, given: string | undefined): Promise<string> {
  const kept = ownFile(manifest, folder, own.secret);
  const secret = given || (kept && await readFile(kept, "utf8"));
  if (!secret) {
    throw new Error("Set SERVER_SECRET to that of the instance: the backup opens with it and does not have it");
  }
  if (fingerprint(secret) !== manifest.secret) {
    throw new Error("This backup was made under another SERVER_SECRET, and nothing in it opens with the one given");
  }
  return secret;
}

export async function restoreBackup(options: RestoreOptions): Promise<void> {
  const { folder, manifest, nc, databaseUrl, replicas, say } = options;
  const folders = await schemaFolders();
  const sql = openForCopy(databaseUrl);
  try {
    await assertFresh(nc, await firstFilled(sql, [...folders.keys()]));
    if (!isAtLeast(nc.info!.version, manifest.nats)) {
      throw new Error(`The streams were copied from nats-server ${manifest.nats}, and this is ${nc.info!.version}`);
    }
    await shapeTables(sql, manifest.migrations, folders);
    // The rows are there when the streams are, or neither is.
    await sql.begin(async (tx) => {
      await loadTables(tx, folder, manifest);
      await mend(tx, manifest);
      say(`${manifest.tables.length} tables filled; now the streams`);
      await restoreStreams(nc, folder, manifest, replicas);
    });
  } finally {
    await sql.end({ timeout: 5 });
  }
  await announce(options);
}

/** Whoever has used these servers has left a stream or a row. */
async function assertFresh(nc: NatsConnection, filledTable: string | undefined): Promise<void> {
  const manager = await jetstreamManager(nc);
  const present = await Array.fromAsync(manager.streams.list(), ({ config }) => config.name);
  const ours = [...inOrder(present), ...present.filter(isLeftOut)];
  const found = filledTable ? `table ${filledTable} has rows` : ours[0] ? `there is a stream ${ours[0]}` : undefined;
  if (found) throw new Error(`A backup is restored into empty servers only, and here ${found}`);
}

/**
 * A replay moves a dead letter from Postgres into a queue, against the direction in which the two were copied: one that
 * was replayed meanwhile may have left the one without having come into the other. It is a dead letter again.
 */
const mend = (tx: Tx, { began_at }: Manifest): Promise<void> => deadLetterStore(tx).takeBackReplays(began_at);

async function restoreStreams(
  nc: NatsConnection,
  folder: string,
  { streams }: Manifest,
  replicas: number,
): Promise<void> {
  const manager = await jetstreamManager(nc);
  const made: string[] = [];
  try {
    for (const snapshot of streams) {
      const content = createReadStream(join(folder, snapshot.data.file), { highWaterMark: CHUNK_BYTES });
      made.push(snapshot.name);
      await restoreSnapshot(nc, snapshot, { ...snapshot.config, num_replicas: replicas }, content);
      if (isNumbered(snapshot.name)) await leaveOut(nc, snapshot);
    }
  } catch (error) {
    for (const name of made) await manager.streams.delete(name).catch(() => {});
    throw error;
  }
}

/** A registry, started for a moment: before anyone routes an event, the buckets hold again what Postgres holds. */
async function announce(
  { natsUrl, databaseUrl, serverSecret, replicas }: Servers & Pick<RestoreOptions, "serverSecret" | "replicas">,
): Promise<void> {
  const source = {
    NATS_URL: natsUrl,
    NATS_REPLICAS: String(replicas),
    DATABASE_URL: databaseUrl,
    SERVER_SECRET: serverSecret,
  };
  await using _registry = await begin((app) => startRegistry(app, silent, source));
}
