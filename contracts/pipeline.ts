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
});
export type QueuedDelivery = z.output<typeof QueuedDelivery>;

/** `Nats-Msg-Id` of an event: what makes a second publish a duplicate. */
export const eventMsgId = (tenant: string, eventId: string): string =>
  // A header holds no line ends and loses outer spaces, so what is not plainly printable is written as in a URI.
  `${tenant}:${eventId.replace(/[^\x21-\x24\x26-\x7e]+/g, encodeURIComponent)}`;
/** `Nats-Msg-Id` of a delivery: a fan-out repeated after a crash queues nothing twice. */
export const deliveryMsgId = (seq: number, agent: string): string => `${seq}:${agent}`;
