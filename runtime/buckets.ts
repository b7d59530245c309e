/** Key-value buckets on JetStream: made when missing, written with compare-and-set, watched without gaps. */
import { jetstream, jetstreamManager } from "@nats-io/jetstream";
import { type KV, type KvEntry, Kvm, type KvWatchEntry } from "@nats-io/kv";
import type { NatsConnection } from "@nats-io/nats-core";
import { type Bucket, bucketStreamName } from "../contracts/streams.ts";
import { replicasOf, untilAnswered } from "./jetstream.ts";
import type { Log } from "./log.ts";

/** Opens a bucket, making it first where it does not exist, and bringing an older one up to as many copies as wanted. */
export const openBucket = (nc: NatsConnection, bucket: Bucket): Promise<KV> => untilAnswered(() => opened(nc, bucket));

async function opened(nc: NatsConnection, bucket: Bucket): Promise<KV> {
  const kvm = new Kvm(jetstream(nc));
  const replicas = replicasOf(nc);
  const kv = await kvm.create(bucket.name, {
    history: 1,
    storage: bucket.storage,
    replicas,
    ...(bucket.ttlMs ? { ttl: bucket.ttlMs } : {}),
    ...(bucket.markerTtlMs ? { markerTTL: bucket.markerTtlMs } : {}),
  });
  if (replicas > 1 && (await kv.status()).replicas !== replicas) {
    const manager = await jetstreamManager(nc);
    await manager.streams.update(bucketStreamName(bucket), { num_replicas: replicas });
  }
  if (replicas > 1) await answering(kv);
  return kv;
}

/** A bucket that was made a moment ago, here or by another replica, is there before its nodes answer for it. */
async function answering(kv: KV): Promise<void> {
  for (let attempt = 1;; attempt++) {
    try {
      return void await kv.get("anything");
    } catch (error) {
      if (attempt === 20) throw error;
      await new Promise((resolve) => setTimeout(resolve, Math.min(1_000, 50 * 2 ** attempt)));
    }
  }
}

export const isLive = (entry: KvEntry | null): entry is KvEntry => entry !== null && entry.operation === "PUT";

/** Another writer was faster: err_code 10071, "wrong last sequence"; 10164 is its per-subject twin. */
export const lostRace = (error: unknown): boolean => {
  const code = (error as { code?: number } | undefined)?.code;
  return code === 10071 || code === 10164;
};

/**
 * Every entry, then every change. Begins again from the first entry after a broken watch, so what was missed is seen
 * late rather than never; `apply` must therefore bear repetition. `ready` settles once the first round is through.
 */
export function watchBucket(options: {
  readonly nc: NatsConnection;
  readonly bucket: Bucket;
  readonly key?: string;
  readonly apply: (entry: KvEntry) => void;
  readonly log: Log;
}): { readonly ready: Promise<void>; readonly ended: Promise<void> } & AsyncDisposable {
  const { nc, bucket, key, apply, log } = options;
  const ready = Promise.withResolvers<void>();
  const stop = new AbortController();
  let watch: { stop(): void } | undefined;
  const ended = (async () => {
    for (let failures = 0; !stop.signal.aborted; failures++) {
      try {
        const kv = await openBucket(nc, bucket);
        const present = (await kv.status()).values;
        const entries = await kv.watch(key ? { key } : {});
        watch = entries;
        if (stop.signal.aborted) entries.stop();
        if (present === 0) ready.resolve();
        for await (const entry of entries) {
          apply(entry);
          failures = 0;
          if (isLastOfFirstRound(entry)) ready.resolve();
        }
      } catch (error) {
        if (stop.signal.aborted || nc.isClosed()) break;
        log.warn("bucket.watch_broken", { bucket: bucket.name, error });
      }
      if (stop.signal.aborted || nc.isClosed()) break;
      await new Promise((resolve) => setTimeout(resolve, Math.min(5_000, 100 * 2 ** Math.min(failures, 6))));
    }
    ready.reject(new Error(`The watch of bucket ${bucket.name} ended before it began`));
  })();
  ready.promise.catch(() => {});
  return {
    ready: ready.promise,
    ended,
    async [Symbol.asyncDispose]() {
      stop.abort();
      watch?.stop();
      await ended;
    },
  };
}

/**
 * For whoever's entries have nothing to do with each other: one that cannot be read is told of and passed over, because
 * a watch that breaks at it begins again and never comes to those behind it.
 */
export const eachAlone = (apply: (entry: KvEntry) => void, log: Log) => (entry: KvEntry): void => {
  try {
    apply(entry);
  } catch (error) {
    log.error("bucket.entry_unreadable", { bucket: entry.bucket, key: entry.key, error });
  }
};

const isLastOfFirstRound = (entry: KvWatchEntry) => entry.isUpdate || (entry.delta ?? 0) === 0;

/** Whether JetStream answers at all. */
export const pingJetStream = async (nc: NatsConnection): Promise<void> => {
  await (await jetstreamManager(nc, { timeout: 1_000 })).getAccountInfo();
};
