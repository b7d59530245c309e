/** Deliveries: what an agent polls, answers and finds again among its recent events and dead letters. */
import { z } from "zod";
import { Moment, Page } from "./fields.ts";
import { idOf } from "./identity.ts";
import { FullMemory, LightMemory } from "./memory.ts";
import { Match } from "./pipeline.ts";

/** Too much is cut to what there is; too little is a mistake. */
const clampedLimit = (max: number, standard: number) =>
  z.union([z.number(), z.string().regex(/^-?\d{1,9}$/, "a whole number").transform(Number)])
    .pipe(z.number().int().min(1)).transform((limit) => Math.min(limit, max)).default(standard)
    .meta({ expected: `a whole number from 1 to ${max}`, examples: [standard] });

const Seconds = (max: number) => z.number().min(0).max(max).meta({ expected: `seconds from 0 to ${max}` });

export const MAX_WAIT_SECONDS = 20;
const MAX_HOLD_SECONDS = 12 * 3_600;

export const PollQuery = z.object({
  limit: clampedLimit(100, 10),
  wait: z.union([z.number(), z.string().regex(/^\d{1,4}(\.\d{1,3})?$/, "seconds").transform(Number)])
    .pipe(z.number().min(0).max(MAX_WAIT_SECONDS)).default(0)
    .meta({ expected: `seconds from 0 to ${MAX_WAIT_SECONDS}`, examples: [10] }),
});

export type PollQuery = z.output<typeof PollQuery>;

/** What the agent knows already: the memories nearest to the event, as deep as its interest asked for. */
export const DeliveryContext = z.object({
  memories: z.array(z.union([FullMemory, LightMemory])),
  /** Memory could not answer in time, or not fully. */
  incomplete: z.literal(true).optional(),
});
export type DeliveryContext = z.output<typeof DeliveryContext>;

/** The event as it was accepted, and why this agent receives it. */
export const Payload = z.looseObject({
  type: z.string(),
  data: z.unknown().optional(),
  id: z.string(),
  source: z.string(),
  subject: z.string().optional(),
  time: z.string().optional(),
  matched: z.array(Match),
  context: DeliveryContext.optional().describe("With an enrichment_depth of light or full"),
});
export type Payload = z.output<typeof Payload>;

export const Delivery = z.object({
  id: z.string(),
  event_id: z.string(),
  payload: Payload,
  attempt_count: z.int().min(1),
  created_at: Moment,
});
export type Delivery = z.output<typeof Delivery>;
export const Polled = z.object({ deliveries: z.array(Delivery), count: z.int() });

const DeliveryIds = z.array(idOf("delivery")).min(1).max(100);

export const Ack = z.object({ delivery_ids: DeliveryIds });
export const Acked = z.object({ acknowledged: z.int() });

export const Nack = z.object({
  delivery_ids: DeliveryIds,
  /** How long the deliveries stay away before they come again. */
  delay_seconds: Seconds(MAX_HOLD_SECONDS).default(0),
});
export const Nacked = z.object({ released: z.int() });

export const Extend = z.object({
  delivery_ids: DeliveryIds,
  /** How much longer, from now, before the deliveries come again. */
  seconds: Seconds(MAX_HOLD_SECONDS).min(1),
});
export const Extended = z.object({ extended: z.int() });

export const Reject = z.object({
  delivery_ids: DeliveryIds,
  reason: z.string().min(1).max(1_000).meta({ examples: ["The invoice has no number"] }),
});
export const Rejected = z.object({ dead_lettered: z.int() });

export const DeadLetter = z.object({
  delivery_id: z.string(),
  event_id: z.string(),
  /** Null for an event that could not be fanned out to anybody. */
  agent_id: z.string().nullable(),
  event_type: z.string(),
  attempt_count: z.int(),
  dlq_reason: z.string(),
  payload: Payload.nullable(),
  created_at: Moment,
  dead_lettered_at: Moment,
});
export type DeadLetter = z.output<typeof DeadLetter>;
export const DeadLetterQuery = Page;
export const DeadLetterList = z.object({ dlq_items: z.array(DeadLetter), total: z.int() });
export const DeadLetterPath = z.object({ id: idOf("delivery") });
export const Replayed = z.object({ status: z.literal("replayed"), delivery_id: z.string() });

export const RecentQuery = z.object({ limit: clampedLimit(100, 5) });
export const RecentEvent = z.object({
  event_id: z.string(),
  type: z.string(),
  source: z.string(),
  subject: z.string().nullable(),
  time: z.string().nullable(),
  data: z.unknown(),
  delivery_id: z.string(),
  attempt_count: z.int(),
  acknowledged_at: Moment,
});
export type RecentEvent = z.output<typeof RecentEvent>;
export const RecentEvents = z.object({ events: z.array(RecentEvent) });

/** Dead letters as an operator asks for them: a tenant's, or those of one agent in it. */
const DeadLettersOf = z.object({ tenant: idOf("tenant"), agent: idOf("agent").optional() });
export const OperatorDeadLetterQuery = DeadLettersOf.extend(Page.shape);
export const OperatorReplay = z.object({ tenant: idOf("tenant"), delivery_ids: DeliveryIds });
export const OperatorReplayed = z.object({ replayed: z.int() });
export const OperatorPurge = DeadLettersOf.extend({
  /** Only what died before this moment. */
  before: Moment.optional(),
});
export const OperatorPurged = z.object({ purged: z.int() });

/** A delivery as a reader was given it, and for which attempt. */
export const HandedOut = z.object({ id: idOf("delivery"), attempt: z.int().min(1) });
export type HandedOut = z.output<typeof HandedOut>;
export const Resend = z.object({ deliveries: z.array(HandedOut).min(1).max(100) });
/** `rest` would not fit into the same answer. */
export const Resent = z.object({ deliveries: z.array(Delivery), rest: z.array(HandedOut) });

/** What pushed deliveries are signed with, in the form of Standard Webhooks. */
export const PushSecret = z.object({ secret: z.string() });
export const FirstPushSecretQuery = z.object({ tenant: z.string(), agent: z.string() });
/** Null when it was given away before. */
export const FirstPushSecret = z.object({ secret: z.string().nullable() });

/** An event that nobody could be given, from whoever found that out. */
export const Burial = z.object({
  tenant: z.string(),
  /** Sequence of the event in EVENTS. */
  seq: z.int(),
  /** Whose delivery it would have been, where that is known. */
  agent: z.string().nullable().default(null),
  attempts: z.int().min(1),
  reason: z.string(),
});
export const Buried = z.object({ delivery_id: z.string() });
