/**
 * What is copied from the broker, in which order. Nothing stands still meanwhile, so the order decides what a restore
 * finds; docs/decisions/backup.md goes through every pair.
 */
import {
  type Bucket,
  buckets,
  bucketStreamName,
  eventStream,
  expiryStream,
  fannedStream,
  historyStream,
  isDeliveryStream,
  noteStream,
  usageStream,
} from "../../contracts/streams.ts";

/** Answers by Idempotency-Key come first: none of them may speak of something that is not in the backup. */
const answers = [bucketStreamName(buckets.idempotency)];
/** Then events, and which of them are queued already: what is queued is then in the queues, which are copied later. */
const events = [eventStream(0).name, fannedStream.name];
/** After the queues what became of deliveries: one that has left its queue is found here, or in Postgres, or in both. */
const endings = [
  historyStream(0).name,
  noteStream(0).name,
  usageStream.name,
  bucketStreamName(buckets.push),
  bucketStreamName(buckets.connectorStates),
  expiryStream(0).name,
];

/** Those of the streams there are that a backup holds, in their order. Postgres is copied after the last of them. */
export const inOrder = (present: readonly string[]): string[] => {
  const known = [...answers, ...events, ...present.filter(isDeliveryStream).sort(byShard), ...endings];
  return known.filter((name) => present.includes(name));
};

/** Ours as well, but not in a backup: filled from Postgres by the registry, or worth a minute at most. */
export const isLeftOut = (name: string): boolean =>
  Object.values<Bucket>(buckets).some((bucket) =>
    bucketStreamName(bucket) === name && (bucket.rebuilt || bucket.storage === "memory")
  );

/** Streams whose numbers are spoken of elsewhere. */
export const isNumbered = (name: string): boolean => name === eventStream(0).name || isDeliveryStream(name);

const byShard = (a: string, b: string) => a.localeCompare(b, "en", { numeric: true });
