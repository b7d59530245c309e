/** What an operator asks over the bus: tenants, org-admin keys, the signing key. */
import type { KeyObject } from "node:crypto";
import { notFound, taken } from "../../../contracts/errors.ts";
import { newId, scopes } from "../../../contracts/identity.ts";
import type { Handlers } from "../../../contracts/operations.ts";
import { type Tx, violates } from "../../../runtime/database.ts";
import type { Announcer } from "../announce.ts";
import { freshKey } from "../keys.ts";
import type { KeyStore } from "../store/keys.ts";
import type { TenantStore } from "../store/tenants.ts";
import type { Tokens } from "../tokens.ts";
import { revocation } from "../trust.ts";
import { namedTenant } from "./named-tenant.ts";

type OperatorOperations =
  | "operator.tenant_create"
  | "operator.tenant_list"
  | "operator.admin_key_mint"
  | "operator.admin_key_revoke"
  | "operator.signing_key_rotate";

export function operatorHandlers(deps: {
  readonly tenants: TenantStore;
  readonly keys: Pick<KeyStore, "insert" | "revoke">;
  readonly tokens: Pick<Tokens, "rotate">;
  readonly announcer: Pick<Announcer, "change">;
  readonly hashKey: KeyObject;
}): Pick<Handlers<"registry">, OperatorOperations> {
  const { tenants, keys, tokens, announcer, hashKey } = deps;

  const tenantOf = (ref: string) => namedTenant(tenants, ref);

  /** Each key has an org-admin of its own, so that what was done with it can be told apart. */
  const mint = async (tx: Tx, tenant: string, seed: string) => {
    const { plaintext, prefix, hash } = freshKey(hashKey);
    const admin = newId("org_admin", seed);
    await tenants.insertOrgAdmin(tx, tenant, admin);
    const key = await keys.insert(tx, tenant, { kind: "org_admin", id: admin }, {
      id: newId("api_key", seed),
      prefix,
      hash,
      scopes: [...scopes],
      expires_at: null,
    });
    return { org_admin_id: admin, key_id: key.id, key: plaintext };
  };

  return {
    async "operator.tenant_create"({ body: { slug, name } }, { seed }) {
      try {
        return await announcer.change(async (tx) => {
          const tenant = await tenants.insert(tx, { id: newId("tenant", seed), slug, name: name ?? slug });
          return { tenant, org_admin: await mint(tx, tenant.id, seed) };
        });
      } catch (error) {
        if (violates(error, "tenants_slug")) {
          throw taken(`A tenant with the slug ${slug} exists already`, (await tenants.find(slug))?.id ?? null);
        }
        throw error;
      }
    },

    async "operator.tenant_list"() {
      return { tenants: await tenants.list() };
    },

    async "operator.admin_key_mint"({ body: { tenant } }, { seed }) {
      const { id } = await tenantOf(tenant);
      return await announcer.change((tx) => mint(tx, id, seed));
    },

    async "operator.admin_key_revoke"({ body: { tenant, key_id } }) {
      const { id } = await tenantOf(tenant);
      await announcer.change(async (tx, announce) => {
        if (!await keys.revoke(tx, id, "org_admin", key_id)) throw notFound("api_key", key_id);
        announce(revocation(key_id));
      });
    },

    async "operator.signing_key_rotate"() {
      return { kid: await tokens.rotate() };
    },
  };
}
