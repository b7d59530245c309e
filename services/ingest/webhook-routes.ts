/** The webhooks of every tenant as the registry last announced them, with their secrets ready to verify. */
import { createSecretKey, type KeyObject } from "node:crypto";
import { jetstreamManager } from "@nats-io/jetstream";
import type { KV, KvEntry } from "@nats-io/kv";
import type { NatsConnection } from "@nats-io/nats-core";
import { z } from "zod";
import { type Mapping, type Preset, WebhookRoutes } from "../../contracts/ingestion.ts";
import { buckets } from "../../contracts/streams.ts";
import { parseWebhookKey, webhookKey } from "../../contracts/subjects.ts";
import { eachAlone, isLive, openBucket, watchBucket } from "../../runtime/buckets.ts";
import type { Log } from "../../runtime/log.ts";
import { unseal } from "../../runtime/secret.ts";

/** The registry's own count of changes: unlike a revision it grows on when a bucket is lost and made again. */
const Announced = WebhookRoutes.extend({ version: z.number().default(0) });

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
   * What is not known yet; undefined when there is nothing. A webhook whose creation was answered a moment ago is found
   * this way before the watch has brought it. Whether there is anything newer is asked in the same way for every tenant,
   * so that the time of a refusal does not tell whether a tenant exists.
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
  const manager = await jetstreamManager(nc, { checkAPI: false });
  const bySlug = new Map<string, TenantWebhooks & { version: number }>();
  /** How far the watch has come. */
  let seen = 0;
  const apply = eachAlone((entry: KvEntry): void => {
    const slug = parseWebhookKey(entry.key);
    if (slug === undefined || !isLive(entry)) return;
    const { version, tenant, webhooks } = Announced.parse(entry.json());
    if ((bySlug.get(slug)?.version ?? -1) >= version) return;
    bySlug.set(slug, {
      tenant,
      slug,
      version,
      webhooks: webhooks.map(({ secrets, ...webhook }) => ({
        ...webhook,
        secrets: secrets.map(({ sealed, expires_at }) => ({
          key: createSecretKey(unseal(sealingKey, Buffer.from(sealed, "base64"))),
          expiresAtMs: expires_at === null ? Infinity : Date.parse(expires_at),
        })),
      })),
    });
  }, log);
  const watch = watchBucket({
    nc,
    bucket: buckets.webhooks,
    log,
    apply(entry) {
      apply(entry);
      seen = entry.revision;
    },
  });
  await watch.ready;
  const newest = async (): Promise<number> => {
    const subject = `$KV.${buckets.webhooks.name}.>`;
    return (await manager.direct.getMessage(`KV_${buckets.webhooks.name}`, { last_by_subj: subject }))?.seq ?? 0;
  };
  const newer = async (slug: string) => {
    if (await newest() === seen || !/^[a-z0-9-]{1,63}$/.test(slug)) return undefined;
    const before = bySlug.get(slug)?.version;
    const entry = await kv.get(webhookKey(slug));
    if (entry) apply(entry);
    const now = bySlug.get(slug);
    return now && now.version !== before ? now : undefined;
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
