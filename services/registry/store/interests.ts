/** All SQL over interests. */
import type { Interest, InterestCreate } from "../../../contracts/registry.ts";
import type { Sql, Tx } from "../../../runtime/database.ts";

export function interestStore(sql: Sql) {
  const columns = sql`id, tenant_id, agent_id, event_type, filter_expression, priority, enrichment_depth, active,
    created_at, updated_at`;
  return {
    list: (tenant: string, agent: string): Promise<Interest[]> =>
      sql<Interest[]>`select ${columns} from registry.interests
        where tenant_id = ${tenant} and agent_id = ${agent} order by id desc`,

    /** Undefined when the agent has an interest alike. A second insert under the same id is a retry. */
    async insert(
      tx: Tx,
      tenant: string,
      agent: string,
      id: string,
      create: InterestCreate,
    ): Promise<Interest | undefined> {
      await tx`insert into registry.interests ${
        tx({ id, tenant_id: tenant, agent_id: agent, ...create })
      } on conflict do nothing`;
      const [made] = await tx<
        Interest[]
      >`select ${columns} from registry.interests where tenant_id = ${tenant} and id = ${id}`;
      return made;
    },

    async alike(tx: Tx, tenant: string, agent: string, like: Pick<InterestCreate, "event_type" | "filter_expression">) {
      const [found] = await tx<{ id: string }[]>`select id from registry.interests
        where tenant_id = ${tenant} and agent_id = ${agent} and event_type = ${like.event_type}
          and coalesce(filter_expression, '') = ${like.filter_expression ?? ""}`;
      return found?.id;
    },

    async delete(tx: Tx, tenant: string, agent: string, id: string): Promise<boolean> {
      return (await tx`delete from registry.interests
        where tenant_id = ${tenant} and agent_id = ${agent} and id = ${id} returning id`).length > 0;
    },

    after: (tx: Tx, id: string, limit: number): Promise<Interest[]> =>
      tx<Interest[]>`select ${columns} from registry.interests where id > ${id} order by id limit ${limit} for share`,
  };
}
export type InterestStore = ReturnType<typeof interestStore>;
