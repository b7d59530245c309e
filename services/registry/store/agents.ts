/** All SQL over agents. The tenant comes first in every call, so no query can forget it. */
import type { Agent, AgentChange, AgentRegistration } from "../../../contracts/registry.ts";
import type { Sql, Tx } from "../../../runtime/database.ts";

type AgentRow = Omit<Agent, "delivery_endpoint"> & { delivery_endpoint: string | null };

/** The endpoint is shown when it is set. */
const shown = ({ delivery_endpoint, ...agent }: AgentRow): Agent =>
  delivery_endpoint === null ? agent : { ...agent, delivery_endpoint };

export function agentStore(sql: Sql) {
  const columns = sql`id, tenant_id, name, description, status, delivery_mode, delivery_endpoint, client_type, team_id,
    created_at, updated_at`;
  const one = (rows: AgentRow[]): Agent | undefined => rows[0] && shown(rows[0]);
  return {
    find: async (tenant: string, id: string) =>
      one(await sql<AgentRow[]>`select ${columns} from registry.agents where tenant_id = ${tenant} and id = ${id}`),

    async list(tenant: string, page: { offset: number; limit: number; status?: Agent["status"] }) {
      const matching = sql`tenant_id = ${tenant} ${page.status ? sql`and status = ${page.status}` : sql``}`;
      const [rows, [count]] = await Promise.all([
        sql<AgentRow[]>`select ${columns} from registry.agents where ${matching}
          order by id desc offset ${page.offset} limit ${page.limit}`,
        sql<{ total: number }[]>`select count(*)::int as total from registry.agents where ${matching}`,
      ]);
      return { agents: rows.map(shown), total: count!.total };
    },

    /** A second insert under the same id is the same request tried again. */
    async insert(tx: Tx, tenant: string, id: string, agent: AgentRegistration): Promise<Agent> {
      await tx`insert into registry.agents ${tx({ id, tenant_id: tenant, ...agent })} on conflict (id) do nothing`;
      return one(
        await tx<AgentRow[]>`select ${columns} from registry.agents where tenant_id = ${tenant} and id = ${id}`,
      )!;
    },

    async update(tx: Tx, tenant: string, id: string, change: AgentChange & { status?: Agent["status"] }) {
      const set = Object.fromEntries(Object.entries(change).filter(([, value]) => value !== undefined));
      if (Object.keys(set).length === 0) {
        return one(
          await tx<AgentRow[]>`select ${columns} from registry.agents where tenant_id = ${tenant} and id = ${id}`,
        );
      }
      return one(
        await tx<AgentRow[]>`update registry.agents set ${tx(set)}, updated_at = now()
          where tenant_id = ${tenant} and id = ${id} returning ${columns}`,
      );
    },

    /** Every agent of every tenant, a page at a time, for a rebuild of the announcements. */
    after: async (tx: Tx, id: string, limit: number): Promise<Agent[]> =>
      (await tx<
        AgentRow[]
      >`select ${columns} from registry.agents where id > ${id} order by id limit ${limit} for share`).map(
        shown,
      ),

    stoppedWithin: async (tx: Tx, seconds: number): Promise<string[]> =>
      (await tx<{ id: string }[]>`select id from registry.agents
        where status = 'inactive' and updated_at > now() - make_interval(secs => ${seconds})`).map(({ id }) => id),
  };
}
export type AgentStore = ReturnType<typeof agentStore>;
