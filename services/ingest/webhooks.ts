/** Webhooks: a request is taken in when a secret of its tenant verifies it, and leaves no trace otherwise. */
import { createSecretKey, randomBytes } from "node:crypto";
import { Fault, invalid, notFound, ruleBroken, unauthenticated } from "../../contracts/errors.ts";
import type { CloudEvent, Published } from "../../contracts/events.ts";
import type { Handlers } from "../../contracts/operations.ts";
import { shown } from "../../contracts/validation.ts";
import { mediaTypeOf } from "../../runtime/json.ts";
import { measure } from "../../runtime/measure.ts";
import { FORM_TYPE } from "./form.ts";
import { mapMessage, type Mapped, mapWebhook } from "./webhook-map.ts";
import type { Registration, TenantWebhooks, WebhookDirectory } from "./webhook-routes.ts";
import { sampleOf } from "./webhook-sample.ts";
import { hmacOf, sign, type Signed, verify } from "./webhook-signature.ts";

type WebhookOperations = "webhooks.receive" | "events.ingest" | "operator.webhook_sample";

export function webhookHandlers(deps: {
  readonly directory: Pick<WebhookDirectory, "known" | "newer" | "find">;
  readonly publish: (tenant: string, event: CloudEvent) => Promise<Published>;
  readonly now: () => Date;
}): Pick<Handlers<"ingest">, WebhookOperations> {
  const { directory, publish, now } = deps;

  /** Whose request it is; what is known is tried first, and the bucket itself before giving up. */
  const senderOf = async (slug: string, request: Omit<Signed, "nowSeconds">, at: Date) => {
    const nowMs = at.getTime();
    const signed = { ...request, nowSeconds: Math.floor(nowMs / 1_000) };
    const known = directory.known(slug);
    const found = verifying(known, signed, nowMs);
    if (found.sender) return found.sender;
    const newer = verifying(await directory.newer(slug), signed, nowMs);
    if (newer.sender) return newer.sender;
    // A tenant that does not exist costs as much time as one whose few secrets do not fit.
    for (let tried = found.tried + newer.tried; tried < DECOYS; tried++) hmacOf(decoy, "", signed.body);
    return undefined;
  };

  return {
    async "webhooks.receive"({ body: { slug, headers, body: base64 } }) {
      const receivedAt = now();
      const body = Buffer.from(base64, "base64");
      const sender = await senderOf(slug, { headers, body }, receivedAt);
      if (!sender) {
        measure().webhooks.add(1, { outcome: "bad_signature" });
        throw unauthenticated("The signature of the request does not verify");
      }
      const { tenant, webhook: { source, preset, mapping } } = sender;
      const count = (outcome: string) => measure().webhooks.add(1, { tenant, source, outcome });
      try {
        if (preset !== "cloudevents") assertReadable(headers["content-type"]);
        const mapped: Mapped = mapWebhook(source, preset, mapping, { headers, body, receivedAt });
        if ("challenge" in mapped) {
          count("challenge");
          return mapped;
        }
        const published = await publish(tenant, mapped.event);
        count(published.status);
        return mapped.quietly ? { quietly: published } : published;
      } catch (thrown) {
        count(thrown instanceof Fault ? thrown.code : "failed");
        throw thrown;
      }
    },

    async "events.ingest"({ body: { tenant, source, mapping, headers, body, message_id: messageId } }) {
      const message = { headers, body: Buffer.from(body, "base64"), receivedAt: now(), messageId };
      return await publish(tenant, mapMessage(source, mapping, message));
    },

    async "operator.webhook_sample"({ body: { tenant: ref, id, body } }, { seed }) {
      const tenant = await directory.find(ref);
      const webhook = tenant?.webhooks.find((webhook) => webhook.id === id);
      if (!tenant || !webhook) throw notFound("webhook", id);
      const { preset, mapping, secrets } = webhook;
      const newest = secrets[0];
      if (!newest) throw ruleBroken("no_secret", `Webhook ${id} has no secret that is still valid`);
      const sample = sampleOf(preset, mapping, seed, now());
      const text = body ?? sample.body;
      const signature = sign(preset, newest.key, Buffer.from(text), Math.floor(now().getTime() / 1_000));
      return { path: `/w/${tenant.slug}`, headers: { ...sample.headers, ...signature }, body: text };
    },
  };
}

const decoy = createSecretKey(randomBytes(32));
/** Tenants with up to this many secrets cannot be told from none by the time an answer takes. */
const DECOYS = 4;

interface Sender {
  readonly tenant: string;
  readonly webhook: Registration;
}

/** The first registration whose secret verifies, and how many secrets were tried. */
function verifying(
  known: TenantWebhooks | undefined,
  signed: Signed,
  nowMs: number,
): { sender?: Sender; tried: number } {
  let tried = 0;
  for (const webhook of known?.webhooks ?? []) {
    for (const { key, expiresAtMs } of webhook.secrets) {
      if (expiresAtMs <= nowMs) continue;
      const verdict = verify(webhook.preset, key, signed);
      if (verdict !== undefined) tried++;
      if (verdict) return { sender: { tenant: known!.tenant, webhook }, tried };
    }
  }
  return { tried };
}

function assertReadable(contentType: string | undefined): void {
  const type = mediaTypeOf(contentType);
  if (type === "application/json" || type.endsWith("+json") || type === FORM_TYPE) return;
  throw invalid({
    field: "content-type",
    value: shown(contentType),
    expected: `application/json or ${FORM_TYPE}`,
    example: "application/json",
  });
}
