/** What rests in the streams between accepting an event and its acknowledgement. Messages outlive deploys: a new field arrives optional, a changed meaning gets a new `v`. */
import { z } from "zod";
import { EnrichmentDepth } from "./registry.ts";

/** Header names of a message in EVENTS; its body is the CloudEvent as accepted, in JSON. */
export const eventHeaders = {
  /** When it was accepted, ISO 8601. */
  acceptedAt: "Accepted-At",
  /** Set on a test event: this agent receives it whatever its interests say. */
  target: "Target-Agent",
} as const;

/** Why an agent receives an event. */
export const Match = z.union([
  z.object({ interest_id: z.string() }),
  z.object({ channel_id: z.string(), feed_id: z.string() }),
]);
export type Match = z.output<typeof Match>;

/** A message in DELIVERIES-n: it points to the event, so that a large event for many agents is stored once. */
export const QueuedDelivery = z.object({
  v: z.literal(1),
  /** Sequence of the event in EVENTS. */
  seq: z.int(),
  event_id: z.string(),
  matched: z.array(Match),
  /** The highest of the matching interests; a feed counts as 0. */
  priority: z.int(),
  enrichment: EnrichmentDepth,
  /** When it was queued, ISO 8601. */
  at: z.string(),
  /** Set on a replay: the delivery it continues, whose id it keeps. */
  origin: z.object({ seq: z.int(), at: z.int(), tier: z.int() }).optional(),
  /** Set on a replay whose event has left EVENTS: the event itself. */
  event: z.looseObject({ type: z.string() }).optional(),
});
export type QueuedDelivery = z.output<typeof QueuedDelivery>;

/** A message in HISTORY: how a delivery ended. */
export const Ending = z.object({
  v: z.literal(1),
  outcome: z.enum(["acknowledged", "dead"]),
  /** The delivery as its id names it: first place in its stream, moment in ms, tier, and sequence of the event. */
  seq: z.int(),
  at: z.int(),
  tier: z.int(),
  event: z.int(),
  ended_at: z.string(),
  /** Seed of the request that ended it: tried again, that request is answered as the first time. */
  by: z.string(),
});
export type Ending = z.output<typeof Ending>;

/** A message in NOTES. */
export const DeliveryNote = z.object({
  v: z.literal(1),
  /** Where the delivery is in its stream now. */
  seq: z.int(),
  tier: z.int(),
  attempt: z.int(),
});
export type DeliveryNote = z.output<typeof DeliveryNote>;

/** A message in EXPIRY: this delivery has no attempt left, or was rejected. */
export const Expired = z.object({
  v: z.literal(1),
  shard: z.int(),
  /** Where it is in its stream. */
  seq: z.int(),
  attempt: z.int(),
  reason: z.string(),
  by: z.string(),
});
export type Expired = z.output<typeof Expired>;

/** An entry of the push bucket. */
export const PushState = z.object({
  /** Which of the agent's secrets signs; the one before it signs too for a day. */
  secret: z.int().min(1),
  rotated_at: z.string(),
  /** Seed of the request that was given it: tried again, that request is answered as the first time. */
  by: z.string().optional(),
  /** The endpoint that answered 410: nothing is sent there until the agent names another. */
  gone: z.string().optional(),
});
export type PushState = z.output<typeof PushState>;

/** `Nats-Msg-Id` of an event: what makes a second publish a duplicate. */
export const eventMsgId = (tenant: string, eventId: string): string =>
  // A header holds no line ends and loses outer spaces, so what is not plainly printable is written as in a URI.
  `${tenant}:${eventId.replace(/[^\x21-\x24\x26-\x7e]+/g, encodeURIComponent)}`;
/** `Nats-Msg-Id` of a delivery: a fan-out repeated after a crash queues nothing twice. */
export const deliveryMsgId = (seq: number, agent: string): string => `${seq}:${agent}`;
