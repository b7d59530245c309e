/** All SQL over memories as callers see them. The reader, and with it the tenant, comes first in every call. */
import type { Memory, MemoryChange, MemoryCreate, MemoryScope, MemoryType } from "../../../contracts/memory.ts";
import { momentOf, type Sql } from "../../../runtime/database.ts";
import type { Standing } from "../index/port.ts";
import type { Prepared } from "../prepare.ts";
import { readable, type Reader } from "./access.ts";

/** What a page of answers may weigh: a message on the bus has an end, and so has a reader's patience. */
const PAGE_BYTES = 8 * 1024 * 1024;

/** How many memories are compared letter by letter where no index can be asked; about a quarter of a second's work. */
const SCANNED = 10_000;

export interface Filter {
  readonly type?: MemoryType;
  readonly scope?: MemoryScope;
  readonly minConfidence?: number;
}

/** A memory found without an index. */
export interface Found extends Standing {
  readonly id: string;
  readonly sparse: Uint8Array;
}

/** Written instead of a version where no index service waits for a row, so that no row waits for it. */
export const NEVER_BEHIND = "9223372036854775807";

export function memoryStore(sql: Sql, options: {
  /** Compares letters of every script without regard to case; what the database has of the kind. */
  readonly collation: string;
  /** Whether an index service must be told of each change. */
  readonly outbox: boolean;
}) {
  const columns = sql`id, tenant_id, agent_id, team_id, project_id, type, scope, status, title,
    content, confidence, importance, metadata, source_type, source_id, source_url, source_event_id,
    freshness_date, expires_at, created_at, updated_at, accessed_at`;
  const changed = sql`version = m.version + 1, changed_xid = pg_current_xact_id()`;
  const collate = sql.unsafe(`collate "${options.collation}"`);
  const indexedVersion = options.outbox ? "0" : NEVER_BEHIND;
  const matching = (reader: Reader, { type, scope, minConfidence }: Filter) =>
    sql`${readable(sql, reader)} ${type ? sql`and m.type = ${type}` : sql``}
      ${scope ? sql`and m.scope = ${scope}` : sql``}
      ${minConfidence === undefined ? sql`` : sql`and m.confidence >= ${minConfidence}`}`;
  const contains = (text: string) => {
    const pattern = `%${text.replace(/[\\%_]/g, (sign) => `\\${sign}`)}%`;
    return sql`(m.title ${collate} ilike ${pattern} or m.content ${collate} ilike ${pattern})`;
  };
  const derived = (prepared: Prepared) => ({
    dense: prepared.dense ?? null,
    model: prepared.model ?? null,
    sparse: prepared.sparse,
    recipe: prepared.recipe,
  });

  return {
    async find(reader: Reader, id: string): Promise<Memory | undefined> {
      const [found] = await sql<Memory[]>`select ${columns} from memory.memories m
        where m.id = ${id} and ${readable(sql, reader)}`;
      return found;
    },

    async list(
      reader: Reader,
      query: Filter & { offset: number; limit: number; search?: string; source_event_id?: string },
    ) {
      const chosen = sql`${matching(reader, query)} ${query.search ? sql`and ${contains(query.search)}` : sql``}
        ${query.source_event_id ? sql`and m.source_event_id = ${query.source_event_id}` : sql``}`;
      const [rows, [count]] = await Promise.all([
        // Sizes are summed where the rows are, so that a page of the largest memories never leaves the database.
        sql<(Memory & { size_bytes: number })[]>`
          select * from (
            select p.*, sum(p.size_bytes) over (order by p.id desc) as bytes, row_number() over (order by p.id desc) as n
            from (select ${columns}, m.size_bytes from memory.memories m where ${chosen}
              order by m.id desc offset ${query.offset} limit ${query.limit}) p
          ) q where q.bytes <= ${PAGE_BYTES} or q.n = 1 order by q.id desc`,
        sql<{ total: number }[]>`select count(*)::int as total from memory.memories m where ${chosen}`,
      ]);
      return { memories: rows.map(plain), total: count!.total };
    },

    /** A second insert under the same id is the same request tried again. */
    async insert(
      owner: Reader,
      items: readonly { id: string; create: MemoryCreate; prepared: Prepared }[],
    ): Promise<Memory[]> {
      const rows = items.map(({ id, create, prepared }) => ({
        id,
        tenant_id: owner.tenant,
        agent_id: owner.id,
        ...create,
        metadata: sql.json(create.metadata as never),
        size_bytes: sizeOf(create),
        indexed_version: indexedVersion,
        ...derived(prepared),
      }));
      const made = await sql<Memory[]>`
        insert into memory.memories ${sql(rows)} on conflict (id) do nothing returning ${columns}`;
      const all = made.length === items.length ? made : await sql<Memory[]>`
        select ${columns} from memory.memories m
        where m.tenant_id = ${owner.tenant} and m.id in ${sql(items.map(({ id }) => id))}`;
      const byId = new Map(all.map((memory) => [memory.id, memory]));
      return items.map(({ id }) => byId.get(id)!);
    },

    /** Undefined when the memory was changed by another request meanwhile, or is gone. */
    async update(
      reader: Reader,
      before: Memory,
      change: MemoryChange,
      prepared: Prepared | undefined,
    ): Promise<Memory | undefined> {
      const { metadata, ...rest } = change;
      const set = {
        ...Object.fromEntries(Object.entries(rest).filter(([, value]) => value !== undefined)),
        ...(metadata ? { metadata: sql.json(metadata as never) } : {}),
        ...(prepared ? derived(prepared) : {}),
        size_bytes: sizeOf({ ...before, ...change }),
      };
      const [updated] = await sql<Memory[]>`update memory.memories m
        set ${sql(set)}, updated_at = now(), ${changed}
        where m.id = ${before.id} and ${readable(sql, reader)}
          and m.title = ${before.title} and m.content = ${before.content}
        returning ${columns}`;
      return updated;
    },

    async promote(
      reader: Reader,
      id: string,
      from: MemoryScope,
      to: MemoryScope,
      team: string | null,
      seed: string,
    ): Promise<Memory | undefined> {
      const [promoted] = await sql<Memory[]>`update memory.memories m
        set scope = ${to}, team_id = ${team}, promoted_by = ${seed}, updated_at = now(), ${changed}
        where m.id = ${id} and ${readable(sql, reader)} and m.scope = ${from} returning ${columns}`;
      return promoted;
    },

    async wasPromotedBy(reader: Reader, id: string, seed: string): Promise<boolean> {
      return (await sql`select 1 from memory.memories m
        where m.id = ${id} and ${readable(sql, reader)} and m.promoted_by = ${seed}`).length > 0;
    },

    async remove(reader: Reader, id: string): Promise<boolean> {
      return (await sql`update memory.memories m set status = 'deleted', updated_at = now(), ${changed}
        where m.id = ${id} and ${readable(sql, reader)} returning m.id`).length > 0;
    },

    /**
     * Whole memories in the order of `ids`: those that are there, may be read and pass. `isCut` when a page did not take
     * them all. Each is looked up by its id, because a plan made without statistics would rather read the whole tenant.
     */
    async read(
      reader: Reader,
      ids: readonly string[],
      filter: Filter = {},
    ): Promise<{ memories: Memory[]; isCut: boolean }> {
      if (ids.length === 0) return { memories: [], isCut: false };
      // As JSON, because the driver reads one text faster than 22 columns.
      const rows = await sql<{ memory: Memory; found: number }[]>`
        select q.memory, q.found from (
          select f.memory, sum(f.size_bytes) over (order by wanted.place) as bytes,
            row_number() over (order by wanted.place)::int as n, count(*) over ()::int as found
          from unnest(${ids as string[]}::text[]) with ordinality as wanted (id, place) cross join lateral (
            select (select row_to_json(c) from (select ${columns}) c) as memory, m.size_bytes
            from memory.memories m where m.id = wanted.id and ${matching(reader, filter)} limit 1) f
        ) q where q.bytes <= ${PAGE_BYTES} or q.n = 1 order by q.n`;
      return { memories: rows.map(({ memory }) => fromJson(memory)), isCut: (rows[0]?.found ?? 0) > rows.length };
    },

    /**
     * Memories that contain one of the texts, or any memories when there are none; for when no index can be asked. Only
     * the newest are looked at: this must be over before its caller has given up.
     */
    containing: (reader: Reader, filter: Filter, texts: readonly string[], limit: number): Promise<Found[]> =>
      sql<Found[]>`
        select m.id, m.confidence, m.importance, m.sparse,
          (extract(epoch from coalesce(m.freshness_date, m.updated_at)) * 1000)::float8 as "freshAt"
        from (select * from memory.memories m where ${matching(reader, filter)} order by m.id desc limit ${SCANNED}) m
        ${
        texts.length === 0
          ? sql``
          : sql`where (${
            texts.map(contains).reduce((either, one, i) => i === 0 ? one : sql`${either} or ${one}`, sql``)
          })`
      } order by m.id desc limit ${limit}`,

    /** Notes that memories were read, for those where that is news. */
    touch: (ids: readonly string[], seconds: number) =>
      sql`update memory.memories set accessed_at = now()
        where id = any(${ids as string[]}) and accessed_at < now() - make_interval(secs => ${seconds})`,

    /** Turns memories whose time has come into expired ones, so that indexes let go of them. */
    async expire(limit: number): Promise<number> {
      return (await sql`update memory.memories m set status = 'expired', ${changed}
        where m.id in (select id from memory.memories
          where status = 'active' and expires_at <= now() limit ${limit} for update skip locked) returning m.id`)
        .length;
    },
  };
}
export type MemoryStore = ReturnType<typeof memoryStore>;

const plain = (row: Memory & Record<string, unknown>): Memory => {
  const { size_bytes: _size, bytes: _bytes, n: _n, ...memory } = row;
  return memory as Memory;
};

/** Postgres writes moments in JSON another way than everybody else is answered. */
const fromJson = (memory: Memory): Memory => ({
  ...memory,
  freshness_date: memory.freshness_date && momentOf(memory.freshness_date),
  expires_at: memory.expires_at && momentOf(memory.expires_at),
  created_at: momentOf(memory.created_at),
  updated_at: momentOf(memory.updated_at),
  accessed_at: momentOf(memory.accessed_at),
});

/** As UTF-8 at its widest guess; exactness would cost a serialization of every memory. */
const sizeOf = ({ title, content, metadata }: Pick<MemoryCreate, "title" | "content" | "metadata">): number =>
  1_000 + Buffer.byteLength(title) + Buffer.byteLength(content) + Buffer.byteLength(JSON.stringify(metadata));

/** The first collation there is that knows case in every script; `default` knows it in the database's own locale. */
export async function caseCollation(sql: Sql): Promise<string> {
  const wanted = ["pg_c_utf8", "und-x-icu", "C.utf8", "en_US.utf8"];
  const there = new Set(
    (await sql<{ collname: string }[]>`
      select collname from pg_collation where collname in ${sql(wanted)}
        and collencoding in (-1, (select encoding from pg_database where datname = current_database()))`).map((
      { collname },
    ) => collname),
  );
  return wanted.find((name) => there.has(name)) ?? "default";
}
