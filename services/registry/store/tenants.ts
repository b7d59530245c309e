/** All SQL over tenants and their org-admins. */
import type { Tenant } from "../../../contracts/registry.ts";
import type { Sql, Tx } from "../../../runtime/database.ts";

export function tenantStore(sql: Sql) {
  return {
    list: (): Promise<Tenant[]> => sql<Tenant[]>`select id, slug, name, created_at from registry.tenants order by id`,

    /** By id or by slug, as an operator names it. */
    async find(ref: string): Promise<Tenant | undefined> {
      const [found] = await sql<Tenant[]>`
        select id, slug, name, created_at from registry.tenants where id = ${ref} or slug = ${ref}`;
      return found;
    },

    async insert(tx: Tx, tenant: { id: string; slug: string; name: string }): Promise<Tenant> {
      const [made] = await tx<Tenant[]>`insert into registry.tenants ${
        tx(tenant)
      } returning id, slug, name, created_at`;
      return made!;
    },

    insertOrgAdmin: (tx: Tx, tenant: string, id: string) =>
      tx`insert into registry.org_admins (id, tenant_id) values (${id}, ${tenant}) on conflict (id) do nothing`,

    async hasOrgAdmin(tenant: string, id: string): Promise<boolean> {
      return (await sql`select 1 from registry.org_admins where tenant_id = ${tenant} and id = ${id}`).length > 0;
    },
  };
}
export type TenantStore = ReturnType<typeof tenantStore>;
