/** Every stream and bucket as plain data: what must exist before a process can work. */

const hour = 3_600_000;

export interface Bucket {
  readonly name: string;
  readonly storage: "file" | "memory";
  /** How long an entry lives; 0 for ever. */
  readonly ttlMs: number;
  /** How long the mark of a deletion stays for watchers that were away. */
  readonly markerTtlMs?: number;
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
  /** Shorter means that a slow batch is worked twice; longer, that a crash delays what was in hand. */
  fanout: { stream: "EVENTS", name: "fanout", ackWaitMs: 30_000, maxInHand: 10_000 },
} as const satisfies Record<string, Consumer>;

export const buckets = {
  /** Agents, interests, members and feeds, for whoever routes events. Rebuilt from Postgres if ever lost. */
  routes: { name: "routes", storage: "file", ttlMs: 0, markerTtlMs: 24 * hour },
  /** Whom to trust. Entries that only matter while a token lives carry their own end; see `runtime/buckets.ts`. */
  trust: { name: "trust", storage: "file", ttlMs: 0, markerTtlMs: 2 * hour },
  /** First answers by Idempotency-Key. */
  idempotency: { name: "idempotency", storage: "file", ttlMs: 24 * hour },
  /** Requests admitted in the last minute. In memory: after a restart of the broker a window begins anew. */
  quotas: { name: "quotas", storage: "memory", ttlMs: 180_000 },
} as const satisfies Record<string, Bucket>;
