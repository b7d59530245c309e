/** The webhooks of every tenant as the registry last announced them, with their secrets ready to verify. */
import { createSecretKey, type KeyObject } from "node:crypto";
import type { KV, KvEntry } from "@nats-io/kv";
import type { NatsConnection } from "@nats-io/nats-core";
import { type Mapping, type Preset, WebhookRoutes } from "../../contracts/ingestion.ts";
import { buckets } from "../../contracts/streams.ts";
import { parseWebhookKey, webhookKey } from "../../contracts/subjects.ts";
import { isLive, openBucket, watchBucket } from "../../runtime/buckets.ts";
import type { Log } from "../../runtime/log.ts";
import { unseal } from "../../runtime/secret.ts";

export interface Registration {
  readonly id: string;
  readonly source: string;
  readonly preset: Preset;
  readonly mapping: Mapping | null;
  /** Newest first. */
  readonly secrets: readonly { readonly key: KeyObject; readonly expiresAtMs: number }[];
}

export interface TenantWebhooks {
  readonly tenant: string;
  readonly slug: string;
  readonly webhooks: readonly Registration[];
}

export interface WebhookDirectory extends AsyncDisposable {
  known(slug: string): TenantWebhooks | undefined;
  /**
   * Asks the bucket itself; undefined when it holds nothing newer than what is known. A webhook whose creation was
   * answered a moment ago is found this way before the watch has brought it.
   */
  newer(slug: string): Promise<TenantWebhooks | undefined>;
  /** By the slug of the tenant or by its id. */
  find(ref: string): Promise<TenantWebhooks | undefined>;
}

export async function openWebhookDirectory(
  nc: NatsConnection,
  sealingKey: KeyObject,
  log: Log,
): Promise<WebhookDirectory> {
  const kv: KV = await openBucket(nc, buckets.webhooks);
  const bySlug = new Map<string, TenantWebhooks & { revision: number }>();
  const apply = (entry: KvEntry): void => {
    const slug = parseWebhookKey(entry.key);
    if (slug === undefined || (bySlug.get(slug)?.revision ?? 0) >= entry.revision) return;
    const { tenant, webhooks } = isLive(entry)
      ? WebhookRoutes.parse(entry.json())
      : { tenant: "", webhooks: [] } satisfies WebhookRoutes;
    bySlug.set(slug, {
      tenant,
      slug,
      revision: entry.revision,
      webhooks: webhooks.map(({ secrets, ...webhook }) => ({
        ...webhook,
        secrets: secrets.map(({ sealed, expires_at }) => ({
          key: createSecretKey(unseal(sealingKey, Buffer.from(sealed, "base64"))),
          expiresAtMs: expires_at === null ? Infinity : Date.parse(expires_at),
        })),
      })),
    });
  };
  const watch = watchBucket({ nc, bucket: buckets.webhooks, apply, log });
  await watch.ready;
  const newer = async (slug: string) => {
    const before = bySlug.get(slug)?.revision;
    // A name that no tenant can have is asked for all the same, under one that none can have either.
    const entry = await kv.get(webhookKey(/^[a-z0-9-]{1,63}$/.test(slug) ? slug : "-"));
    if (entry) apply(entry);
    const now = bySlug.get(slug);
    return now && now.revision !== before ? now : undefined;
  };
  return {
    known: (slug) => bySlug.get(slug),
    newer,
    async find(ref) {
      await newer(ref);
      return bySlug.get(ref) ?? bySlug.values().find(({ tenant }) => tenant === ref);
    },
    [Symbol.asyncDispose]: () => watch[Symbol.asyncDispose](),
  };
}
