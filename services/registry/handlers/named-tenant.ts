/** A tenant as an operator names it, or `not_found`. */
import { notFound } from "../../../contracts/errors.ts";
import type { Tenant } from "../../../contracts/registry.ts";
import type { TenantStore } from "../store/tenants.ts";

export async function namedTenant(tenants: Pick<TenantStore, "find">, ref: string): Promise<Tenant> {
  const tenant = await tenants.find(ref);
  if (!tenant) throw notFound("tenant", ref);
  return tenant;
}
