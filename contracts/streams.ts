/** Every stream and bucket as plain data: what must exist before a process can work. */
import { subjects } from "./subjects.ts";

const hour = 3_600_000;

export interface Bucket {
  readonly name: string;
  readonly storage: "file" | "memory";
  /** How long an entry lives; 0 for ever. */
  readonly ttlMs: number;
  /** How long the mark of a deletion stays for watchers that were away. */
  readonly markerTtlMs?: number;
  /** The registry fills it again from Postgres when it is lost, so no backup holds it. */
  readonly rebuilt?: true;
}

export interface Stream {
  readonly name: string;
  readonly subjects: readonly string[];
  readonly retention: "limits" | "workqueue";
  readonly storage: "file" | "memory";
  /** How long a message is kept; 0 for ever. */
  readonly maxAgeMs: number;
  /** How long a repeated `Nats-Msg-Id` is recognised. */
  readonly duplicateWindowMs?: number;
  readonly maxPerSubject?: number;
  readonly maxConsumers?: number;
  /** Messages may ask to be published later. */
  readonly schedules?: true;
}

/** Every accepted event, once. Its sequence names it from here on. */
export const eventStream = (retentionMs: number): Stream => ({
  name: "EVENTS",
  subjects: ["event.*"],
  retention: "limits",
  storage: "file",
  maxAgeMs: retentionMs,
  duplicateWindowMs: retentionMs,
});

/** What counts events by tenant and day: each ingest process keeps its own running totals, the last of which stands. */
export const usageStream: Stream = {
  name: "USAGE",
  subjects: ["usage.>"],
  retention: "limits",
  storage: "file",
  maxAgeMs: 400 * 24 * hour,
  maxPerSubject: 1,
};

export const deliveryStreamName = (shard: number): string => `DELIVERIES-${shard}`;
export const isDeliveryStream = (name: string): boolean => /^DELIVERIES-\d+$/.test(name);

/** For how long HISTORY knows a delivery it has seen. A million of them cost about 240 MB, so not for the whole retention. */
export const HISTORY_WINDOW_MS = 120_000;

/** How deliveries ended. Its first word on a delivery is the last: `Nats-Msg-Id` names the delivery. */
export const historyStream = (retentionMs: number): Stream => ({
  name: "HISTORY",
  subjects: [subjects.history("*", "*"), subjects.dead("*", "*")],
  retention: "limits",
  storage: "file",
  maxAgeMs: retentionMs,
  duplicateWindowMs: HISTORY_WINDOW_MS,
  maxPerSubject: 100,
});

/** The latest note on each delivery that was handed out again or replayed. */
export const noteStream = (retentionMs: number): Stream => ({
  name: "NOTES",
  subjects: ["note.>"],
  retention: "limits",
  storage: "file",
  maxAgeMs: retentionMs,
  maxPerSubject: 1,
});

/** Alarms of last attempts, and what has run out of attempts, until it is a dead letter. */
export const expiryStream = (shards: number): Stream => ({
  name: "EXPIRY",
  subjects: [
    "alarm.>",
    "expired.>",
    ...Array.from({ length: shards }, (_, shard) => subjects.exhausted(deliveryStreamName(shard))),
  ],
  retention: "workqueue",
  storage: "file",
  maxAgeMs: 0,
  schedules: true,
});

/**
 * What is not yet acknowledged, by shard. A fan-out that died between queueing and acknowledging an event repeats it
 * once its `ack_wait` is over, or tries again for some minutes: the window is longer than both together. Names are held
 * in memory for that long (about 240 bytes each), which is why it is not longer still.
 */
export const deliveryStreams = (shards: number, retentionMs: number): Stream[] =>
  Array.from({ length: shards }, (_, shard) => ({
    name: deliveryStreamName(shard),
    subjects: [`deliver.${shard}.>`],
    retention: "workqueue",
    storage: "file",
    maxAgeMs: retentionMs,
    duplicateWindowMs: Math.min(10 * 60_000, retentionMs),
  }));

/** Which events have been fanned out, by batch: the broker's own memory of that is behind when it is killed. */
export const fannedStream: Stream = {
  name: "FANNED",
  subjects: ["fanned"],
  retention: "limits",
  storage: "file",
  maxAgeMs: hour / 4,
};

/** A durable place in a stream that replicas of one service share. */
export interface Consumer {
  readonly stream: string;
  readonly name: string;
  readonly subject?: string;
  /** How long a message may be in hand without a sign of life before another replica gets it. */
  readonly ackWaitMs: number;
  /** How many may be in hand in all replicas together. */
  readonly maxInHand: number;
}

export const consumers = {
  /** A longer wait means that a crash delays what was in hand; a shorter one costs more signs of life. */
  fanout: { stream: "EVENTS", name: "fanout", ackWaitMs: 30_000, maxInHand: 10_000 },
  /** Deliveries on their way to the dead letters. */
  expiry: { stream: "EXPIRY", name: "expiry", ackWaitMs: 30_000, maxInHand: 1_000 },
} as const satisfies Record<string, Consumer>;

/** The stream under a bucket. */
export const bucketStreamName = ({ name }: Bucket): string => `KV_${name}`;

export const buckets = {
  /** How pushing to an agent stands: which secret signs, and which endpoint asked us to stop. */
  push: { name: "push", storage: "file", ttlMs: 0, markerTtlMs: 24 * hour },
  /** Agents, interests, members and feeds, for whoever routes events. */
  routes: { name: "routes", storage: "file", ttlMs: 0, markerTtlMs: 24 * hour, rebuilt: true },
  /** Whom to trust. Entries that only matter while a token lives carry their own end; see `runtime/buckets.ts`. */
  trust: { name: "trust", storage: "file", ttlMs: 0, markerTtlMs: 2 * hour, rebuilt: true },
  /** First answers by Idempotency-Key. */
  idempotency: { name: "idempotency", storage: "file", ttlMs: 24 * hour },
  /** Webhooks by the slug of their tenant, for ingest. */
  webhooks: { name: "webhooks", storage: "file", ttlMs: 0, markerTtlMs: 24 * hour, rebuilt: true },
  connectors: { name: "connectors", storage: "file", ttlMs: 0, markerTtlMs: 24 * hour, rebuilt: true },
  /** How each connector does, by its id, as its owner last wrote it. */
  connectorStates: { name: "connector-states", storage: "file", ttlMs: 0 },
  /** Requests admitted in the last minute. In memory: after a restart of the broker a window begins anew. */
  quotas: { name: "quotas", storage: "memory", ttlMs: 180_000 },
} as const satisfies Record<string, Bucket>;
