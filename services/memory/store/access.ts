/** Who may read which memories, said once as SQL and once for the index. */
import type { MemoryScope } from "../../../contracts/memory.ts";
import { memoryScopes } from "../../../contracts/memory.ts";
import type { TenantCaller } from "../../../contracts/identity.ts";
import type { Sql } from "../../../runtime/database.ts";
import type { Reach } from "../index/port.ts";

/** The part of a caller that access depends on. */
export type Reader = Pick<TenantCaller, "kind" | "id" | "tenant" | "team">;

/**
 * Rows of `memory.memories m` that are there for the reader. The owner reads what it owns in every scope, else it could
 * lose sight of a memory by promoting it to a team it is not in.
 */
export const readable = (sql: Sql, reader: Reader) =>
  sql`m.tenant_id = ${reader.tenant} and m.status = 'active' and (m.expires_at is null or m.expires_at > now()) and ${
    reader.kind === "org_admin"
      ? sql`m.scope in ('team', 'institutional')`
      : sql`(m.agent_id = ${reader.id} or m.scope = 'institutional'
          or (m.scope = 'team' and m.team_id = ${reader.team ?? null}::text))`
  }`;

export const reachOf = (reader: Reader, scope: MemoryScope | undefined): Reach => ({
  ...(reader.kind === "agent" ? { agent: reader.id } : { everyTeam: true }),
  ...(reader.team ? { team: reader.team } : {}),
  scopes: scope ? [scope] : memoryScopes,
});

/** An owner writes what it owns; an org-admin what is not private, and private memories it does not even see. */
export const mayWrite = (reader: Reader, memory: { agent_id: string }): boolean =>
  reader.kind === "org_admin" || memory.agent_id === reader.id;
