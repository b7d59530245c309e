/** All SQL over what indexes need of memories: what changed, what is to be prepared anew, what a service must be told. */
import type { MemoryScope, MemoryType } from "../../../contracts/memory.ts";
import type { Sql, Tx } from "../../../runtime/database.ts";
import type { Entry } from "../index/port.ts";
import { unpackSparse } from "../lexical.ts";
import type { Prepared } from "../prepare.ts";
import { unpackDense } from "../vectors.ts";

interface Row {
  readonly id: string;
  readonly tenant_id: string;
  readonly version: number;
  readonly status: string;
  readonly agent_id: string;
  readonly team_id: string | null;
  readonly scope: MemoryScope;
  readonly type: MemoryType;
  readonly confidence: number;
  readonly importance: number;
  readonly fresh_at: number;
  readonly expires_at: number | null;
  readonly model: string | null;
  readonly dense: Uint8Array | null;
  readonly sparse: Uint8Array;
}

/** What an index is to do: know these, forget those. */
export interface Changes {
  readonly entries: Entry[];
  readonly gone: string[];
}

export interface Unprepared {
  readonly id: string;
  readonly version: number;
  readonly title: string;
  readonly content: string;
}

/** More changes than this at once are fetched piece by piece. */
const CHANGES_AT_ONCE = 1_000;
const LOAD_AT_ONCE = 2_000;
const FORGOTTEN_AT_ONCE = 5_000;

export function indexRows(sql: Sql, model: string) {
  const columns = sql`m.id, m.tenant_id, m.version::float8 as version, m.status, m.agent_id, m.team_id, m.scope, m.type,
    m.confidence, m.importance, m.model, m.dense, m.sparse,
    (extract(epoch from coalesce(m.freshness_date, m.updated_at)) * 1000)::float8 as fresh_at,
    (extract(epoch from m.expires_at) * 1000)::float8 as expires_at`;
  const unseen = (tenant: string, snapshot: string) =>
    sql`m.tenant_id = ${tenant} and m.changed_xid >= pg_snapshot_xmin(${snapshot}::pg_snapshot)
      and not pg_visible_in_snapshot(m.changed_xid, ${snapshot}::pg_snapshot)`;
  const sorted = (rows: readonly Row[]): Changes => {
    const entries: Entry[] = [];
    const gone: string[] = [];
    for (const row of rows) {
      if (row.status !== "active") gone.push(row.id);
      else {
        entries.push({
          id: row.id,
          version: row.version,
          agent: row.agent_id,
          team: row.team_id,
          scope: row.scope,
          type: row.type,
          confidence: row.confidence,
          importance: row.importance,
          freshAt: row.fresh_at,
          expiresAt: row.expires_at,
          ...(row.dense && row.model === model ? { dense: unpackDense(row.dense) } : {}),
          sparse: unpackSparse(row.sparse),
        });
      }
    }
    return { entries, gone };
  };

  /** Runs `work` unless another replica is at it already. */
  const alone = async <T>(task: string, work: (tx: Tx) => Promise<T>): Promise<T | undefined> =>
    await sql.begin(async (tx) => {
      const [lock] = await tx<{ taken: boolean }[]>`
        select pg_try_advisory_xact_lock(hashtext('sensorium memory'), hashtext(${task})) as taken`;
      return lock!.taken ? await work(tx) : undefined;
    }) as T | undefined;

  return {
    /**
     * Everything of a tenant that a reader of `snapshot` has not seen, handed to `apply` in pieces; without a snapshot,
     * everything there is. Answers the snapshot that was read now. Transactions commit out of order, so no sequence
     * number could say what is new; a snapshot of Postgres says it exactly.
     */
    async follow(
      tenant: string,
      snapshot: string | undefined,
      apply: (changes: Changes) => Promise<void>,
    ): Promise<string> {
      if (snapshot !== undefined) {
        const rows = await sql<(Row & { snapshot: string })[]>`
          select s.snapshot, c.* from (select pg_current_snapshot()::text as snapshot) s
          -- In the order of the index: without it a plan for any snapshot reads the whole table.
          left join lateral (select ${columns} from memory.memories m where ${unseen(tenant, snapshot)}
            order by m.tenant_id, m.changed_xid limit ${CHANGES_AT_ONCE + 1}) c on true`;
        const found = rows.filter((row) => row.id !== null);
        if (found.length <= CHANGES_AT_ONCE) {
          if (found.length > 0) await apply(sorted(found));
          return rows[0]!.snapshot;
        }
      }
      return await sql.begin("isolation level repeatable read read only", async (tx) => {
        const [now] = await tx<{ snapshot: string }[]>`select pg_current_snapshot()::text as snapshot`;
        const which = snapshot === undefined
          ? tx`m.tenant_id = ${tenant} and m.status = 'active'`
          : unseen(tenant, snapshot);
        const pieces = tx<Row[]>`select ${columns} from memory.memories m where ${which}`.cursor(LOAD_AT_ONCE);
        for await (const rows of pieces) await apply(sorted(rows));
        return now!.snapshot;
      }) as string;
    },

    /** Changes from a life of this database under another server, whose transactions were numbered otherwise. */
    async renumber(tenant: string): Promise<void> {
      await sql`update memory.memories set changed_xid = pg_current_xact_id()
        where tenant_id = ${tenant} and changed_xid > pg_current_xact_id()`;
    },

    versions: async (tenant: string): Promise<Map<string, number>> =>
      new Map(
        (await sql<{ id: string; version: number }[]>`
          select id, version::float8 as version from memory.memories where tenant_id = ${tenant} and status = 'active'`)
          .map(({ id, version }) => [id, version]),
      ),

    tenants: async (): Promise<string[]> =>
      (await sql<{ tenant_id: string }[]>`
        with recursive tenants as (
          (select tenant_id from memory.memories order by tenant_id limit 1)
          union all
          select (select m.tenant_id from memory.memories m where m.tenant_id > t.tenant_id order by m.tenant_id limit 1)
          from tenants t where t.tenant_id is not null
        ) select tenant_id from tenants where tenant_id is not null`).map(({ tenant_id }) => tenant_id),

    entries: async (tenant: string, ids: readonly string[]): Promise<Changes> =>
      sorted(
        await sql<Row[]>`select ${columns} from memory.memories m
        where m.tenant_id = ${tenant} and m.id = any(${ids as string[]})`,
      ),

    /** The recipe of now. Whoever started last says what it is; those with another leave memories alone. */
    async claimRecipe(lexicon: number): Promise<number> {
      const [row] = await sql<{ generation: number }[]>`
        insert into memory.recipe as r (model, lexicon) values (${model}, ${lexicon})
        on conflict (single) do update set model = excluded.model, lexicon = excluded.lexicon returning generation`;
      return row!.generation;
    },

    async recipe(): Promise<{ model: string; lexicon: number; generation: number }> {
      const [row] = await sql<{ model: string; lexicon: number; generation: number }[]>`
        select model, lexicon, generation from memory.recipe`;
      return row!;
    },

    async nextGeneration(): Promise<number> {
      const [row] = await sql<{ generation: number }[]>`
        update memory.recipe set generation = generation + 1 returning generation`;
      return row!.generation;
    },

    alone,

    /** Two ranges rather than "not equal", so that the index by recipe finds them among many that are done. */
    unprepared: (recipe: string, limit: number): Promise<Unprepared[]> =>
      sql<Unprepared[]>`
        (select id, version::float8 as version, title, content from memory.memories
          where status = 'active' and recipe < ${recipe} limit ${limit})
        union all
        (select id, version::float8 as version, title, content from memory.memories
          where status = 'active' and recipe > ${recipe} limit ${limit}) limit ${limit}`,

    async countUnprepared(recipe: string): Promise<number> {
      const [row] = await sql<{ count: number }[]>`select (
        (select count(*) from memory.memories where status = 'active' and recipe < ${recipe}) +
        (select count(*) from memory.memories where status = 'active' and recipe > ${recipe}))::int as count`;
      return row!.count;
    },

    async countActive(): Promise<number> {
      const [row] = await sql<{ count: number }[]>`
        select count(*)::int as count from memory.memories where status = 'active'`;
      return row!.count;
    },

    /** A memory that was changed meanwhile stays in line. */
    async keepPrepared(items: readonly (Unprepared & { prepared: Prepared })[]): Promise<void> {
      const rows = items.map(({ id, version, prepared }) => [
        id,
        String(version),
        prepared.dense ?? null,
        prepared.model ?? null,
        prepared.sparse,
        prepared.recipe,
      ]);
      await sql`update memory.memories m set dense = v.dense::bytea, model = v.model::text, sparse = v.sparse::bytea,
          recipe = v.recipe::text, version = m.version + 1, changed_xid = pg_current_xact_id()
        from (values ${sql(rows as never)}) as v (id, version, dense, model, sparse, recipe)
        where m.id = v.id::text and m.version = v.version::bigint`;
    },

    /** Whoever started last says which index there is. What was noted for another says nothing about this one. */
    async claimIndex(name: string): Promise<void> {
      await sql`update memory.recipe set index_name = ${name}, is_told = false where index_name is distinct from ${name}`;
    },

    /** Whether `indexed_version` speaks of this index; undefined where another one was claimed since. */
    async isTold(name: string): Promise<boolean | undefined> {
      const [row] = await sql<{ is_told: boolean }[]>`select is_told from memory.recipe where index_name = ${name}`;
      return row?.is_told;
    },

    /**
     * An index service to be told of everything again, and `make` what brings it into a state to be told. Nothing is told
     * meanwhile, and whoever dies halfway leaves it untold, for the next to begin anew. False when another replica is at
     * it. `fromNothing`: it knows nothing, so it has nothing to forget either.
     */
    async retell(name: string, { fromNothing }: { fromNothing: boolean }, make: () => Promise<void>): Promise<boolean> {
      return await alone("retell", async () => {
        await sql.begin(async (tx) => {
          await tx`select pg_advisory_xact_lock(hashtext('sensorium memory'), hashtext('tell'))`;
          await tx`update memory.recipe set is_told = false where index_name = ${name}`;
        });
        for (let after: string | null = "";;) {
          // In pieces: one statement over a large table would outlast what a statement may take.
          const [page]: { last: string | null }[] = await sql`
            with page as (select id from memory.memories where id > ${after} order by id limit ${FORGOTTEN_AT_ONCE}),
            forgotten as (update memory.memories m set indexed_version = 0 from page
              where m.id = page.id and m.indexed_version <> 0 ${fromNothing ? sql`and m.status = 'active'` : sql``})
            select max(id) as last from page`;
          if (page!.last === null) break;
          after = page!.last;
        }
        await make();
        await sql`update memory.recipe set is_told = true where index_name = ${name}`;
        return true;
      }) ?? false;
    },

    /**
     * Hands what the index service does not know yet to `push`, and notes that it does. The rows stay locked meanwhile,
     * so a newer form of one cannot reach the service before an older.
     */
    async pushBehind(
      name: string,
      push: (tenant: string, changes: Changes) => Promise<void>,
      which: { ids: readonly string[] } | { limit: number },
    ): Promise<number> {
      return await sql.begin(async (tx) => {
        // Before the reading, which must see what a retelling that was waited for has done.
        await tx`select pg_advisory_xact_lock_shared(hashtext('sensorium memory'), hashtext('tell'))`;
        const rows = await tx<Row[]>`select ${columns} from memory.memories m where m.indexed_version < m.version
          and (select is_told and index_name = ${name} from memory.recipe)
          ${"ids" in which ? tx`and m.id = any(${which.ids as string[]})` : tx``}
          -- What is locked is being told or changed, and is told by whoever does.
          order by m.tenant_id, m.id ${"limit" in which ? tx`limit ${which.limit}` : tx``} for update skip locked`;
        for (const [tenant, mine] of Map.groupBy(rows, (row) => row.tenant_id)) await push(tenant, sorted(mine));
        if (rows.length > 0) {
          await tx`update memory.memories set indexed_version = version
            where id = any(${rows.map(({ id }) => id)})`;
        }
        return rows.length;
      }) as number;
    },

    /** What of a tenant the index service does not know yet, newest first; undefined when nobody knows what it knows. */
    async behind(name: string, tenant: string, limit: number): Promise<Changes | undefined> {
      const rows = await sql<(Row & { is_told: boolean | null })[]>`
        select t.is_told, c.* from (select (select is_told and index_name = ${name} from memory.recipe) as is_told) t
        left join lateral (select ${columns} from memory.memories m
          where t.is_told and m.tenant_id = ${tenant} and m.indexed_version < m.version
          order by m.id desc limit ${limit}) c on true`;
      return rows[0]!.is_told ? sorted(rows.filter(({ id }) => id !== null)) : undefined;
    },

    /** The versions of what of a tenant the index service does not know yet; null for what it is to forget. */
    versionsBehind: async (tenant: string): Promise<{ id: string; version: number | null }[]> =>
      await sql`select id, case when status = 'active' then version::float8 end as version from memory.memories
        where tenant_id = ${tenant} and indexed_version < version`,

    async countBehind(): Promise<number> {
      const [row] = await sql<{ count: number }[]>`
        select count(*)::int as count from memory.memories where indexed_version < version`;
      return row!.count;
    },

    /** The index service is to be told of these again. */
    async forgetIndexed(ids: readonly string[]): Promise<void> {
      await sql`update memory.memories set indexed_version = 0
        where status = 'active' and id = any(${ids as string[]})`;
    },
  };
}
export type IndexRows = ReturnType<typeof indexRows>;
