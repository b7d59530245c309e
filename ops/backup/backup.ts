/** Takes a backup of a running instance. */
import { setTimeout as pause } from "node:timers/promises";
import { jetstreamManager } from "@nats-io/jetstream";
import type { NatsConnection } from "@nats-io/nats-core";
import { consumers } from "../../contracts/streams.ts";
import type { Sql } from "../../runtime/database.ts";
import { version } from "../../runtime/version.ts";
import { discard, type Manifest, newFolder, type Snapshot, store, writeManifest } from "./archive.ts";
import { inOrder, isNumbered } from "./order.ts";
import { fingerprint } from "./secret.ts";
import { takeSnapshot } from "./snapshots.ts";
import { dumpTables } from "./tables.ts";

export interface BackupOptions {
  readonly nc: NatsConnection;
  /** A connection without a limit on its statements. */
  readonly sql: Sql;
  readonly folder: string;
  readonly serverSecret: string;
  /** What the instance has made for itself, by name. */
  readonly own: ReadonlyMap<string, Uint8Array>;
  readonly say: (line: string) => void;
}

/** Fan-out is milliseconds behind as a rule. One that is further behind is not waited for. */
const FANOUT_MS = 10_000;

export async function takeBackup(options: BackupOptions): Promise<Manifest> {
  await newFolder(options.folder);
  try {
    return await fill(options);
  } catch (error) {
    await discard(options.folder);
    throw error;
  }
}

async function fill({ nc, sql, folder, serverSecret, own, say }: BackupOptions): Promise<Manifest> {
  const manager = await jetstreamManager(nc);
  const present = await Array.fromAsync(manager.streams.list(), ({ config }) => config.name);
  const wanted = inOrder(present);
  if (wanted.length === 0) throw new Error("There is nothing to back up: no process of Sensorium has run here yet");

  const began_at = await clockOf(sql);
  const behind = await untilFannedOut(nc);
  if (behind > 0) {
    say(`fan-out is ${behind} events behind and not waited for: some of them may come twice after a restore`);
  }
  const taken: Omit<Snapshot, "used">[] = [];
  for (const name of wanted) {
    const isBucket = name.startsWith("KV_");
    const { config, state, chunks } = await takeSnapshot(nc, name, !isBucket);
    taken.push({ name, config, state, data: await store(folder, `streams/${name}`, chunks) });
  }
  say(`${taken.length} streams copied; now the tables`);
  const rows = await dumpTables(sql, folder);
  const streams: Snapshot[] = [];
  for (const snapshot of taken) {
    const { name, state } = snapshot;
    const used = isNumbered(name) ? (await manager.streams.info(name)).state.last_seq : state.last_seq;
    streams.push({ ...snapshot, used });
  }
  const kept = [];
  for (const [name, content] of own) kept.push(await store(folder, `own/${name}`, asChunks(content)));
  return await writeManifest(folder, {
    release: await version(),
    nats: nc.info!.version,
    began_at,
    ended_at: await clockOf(sql),
    secret: fingerprint(serverSecret),
    ...rows,
    streams,
    own: kept,
  });
}

/**
 * Waits until every event accepted before now has been queued for its agents and fan-out has said so. Without it nothing
 * would be lost, but an event acknowledged a moment ago could be fanned out once more after a restore. Answers how many
 * events are still to come when the time is over.
 */
async function untilFannedOut(nc: NatsConnection): Promise<number> {
  const { stream, name } = consumers.fanout;
  const manager = await jetstreamManager(nc);
  const { state } = await manager.streams.info(stream);
  for (const until = Date.now() + FANOUT_MS;; await pause(20)) {
    const info = await manager.consumers.info(stream, name).catch(() => undefined);
    // Nobody has fanned anything out yet, so nothing can be fanned out again.
    if (!info) return 0;
    const left = info.num_pending + info.num_ack_pending;
    if (left === 0 || info.ack_floor.stream_seq >= state.last_seq) return 0;
    if (Date.now() > until) return left;
  }
}

async function clockOf(sql: Sql): Promise<string> {
  const [now] = await sql<{ now: string }[]>`
    select to_char(clock_timestamp() at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as now`;
  return now!.now;
}

async function* asChunks(content: Uint8Array): AsyncGenerator<Uint8Array> {
  yield content;
}
