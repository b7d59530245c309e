/** All SQL over the links between memories. */
import type { Relationship, RelationshipCreate } from "../../../contracts/memory.ts";
import type { Sql } from "../../../runtime/database.ts";
import { readable, type Reader } from "./access.ts";

/** A memory with more links than this shows its strongest. */
const EDGES_AT_ONCE = 1_000;

export function relationshipStore(sql: Sql) {
  const columns = sql`r.id, r.tenant_id, r.source_memory_id, r.target_memory_id, r.relationship_type, r.strength,
    r.metadata, r.created_at`;
  return {
    /** The link that is there afterwards: the one made, or the one that was in its place. */
    async insert(
      tenant: string,
      agent: string,
      id: string,
      source: string,
      create: RelationshipCreate,
    ): Promise<Relationship> {
      await sql`insert into memory.relationships ${
        sql({
          id,
          tenant_id: tenant,
          source_memory_id: source,
          ...create,
          metadata: create.metadata === null ? null : sql.json(create.metadata as never),
          created_by: agent,
        })
      } on conflict do nothing`;
      const [there] = await sql<Relationship[]>`select ${columns} from memory.relationships r
        where r.tenant_id = ${tenant} and (r.id = ${id} or (r.source_memory_id = ${source}
          and r.target_memory_id = ${create.target_memory_id} and r.relationship_type = ${create.relationship_type}))
        order by r.id = ${id} desc limit 1`;
      return there!;
    },

    async find(tenant: string, source: string, id: string): Promise<{ created_by: string } | undefined> {
      const [found] = await sql<{ created_by: string }[]>`select created_by from memory.relationships
        where tenant_id = ${tenant} and source_memory_id = ${source} and id = ${id}`;
      return found;
    },

    async remove(tenant: string, source: string, id: string): Promise<boolean> {
      return (await sql`delete from memory.relationships
        where tenant_id = ${tenant} and source_memory_id = ${source} and id = ${id} returning id`).length > 0;
    },

    /** Links out of memories to those the reader may see, strongest first. */
    from: (reader: Reader, sources: readonly string[]): Promise<Relationship[]> =>
      sources.length === 0 ? Promise.resolve([]) : sql<Relationship[]>`select ${columns}
        from memory.relationships r join memory.memories m on m.id = r.target_memory_id
        where r.tenant_id = ${reader.tenant} and r.source_memory_id = any(${sources as string[]})
          and ${readable(sql, reader)}
        order by r.strength desc, r.id limit ${EDGES_AT_ONCE}`,
  };
}
export type RelationshipStore = ReturnType<typeof relationshipStore>;
