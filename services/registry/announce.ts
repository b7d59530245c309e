/**
 * Tells the hot paths what changed. A change and its announcements commit together in Postgres (the outbox); they are
 * then written to their bucket and removed. Whoever dies in between leaves them for the next sweep of any replica.
 */
import { jetstream } from "@nats-io/jetstream";
import type { KV } from "@nats-io/kv";
import { headers, type NatsConnection } from "@nats-io/nats-core";
import { unavailable } from "../../contracts/errors.ts";
import { buckets } from "../../contracts/streams.ts";
import { lostRace, openBucket } from "../../runtime/buckets.ts";
import type { Sql, Tx } from "../../runtime/database.ts";
import type { Log } from "../../runtime/log.ts";

export interface Announcement {
  readonly bucket: "routes" | "trust" | "webhooks" | "connectors";
  readonly key: string;
  /** Absent: the thing is gone. */
  readonly value?: Record<string, unknown>;
  /** For what matters only as long as some token may live. */
  readonly ttlSeconds?: number;
}

interface Pending {
  readonly version: string;
  readonly bucket: Announcement["bucket"];
  readonly key: string;
  readonly value: Record<string, unknown> | null;
  readonly ttl_seconds: number | null;
}

export interface Announcer extends AsyncDisposable {
  /**
   * Runs a change in a transaction. What it hands to `announce` is visible to every watcher before this returns, so a
   * caller who was answered can rely on it.
   */
  change<T>(work: (tx: Tx, announce: (item: Announcement) => void) => Promise<T>): Promise<T>;
}

const SWEEP_MS = 1_000;
/** Younger rows are in the hands of the request that wrote them. */
const SWEEP_AGE_SECONDS = 2;

export async function startAnnouncer(nc: NatsConnection, sql: Sql, log: Log): Promise<Announcer> {
  const open = {
    routes: await openBucket(nc, buckets.routes),
    trust: await openBucket(nc, buckets.trust),
    webhooks: await openBucket(nc, buckets.webhooks),
    connectors: await openBucket(nc, buckets.connectors),
  };
  const write = async (rows: readonly Pending[]) => {
    await Promise.all(rows.map((row) => publish(nc, open[row.bucket], row)));
    await sql`delete from registry.outbox where version in ${sql(rows.map((row) => row.version))}`;
  };
  const sweep = async (ageSeconds: number) => {
    const rows = await sql<Pending[]>`
      select version, bucket, key, value, ttl_seconds from registry.outbox
      where created_at <= now() - make_interval(secs => ${ageSeconds}) order by version limit 1000`;
    if (rows.length > 0) await write(rows);
    return rows.length;
  };
  while (await sweep(0) > 0); // what an earlier life left behind
  const sweeping = setInterval(
    () => sweep(SWEEP_AGE_SECONDS).catch((error) => log.warn("outbox.sweep_failed", { error })),
    SWEEP_MS,
  );
  return {
    async change(work) {
      const items: Announcement[] = [];
      const { result, rows } = await sql.begin(async (tx) => {
        const result = await work(tx, (item) => items.push(item));
        const rows = items.length === 0 ? [] : await tx<Pending[]>`
          insert into registry.outbox ${
          tx(items.map(({ bucket, key, value, ttlSeconds }) => ({
            bucket,
            key,
            value: value ? tx.json(value as never) : null,
            ttl_seconds: ttlSeconds ?? null,
          })))
        } returning version, bucket, key, value, ttl_seconds`;
        return { result, rows };
      });
      if (rows.length > 0) {
        await write(rows).catch((error) => {
          throw unavailable("The change is stored but not announced yet; try again shortly", error);
        });
      }
      return result as never;
    },
    async [Symbol.asyncDispose]() {
      clearInterval(sweeping);
    },
  };
}

/**
 * Writes one announcement unless a newer one of the same key is there. Two replicas may announce one key at once; the
 * outbox version grows with each commit that touches the same row, so the newest always wins.
 */
async function publish(nc: NatsConnection, kv: KV, row: Pending): Promise<void> {
  const version = Number(row.version);
  const js = jetstream(nc);
  for (let attempt = 0; attempt < 20; attempt++) {
    const current = await kv.get(row.key);
    const known = current && current.value.length > 0 ? current.json<{ version?: number }>().version ?? 0 : 0;
    if (known >= version) return;
    const h = headers();
    h.set("Nats-Expected-Last-Subject-Sequence", String(current?.revision ?? 0));
    if (row.ttl_seconds) h.set("Nats-TTL", `${row.ttl_seconds}s`);
    if (row.value === null) {
      h.set("KV-Operation", "PURGE");
      h.set("Nats-Rollup", "sub");
      h.set("Nats-TTL", row.ttl_seconds ? `${row.ttl_seconds}s` : "24h");
    }
    try {
      await js.publish(`$KV.${buckets[row.bucket].name}.${row.key}`, JSON.stringify({ version, ...row.value }), {
        headers: h,
      });
      return;
    } catch (error) {
      if (!lostRace(error)) throw error;
    }
  }
  throw new Error(`Cannot announce ${row.key}: other writers were faster 20 times`);
}
