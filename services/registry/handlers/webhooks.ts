/** Webhooks as an operator registers them. Their secrets are shown once, and rest sealed. */
import { type KeyObject, randomInt } from "node:crypto";
import { invalid, notFound, ruleBroken } from "../../../contracts/errors.ts";
import { newId, ulid } from "../../../contracts/identity.ts";
import { MAX_WEBHOOKS, type Webhook } from "../../../contracts/ingestion.ts";
import type { Handlers } from "../../../contracts/operations.ts";
import type { Tx } from "../../../runtime/database.ts";
import { seal } from "../../../runtime/secret.ts";
import type { Announcement, Announcer } from "../announce.ts";
import { webhookRoutes } from "../routes.ts";
import type { TenantStore } from "../store/tenants.ts";
import type { SecretRow, WebhookRow, WebhookStore } from "../store/webhooks.ts";
import { namedTenant } from "./named-tenant.ts";

type WebhookOperations =
  | "operator.webhook_create"
  | "operator.webhook_list"
  | "operator.webhook_show"
  | "operator.webhook_rotate"
  | "operator.webhook_delete";

export function webhookHandlers(deps: {
  readonly tenants: Pick<TenantStore, "find">;
  readonly webhooks: WebhookStore;
  readonly announcer: Pick<Announcer, "change">;
  readonly webhookKey: KeyObject;
}): Pick<Handlers<"registry">, WebhookOperations> {
  const { tenants, webhooks, announcer, webhookKey } = deps;

  const tenantOf = (ref: string) => namedTenant(tenants, ref);

  /** Runs a change to a tenant's webhooks, and announces all of them as they are then. */
  const changing = async <T>(ref: string, work: (tx: Tx, tenant: string) => Promise<T>): Promise<T> => {
    const { id, slug } = await tenantOf(ref);
    return await announcer.change(async (tx, announce: (item: Announcement) => void) => {
      await webhooks.lock(tx, id);
      const result = await work(tx, id);
      announce(webhookRoutes(slug, await webhooks.routes(tx, id)));
      return result;
    });
  };

  const shown = async (tx: Tx | undefined, tenant: string, id: string): Promise<Webhook> => {
    const row = await webhooks.find(tenant, id, tx);
    if (!row) throw notFound("webhook", id);
    return asShown(row, await webhooks.secrets(tenant, tx));
  };

  return {
    "operator.webhook_create": ({ body: { tenant: ref, source, preset, mapping, secret } }, { seed }) => {
      if ((preset === "custom") !== (mapping !== null)) {
        throw invalid({
          field: "mapping",
          value: mapping,
          expected: preset === "custom"
            ? "where entity and action are found"
            : `nothing: the preset ${preset} says where everything is`,
          example: preset === "custom" ? { entity: "order", action: "/action", id: "/id" } : null,
        });
      }
      return changing(ref, async (tx, tenant) => {
        const id = newId("webhook", seed);
        if ((await webhooks.list(tenant)).length >= MAX_WEBHOOKS) {
          throw ruleBroken("too_many_webhooks", `A tenant has at most ${MAX_WEBHOOKS} webhooks`);
        }
        await webhooks.insert(tx, tenant, { id, source, preset, mapping });
        const plain = secret ?? freshSecret();
        await webhooks.insertSecret(tx, id, seed, seal(webhookKey, Buffer.from(plain)));
        return { webhook: await shown(tx, tenant, id), secret: secret ? null : plain };
      });
    },

    async "operator.webhook_list"({ body: { tenant: ref } }) {
      const { id } = await tenantOf(ref);
      const secrets = await webhooks.secrets(id);
      return { webhooks: (await webhooks.list(id)).map((row) => asShown(row, secrets)) };
    },

    async "operator.webhook_show"({ body: { tenant: ref, id } }) {
      return await shown(undefined, (await tenantOf(ref)).id, id);
    },

    "operator.webhook_rotate": ({ body: { tenant: ref, id, secret, overlap_seconds } }) =>
      changing(ref, async (tx, tenant) => {
        if (!await webhooks.find(tenant, id, tx)) throw notFound("webhook", id);
        const plain = secret ?? freshSecret();
        const newest = ulid();
        await webhooks.insertSecret(tx, id, newest, seal(webhookKey, Buffer.from(plain)));
        await webhooks.endSecrets(tx, id, newest, overlap_seconds);
        return { webhook: await shown(tx, tenant, id), secret: secret ? null : plain };
      }),

    "operator.webhook_delete": ({ body: { tenant: ref, id } }) =>
      changing(ref, async (tx, tenant) => {
        if (!await webhooks.delete(tx, tenant, id)) throw notFound("webhook", id);
      }),
  };
}

const asShown = ({ slug, ...row }: WebhookRow, secrets: readonly SecretRow[]): Webhook => ({
  ...row,
  path: `/w/${slug}`,
  secrets: secrets.filter((secret) => secret.webhook_id === row.id).map(({ created_at, expires_at }) => ({
    created_at,
    expires_at,
  })),
});

const base62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/** `whsec_` and 43 random base62 characters: 256 bits, as long as the hash it keys. */
function freshSecret(): string {
  let secret = "whsec_";
  for (let i = 0; i < 43; i++) secret += base62[randomInt(62)];
  return secret;
}
