/** All SQL over connectors. */
import type { Connector, ConnectorCreate } from "../../../contracts/ingestion.ts";
import type { Sql, Tx } from "../../../runtime/database.ts";

export type ConnectorRow = Connector & { readonly secrets_sealed: Buffer };

export function connectorStore(sql: Sql) {
  const columns = sql`id, tenant_id, source, kind, settings, secrets_sealed, mapping, paused, created_at`;
  return {
    list: (tenant: string | undefined): Promise<ConnectorRow[]> =>
      sql<ConnectorRow[]>`select ${columns} from registry.connectors
        where ${tenant === undefined ? sql`true` : sql`tenant_id = ${tenant}`} order by tenant_id, id`,

    async find(tenant: string, id: string): Promise<ConnectorRow | undefined> {
      const [found] = await sql<ConnectorRow[]>`select ${columns} from registry.connectors
        where tenant_id = ${tenant} and id = ${id}`;
      return found;
    },

    /** A second insert under the same id is a retry. */
    async insert(
      tx: Tx,
      tenant: string,
      connector: Pick<ConnectorCreate, "source" | "settings" | "mapping" | "paused"> & {
        id: string;
        secrets_sealed: Buffer;
      },
    ): Promise<ConnectorRow> {
      const row = {
        ...connector,
        tenant_id: tenant,
        kind: "amqp",
        settings: tx.json(connector.settings),
        mapping: connector.mapping && tx.json(connector.mapping),
      };
      const [made] = await tx<ConnectorRow[]>`insert into registry.connectors ${tx(row)}
        on conflict (id) do update set secrets_sealed = excluded.secrets_sealed returning ${columns}`;
      return made!;
    },

    async setPaused(tx: Tx, tenant: string, id: string, paused: boolean): Promise<ConnectorRow | undefined> {
      const [changed] = await tx<ConnectorRow[]>`update registry.connectors set paused = ${paused}
        where tenant_id = ${tenant} and id = ${id} returning ${columns}`;
      return changed;
    },

    async delete(tx: Tx, tenant: string, id: string): Promise<boolean> {
      return (await tx`delete from registry.connectors where tenant_id = ${tenant} and id = ${id} returning id`)
        .length > 0;
    },

    after: (tx: Tx, id: string, limit: number): Promise<ConnectorRow[]> =>
      tx<
        ConnectorRow[]
      >`select ${columns} from registry.connectors where id > ${id} order by id limit ${limit} for share`,
  };
}
export type ConnectorStore = ReturnType<typeof connectorStore>;
