/** Postgres in a backup: the rows of every table as one moment saw them. Their shape comes from the migrations. */
import { createReadStream } from "node:fs";
import { readdir, readFile } from "node:fs/promises";
import { createHash } from "node:crypto";
import { join } from "node:path";
import { pipeline } from "node:stream/promises";
import { createGunzip, createGzip } from "node:zlib";
import postgres from "postgres";
import { migrate, type Sql, type Tx } from "../../runtime/database.ts";
import { type Manifest, type Migration, store, type Table } from "./archive.ts";

type Rows = Pick<Manifest, "migrations" | "tables" | "sequences">;

/** One connection that may take its time: a table is copied by one statement. */
export const openForCopy = (url: string): Sql =>
  postgres(url, { max: 1, onnotice: () => {}, connection: { application_name: "sensorium-backup" } });

/** Dumps every table of ours as the moment of its first query has them, however long it takes. */
export const dumpTables = (sql: Sql, folder: string): Promise<Rows> =>
  sql.begin("isolation level repeatable read read only", async (tx) => {
    const migrations = await tx<Migration[]>`
      select schema, file, checksum from public.migrations order by schema, file`;
    const schemas = [...new Set(migrations.map(({ schema }) => schema))];
    const tables: Table[] = [];
    for (const table of referredFirst(await tablesIn(tx, schemas), await references(tx))) {
      const counted = { rows: 0 };
      const copy = tx.unsafe(`copy (select ${listed(table.columns)} from ${nameOf(table)}) to stdout`);
      const file = `postgres/${table.schema}.${table.name}.copy.gz`;
      const copied = await copy.readable();
      const data = await store(folder, file, countLines(copied, counted), createGzip({ level: 1 }));
      // The driver stops reading when rows come faster than they are taken. Where the last one does, nothing but this
      // makes it read on, and the next query would never be answered.
      copied._read(0);
      tables.push({ ...table, ...counted, data });
    }
    // No transaction holds a sequence back: read last, it is beyond every row above.
    const sequences = await tx<Manifest["sequences"]>`
      select schemaname as schema, sequencename as name, last_value::text as last_value from pg_sequences
      where schemaname in ${tx(schemas)} and last_value is not null order by 1, 2`;
    return { migrations: [...migrations], tables, sequences: [...sequences] };
  }) as Promise<Rows>;

/** Fills empty tables with what was dumped. */
export async function loadTables(tx: Tx, folder: string, { tables, sequences }: Rows): Promise<void> {
  for (const table of tables) {
    const into = await tx.unsafe(`copy ${nameOf(table)} (${listed(table.columns)}) from stdin`).writable();
    await pipeline(createReadStream(join(folder, table.data.file)), createGunzip(), into);
    const [found] = await tx.unsafe<{ rows: number }[]>(`select count(*)::float8 as rows from ${nameOf(table)}`);
    if (found!.rows !== table.rows) {
      throw new Error(`${nameOf(table)} has ${found!.rows} rows and should have ${table.rows}: this backup is damaged`);
    }
  }
  for (const sequence of sequences) {
    await tx`select setval(${nameOf(sequence)}::regclass, ${sequence.last_value}::bigint)`;
  }
}

/** The first table of ours with something in it. */
export async function firstFilled(sql: Sql, schemas: readonly string[]): Promise<string | undefined> {
  for (const table of await tablesIn(sql, schemas)) {
    const [found] = await sql.unsafe<{ filled: boolean }[]>(
      `select exists (select 1 from ${nameOf(table)}) as filled`,
    );
    if (found!.filled) return `${table.schema}.${table.name}`;
  }
  return undefined;
}

/** Where each service keeps the files that shape its tables. */
export async function schemaFolders(): Promise<Map<string, URL>> {
  const services = new URL("../../services/", import.meta.url);
  const folders = new Map<string, URL>();
  for (const service of await readdir(services)) {
    const folder = new URL(`${service}/schema/`, services);
    if ((await readdir(folder).catch(() => [])).length > 0) folders.set(service, folder);
  }
  return folders;
}

/** Throws when the rows have a shape that this release does not know. */
export async function assertKnown(migrations: readonly Migration[], folders: ReadonlyMap<string, URL>): Promise<void> {
  for (const { schema, file, checksum } of migrations) {
    const folder = folders.get(schema);
    const text = folder && await readFile(new URL(file, folder)).catch(() => undefined);
    if (!text) {
      throw new Error(`This backup was made by a newer release: its tables follow ${schema}/${file}, unknown here`);
    }
    if (createHash("sha256").update(text).digest("hex") !== checksum) {
      throw new Error(`This backup was made by another release: its ${schema}/${file} is not the one that is here`);
    }
  }
}

/** Empty tables as they were when the backup was made. What later releases add is added to the rows, by them. */
export async function shapeTables(
  sql: Sql,
  migrations: readonly Migration[],
  folders: ReadonlyMap<string, URL>,
): Promise<void> {
  for (const [schema, folder] of folders) {
    const files = new Set(migrations.filter((each) => each.schema === schema).map(({ file }) => file));
    if (files.size > 0) await migrate(sql, schema, folder, (file) => files.has(file));
  }
}

type Named = Pick<Table, "schema" | "name">;

/** Partitions are part of their table, and generated columns are generated again. */
const tablesIn = (sql: Sql | Tx, schemas: readonly string[]) =>
  sql<(Named & { columns: string[] })[]>`
    select n.nspname::text as schema, c.relname::text as name, array(
      select a.attname::text from pg_attribute a
      where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped and a.attgenerated = '' order by a.attnum
    ) as columns
    from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where n.nspname in ${sql(schemas)} and c.relkind in ('r', 'p') and not c.relispartition order by 1, 2`;

interface Reference {
  readonly from: string;
  readonly to: string;
}

const references = (tx: Tx) =>
  tx<Reference[]>`
    select distinct fn.nspname || '.' || f.relname as from, tn.nspname || '.' || t.relname as to
    from pg_constraint k
      join pg_class f on f.oid = k.conrelid join pg_namespace fn on fn.oid = f.relnamespace
      join pg_class t on t.oid = k.confrelid join pg_namespace tn on tn.oid = t.relnamespace
    where k.contype = 'f'`;

function referredFirst<T extends Named>(tables: readonly T[], references: readonly Reference[]): T[] {
  const sorted = new Set<T>();
  const visiting = new Set<T>();
  const visit = (table: T) => {
    if (sorted.has(table) || visiting.has(table)) return;
    visiting.add(table);
    const own = `${table.schema}.${table.name}`;
    for (const { to } of references.filter(({ from }) => from === own)) {
      const referred = tables.find(({ schema, name }) => `${schema}.${name}` === to);
      if (referred) visit(referred);
    }
    sorted.add(table);
  };
  tables.forEach(visit);
  return [...sorted];
}

const quoted = (name: string) => `"${name.replaceAll('"', '""')}"`;
const nameOf = ({ schema, name }: Named) => `${quoted(schema)}.${quoted(name)}`;
const listed = (columns: readonly string[]) => columns.map(quoted).join(", ");

/** Rows, in COPY's text format, are lines: a line end within a value is written otherwise. */
async function* countLines(
  chunks: AsyncIterable<Uint8Array>,
  counted: { rows: number },
): AsyncGenerator<Uint8Array> {
  for await (const chunk of chunks) {
    for (let at = chunk.indexOf(10); at >= 0; at = chunk.indexOf(10, at + 1)) counted.rows++;
    yield chunk;
  }
}
