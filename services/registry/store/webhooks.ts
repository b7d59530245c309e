/** All SQL over webhooks and their secrets. */
import type { Mapping, Preset, WebhookRoutes } from "../../../contracts/ingestion.ts";
import type { Sql, Tx } from "../../../runtime/database.ts";

export interface WebhookRow {
  readonly id: string;
  readonly tenant_id: string;
  readonly slug: string;
  readonly source: string;
  readonly preset: Preset;
  readonly mapping: Mapping | null;
  readonly created_at: string;
}

export interface SecretRow {
  readonly webhook_id: string;
  readonly sealed: Buffer;
  readonly created_at: string;
  readonly expires_at: string | null;
}

export function webhookStore(sql: Sql) {
  const rows = (on: Sql | Tx, tenant: string, id?: string) =>
    on<WebhookRow[]>`select w.id, w.tenant_id, t.slug, w.source, w.preset, w.mapping, w.created_at
      from registry.webhooks w join registry.tenants t on t.id = w.tenant_id
      where w.tenant_id = ${tenant} ${id === undefined ? on`` : on`and w.id = ${id}`} order by w.id`;

  return {
    list: (tenant: string): Promise<WebhookRow[]> => rows(sql, tenant),

    find: async (tenant: string, id: string, on: Sql | Tx = sql): Promise<WebhookRow | undefined> =>
      (await rows(on, tenant, id))[0],

    /** The secrets that can still verify, newest first. */
    secrets: (tenant: string, on: Sql | Tx = sql): Promise<SecretRow[]> =>
      on<SecretRow[]>`select s.webhook_id, s.sealed, s.created_at, s.expires_at
        from registry.webhook_secrets s join registry.webhooks w on w.id = s.webhook_id
        where w.tenant_id = ${tenant} and (s.expires_at is null or s.expires_at > now()) order by s.id desc`,

    /** Its webhooks are announced together, so changes to them come one after the other. */
    lock: (tx: Tx, tenant: string) => tx`select 1 from registry.tenants where id = ${tenant} for update`,

    async insert(
      tx: Tx,
      tenant: string,
      webhook: { id: string; source: string; preset: Preset; mapping: Mapping | null },
    ): Promise<void> {
      const row = { ...webhook, tenant_id: tenant, mapping: webhook.mapping && tx.json(webhook.mapping) };
      await tx`insert into registry.webhooks ${tx(row)} on conflict (id) do nothing`;
    },

    insertSecret: (tx: Tx, webhook: string, id: string, sealed: Buffer) =>
      tx`insert into registry.webhook_secrets (id, webhook_id, sealed) values (${id}, ${webhook}, ${sealed})
        on conflict (id) do update set sealed = excluded.sealed`,

    /** Every secret but `newest` ends in so many seconds, unless it ends before; what has ended is gone. */
    async endSecrets(tx: Tx, webhook: string, newest: string, seconds: number): Promise<void> {
      await tx`delete from registry.webhook_secrets where webhook_id = ${webhook} and expires_at <= now()`;
      await tx`update registry.webhook_secrets
        set expires_at = least(expires_at, now() + make_interval(secs => ${seconds}))
        where webhook_id = ${webhook} and id <> ${newest}`;
    },

    async delete(tx: Tx, tenant: string, id: string): Promise<boolean> {
      return (await tx`delete from registry.webhooks where tenant_id = ${tenant} and id = ${id} returning id`).length >
        0;
    },

    /** What is announced of a tenant. */
    async routes(tx: Tx, tenant: string): Promise<WebhookRoutes> {
      const secrets = Map.groupBy(await this.secrets(tenant, tx), (secret) => secret.webhook_id);
      return {
        tenant,
        webhooks: (await rows(tx, tenant)).map(({ id, source, preset, mapping }) => ({
          id,
          source,
          preset,
          mapping,
          secrets: (secrets.get(id) ?? []).map(({ sealed, expires_at }) => ({
            sealed: sealed.toString("base64"),
            expires_at,
          })),
        })),
      };
    },

    /** Tenants with webhooks, locked as for a change. */
    tenantsAfter: (tx: Tx, id: string, limit: number): Promise<{ id: string; slug: string }[]> =>
      tx<{ id: string; slug: string }[]>`select t.id, t.slug from registry.tenants t
        where t.id > ${id} and exists (select 1 from registry.webhooks w where w.tenant_id = t.id)
        order by t.id limit ${limit} for update`,
  };
}
export type WebhookStore = ReturnType<typeof webhookStore>;
