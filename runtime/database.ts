/** Postgres: one pool per process, and migrations applied once under a lock. */
import { createHash } from "node:crypto";
import { readdir, readFile } from "node:fs/promises";
import postgres from "postgres";
import { inSpan, isTracing } from "./telemetry.ts";

export type Sql = postgres.Sql;
export type Tx = postgres.TransactionSql;

/** A moment as the API writes it, from how Postgres does. */
export const momentOf = (text: string): string => new Date(text).toISOString();

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
        parse: momentOf,
      },
    },
  });
  return { sql: isTracing() ? traced(sql) : sql, [Symbol.asyncDispose]: () => sql.end({ timeout: 5 }) };
}

/** The same, with a span around every query that belongs to a trace. Nothing of it is there when nobody traces. */
function traced<S extends object>(sql: S): S {
  return new Proxy(sql, {
    apply: (target, self, args) => spanned(Reflect.apply(target as unknown as () => unknown, self, args)),
    get(target, key, receiver) {
      const value: unknown = Reflect.get(target, key, receiver);
      if (typeof value !== "function") return value;
      if (key === "unsafe") return (...args: unknown[]) => spanned(value.apply(target, args));
      if (key !== "begin" && key !== "savepoint") return value;
      return (...args: unknown[]) => {
        const work = args.pop() as (tx: object) => unknown;
        return value.call(target, ...args, (tx: object) => work(traced(tx)));
      };
    },
  });
}

/** A query of the library's is a promise that begins when it is first awaited; a piece of one never is. */
function spanned(made: unknown): unknown {
  if (!(made instanceof Promise)) return made;
  const query = made as Promise<unknown> & { strings?: readonly string[]; executed?: boolean; handle(): unknown };
  const { handle } = query;
  query.handle = () => {
    if (!query.executed) void inQuerySpan(query.strings?.join("?") ?? "", query);
    return handle.call(query);
  };
  return query;
}

async function inQuerySpan(text: string, query: Promise<unknown>): Promise<void> {
  const operation = /\w+/.exec(text)?.[0].toUpperCase() ?? "QUERY";
  const table = /\b(?:from|into|update|join)\s+([\w.]+)/i.exec(text)?.[1];
  const attributes = {
    "db.system.name": "postgresql",
    "db.operation.name": operation,
    "db.query.text": text.replace(/\s+/g, " ").trim().slice(0, 1_000),
    ...(table ? { "db.collection.name": table } : {}),
  };
  // Not awaited as the library's promise, which would begin it once more.
  const settled = Promise.prototype.then.call(query, () => {});
  await inSpan(table ? `${operation} ${table}` : operation, { kind: "client", attributes }, () => settled).catch(
    () => {},
  );
}

/** A unique violation, by the name of its constraint. */
export const violates = (error: unknown, constraint: string): boolean =>
  error instanceof postgres.PostgresError && error.code === "23505" && error.constraint_name === constraint;

/**
 * Applies the `.sql` files of a folder that have not been applied yet, in the order of their names, together with the
 * note that they ran. An applied file may not change. `isWanted` leaves out those that must wait for their data.
 */
export async function migrate(
  sql: Sql,
  schema: string,
  folder: URL,
  isWanted: (file: string) => boolean = () => true,
): Promise<void> {
  const files = (await readdir(folder)).filter((file) => file.endsWith(".sql") && isWanted(file)).sort();
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
