/** All SQL over dead letters. */
import type { DeadLetter, Payload } from "../../contracts/deliveries.ts";
import type { Match, QueuedDelivery } from "../../contracts/pipeline.ts";
import type { Sql, Tx } from "../../runtime/database.ts";

export interface DeadLetterRow {
  readonly delivery_id: string;
  readonly tenant_id: string;
  readonly agent_id: string | null;
  readonly event_id: string;
  readonly event_type: string;
  readonly event_seq: number;
  readonly generation: number;
  readonly attempt_count: number;
  readonly reason: string;
  readonly payload: Payload | null;
  readonly matched: Match[];
  readonly priority: number;
  readonly enrichment: QueuedDelivery["enrichment"];
  readonly created_at: string;
}

/** A replay that died half-way stands in the way of others for this long. */
const CLAIM_SECONDS = 30;

export function deadLetterStore(sql: Sql | Tx) {
  /** Null for the whole tenant. */
  const seenBy = (tenant: string, agent: string | null) =>
    sql`tenant_id = ${tenant} and replayed_at is null ${agent === null ? sql`` : sql`and agent_id = ${agent}`}`;
  const keepAll = (rows: readonly DeadLetterRow[]) =>
    sql<{ tenant_id: string }[]>`insert into delivery.dead_letters ${
      sql(rows.map((row) => ({
        ...row,
        event_id: printable(row.event_id),
        event_type: printable(row.event_type),
        reason: printable(row.reason),
        payload: row.payload ? JSON.stringify(row.payload) : null,
        matched: JSON.stringify(row.matched),
      })))
    } on conflict (delivery_id) do update set
        generation = excluded.generation, attempt_count = excluded.attempt_count, reason = excluded.reason,
        payload = coalesce(excluded.payload, dead_letters.payload), matched = excluded.matched,
        priority = excluded.priority, enrichment = excluded.enrichment,
        dead_lettered_at = clock_timestamp(), replay_seed = null, replay_claimed_at = null, replayed_at = null
      where dead_letters.generation < excluded.generation
      returning tenant_id`;

  return {
    /**
     * A row that is there already stays as it is, unless its delivery was replayed and has died once more. Answers the
     * tenants of what is new.
     */
    async keep(rows: readonly DeadLetterRow[]): Promise<string[]> {
      const kept = await keepAll([...new Map(rows.map((row) => [row.delivery_id, row])).values()]);
      return kept.map(({ tenant_id }) => tenant_id);
    },

    async list(tenant: string, agent: string | null, page: { offset: number; limit: number }) {
      const [items, counted] = await Promise.all([
        sql<
          (Omit<DeadLetter, "payload"> & Written)[]
        >`select delivery_id, event_id, agent_id, event_type, attempt_count, reason as dlq_reason, payload,
            created_at, dead_lettered_at
          from delivery.dead_letters where ${seenBy(tenant, agent)}
          order by dead_lettered_at desc, delivery_id desc offset ${page.offset} limit ${page.limit}`,
        sql<{ total: number }[]>`select count(*)::int as total from delivery.dead_letters
          where ${seenBy(tenant, agent)}`,
      ]);
      return { dlq_items: items.map(read), total: counted[0]?.total ?? 0 };
    },

    /**
     * Takes a dead letter for a replay, so that of two at once only one goes on; undefined when there is none to take.
     * The same seed again takes it again, and learns whether it had already been replayed.
     */
    async claim(tenant: string, agent: string | null, id: string, seed: string) {
      const [row] = await sql<
        (Omit<DeadLetterRow, "payload" | "matched"> & Written & { matched: string; replayed: boolean })[]
      >`
        update delivery.dead_letters set replay_seed = ${seed}, replay_claimed_at = now()
        where tenant_id = ${tenant} and delivery_id = ${id} ${agent === null ? sql`` : sql`and agent_id = ${agent}`}
          and (replay_seed = ${seed} or (replayed_at is null and (replay_claimed_at is null
            or replay_claimed_at < now() - make_interval(secs => ${CLAIM_SECONDS}))))
        returning delivery_id, tenant_id, agent_id, event_id, event_type, event_seq::float8 as event_seq,
          generation::float8 as generation, attempt_count, reason, payload, matched, priority, enrichment, created_at,
          replayed_at is not null as replayed`;
      return row && { ...read(row), matched: JSON.parse(row.matched) as Match[] };
    },

    async markReplayed(tenant: string, id: string, seed: string): Promise<void> {
      await sql`update delivery.dead_letters set replayed_at = now()
        where tenant_id = ${tenant} and delivery_id = ${id} and replay_seed = ${seed} and replayed_at is null`;
      // Longer than a request may be tried again under its key.
      await sql`delete from delivery.dead_letters where delivery_id in (select delivery_id from delivery.dead_letters
        where replayed_at < now() - interval '8 days' limit 100)`;
    },

    /** Takes back that anything was replayed from this moment on: whether its message was kept is not known. */
    async takeBackReplays(since: string): Promise<void> {
      await sql`update delivery.dead_letters set replayed_at = null, replay_seed = null, replay_claimed_at = null
        where replayed_at >= ${since}`;
    },

    async purge(tenant: string, agent: string | null, before: string | null): Promise<number> {
      const purged = await sql`delete from delivery.dead_letters
        where ${seenBy(tenant, agent)} ${before === null ? sql`` : sql`and dead_lettered_at < ${before}`}`;
      return purged.count;
    },

    /** Payloads of deliveries whose event is no longer in its stream. */
    async payloads(tenant: string, ids: readonly string[]): Promise<ReadonlyMap<string, Payload>> {
      const rows = await sql<(Written & { delivery_id: string })[]>`select delivery_id, payload
        from delivery.dead_letters where tenant_id = ${tenant} and delivery_id in ${sql(ids)} and payload is not null`;
      return new Map(rows.map((row) => [row.delivery_id, read(row).payload!]));
    },
  };
}
export type DeadLetterStore = ReturnType<typeof deadLetterStore>;

interface Written {
  readonly payload: string | null;
}
const read = <R extends Written>(row: R) => ({
  ...row,
  payload: row.payload === null ? null : JSON.parse(row.payload) as Payload,
});

/** Text without the one character that Postgres does not store. */
const printable = (text: string) => text.replaceAll("\0", "");
