/** All SQL over API keys. */
import type { ParticipantType, Scope } from "../../../contracts/identity.ts";
import type { ApiKey } from "../../../contracts/registry.ts";
import type { Sql, Tx } from "../../../runtime/database.ts";

export interface KeyOwner {
  readonly kind: ParticipantType;
  readonly id: string;
}

/** A key as the token exchange sees it: with its owner, and whether it may be used now. */
export interface UsableKey {
  readonly id: string;
  readonly tenant_id: string;
  readonly agent_id: string | null;
  readonly org_admin_id: string | null;
  readonly hash: Buffer;
  readonly scopes: Scope[];
  readonly expires_at: string | null;
}

export function keyStore(sql: Sql) {
  const listed = sql`id, prefix, scopes, expires_at, created_at, last_used_at, revoked_at`;
  return {
    list: (tenant: string, agent: string): Promise<ApiKey[]> =>
      sql<ApiKey[]>`select ${listed} from registry.api_keys
        where tenant_id = ${tenant} and agent_id = ${agent} order by id desc`,

    /**
     * A second insert under the same id is the same request tried again: its first answer never reached anyone, so the
     * key it held is replaced.
     */
    async insert(
      tx: Tx,
      tenant: string,
      owner: KeyOwner,
      key: { id: string; prefix: string; hash: Buffer; scopes: Scope[]; expires_at: string | null },
    ): Promise<ApiKey> {
      const row = {
        ...key,
        tenant_id: tenant,
        agent_id: owner.kind === "agent" ? owner.id : null,
        org_admin_id: owner.kind === "org_admin" ? owner.id : null,
      };
      const [made] = await tx<ApiKey[]>`insert into registry.api_keys ${tx(row)}
        on conflict (id) do update set hash = excluded.hash, prefix = excluded.prefix returning ${listed}`;
      return made!;
    },

    /** Only keys that may be used now; a revoked or expired one is as good as unknown. */
    async usable(hash: Buffer): Promise<UsableKey | undefined> {
      const [found] = await sql<UsableKey[]>`
        select id, tenant_id, agent_id, org_admin_id, hash, scopes, expires_at from registry.api_keys
        where hash = ${hash} and revoked_at is null and (expires_at is null or expires_at > now())`;
      return found;
    },

    /** At most once a minute: the field is for people, and a busy key must not cost a write each time. */
    touch: (id: string) =>
      sql`update registry.api_keys set last_used_at = now()
        where id = ${id} and (last_used_at is null or last_used_at < now() - interval '1 minute')`,

    /** Whether there is such a key; one revoked before stays as it was. */
    async revoke(tx: Tx, tenant: string, owner: { agent: string } | "org_admin", id: string): Promise<boolean> {
      const owned = owner === "org_admin" ? tx`org_admin_id is not null` : tx`agent_id = ${owner.agent}`;
      const rows = await tx`update registry.api_keys set revoked_at = coalesce(revoked_at, now())
        where tenant_id = ${tenant} and id = ${id} and ${owned} returning id`;
      return rows.length > 0;
    },

    revokedWithin: async (tx: Tx, seconds: number): Promise<string[]> =>
      (await tx<{ id: string }[]>`select id from registry.api_keys
        where revoked_at > now() - make_interval(secs => ${seconds})`).map(({ id }) => id),
  };
}
export type KeyStore = ReturnType<typeof keyStore>;
