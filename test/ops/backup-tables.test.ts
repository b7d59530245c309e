/** Tables of every kind, copied and filled again. */
import { mkdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { expect, test } from "vitest";
import { assertKnown, dumpTables, loadTables, openForCopy, shapeTables } from "../../ops/backup/tables.ts";
import { migrate, type Sql } from "../../runtime/database.ts";
import { freshDatabase, temporaryFolder } from "../support/servers.ts";

const first = `
  create schema shop;
  create table shop.orders (
    id bigint generated always as identity primary key, customer text not null, cents int not null, note bytea, tags text[],
    euros numeric generated always as (cents / 100.0) stored, replaced_by bigint references shop.orders);
  create table shop.items (order_id bigint not null references shop.orders, name text not null);
  create table shop.visits (id bigserial, at timestamptz not null, page jsonb) partition by range (at);
  create table shop.visits_old partition of shop.visits for values from (minvalue) to ('2026-01-01');
  create table shop.visits_new partition of shop.visits for values from ('2026-01-01') to (maxvalue);`;
const second = `alter table shop.orders add column is_large boolean not null default false;
  update shop.orders set is_large = cents > 5000;`;

async function filled(sql: Sql): Promise<void> {
  await sql`insert into shop.orders (customer, cents, note, tags)
    values (${"a\\b\tc\nd ü \\N"}, 1, ${Buffer.from([0, 10, 92, 255])}, ${[
    "one",
    'two, "three"',
  ]}), ('', 9900, null, null)`;
  await sql`update shop.orders set replaced_by = 2 where id = 1`;
  await sql`insert into shop.items select 1 + i % 2, repeat(md5(i::text), 100) from generate_series(1, 2000) i`;
  await sql`insert into shop.visits (at, page) values ('2025-05-05', '{"a": "\\n"}'), ('2026-05-05', 'null')`;
}

test("rows come back as they were, whatever is in them, and a migration of a later release finds them", async () => {
  await using folder = await temporaryFolder();
  await using before = await freshDatabase();
  await using after = await freshDatabase();
  await using stack = new AsyncDisposableStack();
  const open = ({ url }: { url: string }) => {
    const sql = openForCopy(url);
    stack.defer(() => sql.end());
    return sql;
  };
  const files = join(folder.path, "schema");
  await mkdir(files);
  const schema = pathToFileURL(`${files}/`);
  const folders = new Map([["shop", schema]]);
  await writeFile(join(files, "001-first.sql"), first);
  const source = open(before);
  await migrate(source, "shop", schema);
  await filled(source);
  const backup = join(folder.path, "backup");
  const dumped = await dumpTables(source, backup);
  expect(dumped.tables.map(({ name, rows }) => [name, rows])).toEqual([["orders", 2], ["items", 2_000], ["visits", 2]]);

  await writeFile(join(files, "002-second.sql"), second);
  const target = open(after);
  await assertKnown(dumped.migrations, folders);
  await shapeTables(target, dumped.migrations, folders);
  await target.begin((tx) => loadTables(tx, backup, dumped));
  for (const table of ["orders", "items", "visits"]) {
    const all = (sql: Sql) => sql.unsafe(`select tableoid::regclass::text, t.* from shop.${table} t order by 2, 3`);
    expect(await all(target), table).toEqual(await all(source));
  }
  await migrate(target, "shop", schema);
  const orders = await target`insert into shop.orders (customer, cents) values ('new', 3) returning id, euros`;
  expect(orders).toMatchObject([{ id: "3" }]);
  expect(await target`select id, is_large from shop.orders order by id`).toMatchObject([
    { id: "1", is_large: false },
    { id: "2", is_large: true },
    { id: "3", is_large: false },
  ]);
  expect(await target`insert into shop.visits (at) values (now()) returning id`).toMatchObject([{ id: "3" }]);

  const later = await dumpTables(target, join(folder.path, "later"));
  await expect(assertKnown(later.migrations, new Map())).rejects.toThrow(/newer release: .* shop\/001-first\.sql/);
  await writeFile(join(files, "002-second.sql"), `${second} -- changed`);
  await expect(assertKnown(later.migrations, folders)).rejects.toThrow(/another release: its shop\/002-second\.sql/);
});
