/** What comes from outside: webhooks, AMQP connectors, and how their messages become events. */
import { z } from "zod";
import { Published } from "./events.ts";
import { Moment } from "./fields.ts";
import { idOf } from "./identity.ts";
import { Slug, TenantRef } from "./registry.ts";

/** The name of the outside system; the second word of the types of its events. */
export const SourceName = z.string().regex(
  /^[a-z0-9](?:[a-z0-9_-]{0,61}[a-z0-9])?$/,
  "1 to 63 lower-case letters, digits and inner hyphens or underscores",
).meta({ examples: ["shop"] });

/**
 * Where a value comes from: `/a/b` is a JSON pointer into the body, `header:x-event` a header (or an application
 * property of an AMQP message), anything else a text whose `{…}` hold such places: `order`, `order/{/order/id}`.
 */
export const Place = z.string().min(1).max(500).refine(
  (text) => placesIn(text) !== undefined,
  "a JSON pointer such as /order/id, header:name, or a text with those in braces",
).meta({ examples: ["/order/id"] });

export const Mapping = z.object({
  entity: Place.meta({ examples: ["order"] }),
  action: Place.meta({ examples: ["/action"] }),
  /** The entity's own id. */
  entity_id: Place.optional(),
  /** The event's id, by which a repetition is recognised; the hash of the body when there is none. */
  id: Place.optional(),
  subject: Place.optional(),
  time: Place.optional(),
  /** The part of the body that agents receive; all of it when left out. */
  data: z.string().max(500).regex(/^(?:\/.*)?$/, "a JSON pointer").optional(),
});
export type Mapping = z.output<typeof Mapping>;

/** A part of a place: text as it stands, a pointer, or the name of a header. */
export type Part =
  | { readonly kind: "text"; readonly text: string }
  | { readonly kind: "pointer"; readonly path: readonly string[] }
  | { readonly kind: "header"; readonly name: string };

/** Undefined when the text is not well formed. */
export function placesIn(text: string): readonly Part[] | undefined {
  const whole = placeIn(text);
  if (whole) return [whole];
  if (text.startsWith("/") || text.startsWith("header:")) return undefined;
  const parts: Part[] = [];
  for (const [, hole, plain] of text.matchAll(/\{([^{}]*)\}|([^{}]+)|[{}]/g)) {
    const part = plain !== undefined ? { kind: "text", text: plain } as const : placeIn(hole ?? "");
    if (!part) return undefined;
    parts.push(part);
  }
  return parts;
}

function placeIn(text: string): Part | undefined {
  if (/^(?:\/(?:[^~]|~[01])*)+$/.test(text)) return { kind: "pointer", path: pointerPath(text) };
  const [, header] = /^header:([!#$%&'*+.^_`|~0-9A-Za-z-]+)$/.exec(text) ?? [];
  return header ? { kind: "header", name: header.toLowerCase() } : undefined;
}

/** RFC 6901. */
export const pointerPath = (pointer: string): string[] =>
  pointer.split("/").slice(1).map((token) => token.replaceAll("~1", "/").replaceAll("~0", "~"));

/** Whose way of signing and naming things a webhook follows. */
export const presets = ["custom", "github", "stripe", "slack", "cloudevents"] as const;
export const Preset = z.enum(presets);
export type Preset = z.output<typeof Preset>;

export const WebhookSecret = z.string().min(16).max(500).regex(/^[\x21-\x7e]+$/, "printable characters without spaces")
  .meta({ secret: true, examples: ["whsec_…"] });

export const Webhook = z.object({
  id: idOf("webhook"),
  tenant_id: idOf("tenant"),
  /** Where its sender posts to, below the address of the gateway. */
  path: z.string(),
  source: SourceName,
  preset: Preset,
  mapping: Mapping.nullable(),
  /** Newest first; one that ends is valid until then. */
  secrets: z.array(z.object({ created_at: Moment, expires_at: Moment.nullable() })),
  created_at: Moment,
});
export type Webhook = z.output<typeof Webhook>;

export const WebhookCreate = TenantRef.extend({
  source: SourceName,
  preset: Preset.default("custom"),
  mapping: Mapping.nullable().default(null),
  /** Where the sender chose it; else one is made. */
  secret: WebhookSecret.optional(),
});
/** `secret` is shown this once, and only where we made it. */
export const WebhookCreated = z.object({ webhook: Webhook, secret: z.string().nullable() });
export const WebhookList = z.object({ webhooks: z.array(Webhook) });
export const WebhookRef = TenantRef.extend({ id: idOf("webhook") });
export const OVERLAP_SECONDS = 24 * 3_600;
export const WebhookRotate = WebhookRef.extend({
  secret: WebhookSecret.optional(),
  /** How long the secrets of before stay valid. */
  overlap_seconds: z.int().min(0).max(30 * 24 * 3_600).default(OVERLAP_SECONDS),
});
/** A body to sign as the sender would; one that fits the mapping is made up when left out. */
export const WebhookSampleQuery = WebhookRef.extend({ body: z.string().max(1024 * 1024).optional() });
export const WebhookSample = z.object({
  path: z.string(),
  headers: z.record(z.string(), z.string()),
  body: z.string(),
});
export type WebhookSample = z.output<typeof WebhookSample>;

/** What the registry announces for each tenant with webhooks, by its slug. Secrets are sealed. */
export const WebhookRoutes = z.object({
  tenant: z.string(),
  webhooks: z.array(z.object({
    id: z.string(),
    source: z.string(),
    preset: Preset,
    mapping: Mapping.nullable(),
    secrets: z.array(z.object({ sealed: z.base64(), expires_at: Moment.nullable() })),
  })),
});
export type WebhookRoutes = z.output<typeof WebhookRoutes>;
export const MAX_WEBHOOKS = 50;

/** A message from outside as bytes and headers (lower-case names), whichever way it came. */
export const Foreign = z.object({ headers: z.record(z.string(), z.string()), body: z.base64() });
export type Foreign = z.output<typeof Foreign>;

export const WebhookRequest = Foreign.extend({ slug: z.string() });
/** A sender may want proof that we are there before it sends anything, or show to somebody whatever is in an answer. */
export const WebhookAnswer = z.union([
  Published,
  z.object({ quietly: Published }),
  z.object({ challenge: z.string() }),
]);

export const IngestRequest = Foreign.extend({
  tenant: z.string(),
  source: SourceName,
  mapping: Mapping.nullable(),
  /** The id of the message itself, for an event that brings none. */
  message_id: z.string().optional(),
});

const Pem = z.string().max(64 * 1024).regex(/-----BEGIN [A-Z ]+-----/, "PEM text");

/** Everything about a broker but the secrets. */
export const AmqpSettings = z.object({
  host: z.string().min(1).max(253).regex(/^[A-Za-z0-9._:-]+$/, "a host name or an address").meta({
    examples: ["broker.example.com"],
  }),
  port: z.int().min(1).max(65_535).default(5672),
  /** A certificate of our own proves us to the broker; `ca` replaces the authorities of the machine. */
  tls: z.object({ ca: Pem.optional(), cert: Pem.optional(), servername: z.string().max(253).optional() })
    .nullable().default(null),
  sasl: z.enum(["plain", "external", "anonymous"]).default("plain"),
  username: z.string().min(1).max(256).optional(),
  /** What to read, as the broker names it: a queue, a topic's subscription. */
  address: z.string().min(1).max(1024).meta({ examples: ["/queue/orders"] }),
  /** How many messages may be under way at once. */
  credit: z.int().min(1).max(10_000).default(100),
});
export type AmqpSettings = z.output<typeof AmqpSettings>;
export const AmqpSecrets = z.object({
  password: z.string().max(4096).optional().meta({ secret: true }),
  /** The private key of `tls.cert`. */
  key: Pem.optional().meta({ secret: true }),
});
export type AmqpSecrets = z.output<typeof AmqpSecrets>;

export const ConnectorStatus = z.enum(["connected", "connecting", "held", "paused", "waiting"]);
export type ConnectorStatus = z.output<typeof ConnectorStatus>;

/** What a connector has before it. Without an owner that is nothing. */
export const ConnectorLoad = z.object({
  /** Received and neither accepted, rejected nor released. */
  unsettled: z.int().default(0),
  oldest_unsettled_at: Moment.nullable().default(null),
  /** How many the broker may still send. */
  credit: z.int().default(0),
  /** How many wait at the broker, by its own word at the last grant of credit; null where it does not say. */
  waiting: z.int().nullable().default(null),
});
export type ConnectorLoad = z.output<typeof ConnectorLoad>;

const Count = z.int().default(0);

/** How a connector does, as its owner last wrote it. Counts go on from one owner to the next. */
export const ConnectorState = ConnectorLoad.extend({
  status: ConnectorStatus.default("waiting"),
  owner: z.string().nullable().default(null),
  received: Count,
  accepted: Count,
  duplicate: Count,
  rejected: Count,
  /** Given back to the broker, because the connector stopped before they were stored. */
  released: Count,
  /** How often its link was opened again after it broke. */
  reconnects: Count,
  last_message_at: Moment.nullable().default(null),
  last_error: z.string().nullable().default(null),
  /** The latest, newest first. */
  rejections: z.array(z.object({ at: Moment, message_id: z.string().nullable(), reason: z.string() })).default([]),
});
export type ConnectorState = z.output<typeof ConnectorState>;

export const Connector = z.object({
  id: idOf("connector"),
  tenant_id: idOf("tenant"),
  source: SourceName,
  kind: z.literal("amqp"),
  settings: AmqpSettings,
  mapping: Mapping.nullable(),
  paused: z.boolean(),
  created_at: Moment,
});
export type Connector = z.output<typeof Connector>;
export const ConnectorShown = Connector.extend({ state: ConnectorState });
export type ConnectorShown = z.output<typeof ConnectorShown>;

export const ConnectorCreate = TenantRef.extend({
  source: SourceName,
  settings: AmqpSettings,
  secrets: AmqpSecrets.default({}),
  /** Without one, only messages that are CloudEvents themselves can be taken. */
  mapping: Mapping.nullable().default(null),
  paused: z.boolean().default(false),
});
export type ConnectorCreate = z.output<typeof ConnectorCreate>;
export const ConnectorRef = TenantRef.extend({ id: idOf("connector") });
/** Whom the tenant is, by its id: the connector service knows no slugs. */
export const ConnectorTestRequest = z.object({ tenant: idOf("tenant"), id: idOf("connector") });
export const ConnectorList = z.object({ connectors: z.array(ConnectorShown) });
export const ConnectorTest = z.object({ ok: z.boolean(), detail: z.string() });

/** What the registry announces of a connector, by its id. The secrets are sealed. */
export const ConnectorRoute = Connector.pick({ source: true, settings: true, mapping: true, paused: true })
  .extend({ tenant: z.string(), sealed: z.base64() });
export type ConnectorRoute = z.output<typeof ConnectorRoute>;

export const WebhookPath = z.object({ slug: Slug });
