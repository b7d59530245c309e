/** Postgres: one pool per process, and migrations applied once under a lock. */
import { createHash } from "node:crypto";
import { readdir, readFile } from "node:fs/promises";
import postgres from "postgres";

export type Sql = postgres.Sql;
export type Tx = postgres.TransactionSql;

export interface Database extends AsyncDisposable {
  readonly sql: Sql;
}

export function openDatabase(url: string, name: string): Database {
  const sql = postgres(url, {
    max: 10,
    idle_timeout: 60,
    connect_timeout: 5,
    connection: { application_name: `sensorium-${name}`, statement_timeout: 10_000 },
    onnotice: () => {},
    // A moment is a string from end to end; only the database does arithmetic on it.
    types: {
      moment: {
        to: 1184,
        from: [1184],
        serialize: (value: string | Date) => value instanceof Date ? value.toISOString() : value,
        parse: (text: string) => new Date(text).toISOString(),
      },
    },
  });
  return { sql, [Symbol.asyncDispose]: () => sql.end({ timeout: 5 }) };
}

/** A unique violation, by the name of its constraint. */
export const violates = (error: unknown, constraint: string): boolean =>
  error instanceof postgres.PostgresError && error.code === "23505" && error.constraint_name === constraint;

/**
 * Applies the `.sql` files of a folder that have not been applied yet, in the order of their names. Each runs in a
 * transaction of its own together with the note that it ran. An applied file may not change.
 */
export async function migrate(sql: Sql, schema: string, folder: URL): Promise<void> {
  const files = (await readdir(folder)).filter((file) => file.endsWith(".sql")).sort();
  await sql.begin(async (tx) => {
    await tx`select pg_advisory_xact_lock(hashtext('sensorium migrations'))`;
    await tx`create table if not exists public.migrations (
      schema text not null, file text not null, checksum text not null, applied_at timestamptz not null default now(),
      primary key (schema, file))`;
    const applied = await tx<{ file: string; checksum: string }[]>`
      select file, checksum from public.migrations where schema = ${schema}`;
    for (const file of files) {
      const text = await readFile(new URL(file, folder), "utf8");
      const checksum = createHash("sha256").update(text).digest("hex");
      const earlier = applied.find((row) => row.file === file);
      if (earlier && earlier.checksum !== checksum) {
        throw new Error(`Migration ${schema}/${file} was changed after it was applied; add a new file instead`);
      }
      if (earlier) continue;
      await tx.unsafe(text);
      await tx`insert into public.migrations (schema, file, checksum) values (${schema}, ${file}, ${checksum})`;
    }
  });
}
