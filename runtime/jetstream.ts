/** Makes the streams a process needs, or brings them up to what the contracts say. */
import { DiscardPolicy, jetstreamManager, RetentionPolicy, StorageType, type StreamConfig } from "@nats-io/jetstream";
import { errors, nanos, type NatsConnection } from "@nats-io/nats-core";
import type { Stream } from "../contracts/streams.ts";

/** How many copies of what this connection makes are kept; told once, when it is made. */
const copies = new WeakMap<NatsConnection, number>();
export const keepCopies = (nc: NatsConnection, replicas: number): void => void copies.set(nc, replicas);
export const replicasOf = (nc: NatsConnection): number => copies.get(nc) ?? 1;

/**
 * Work that may be done again, tried until the broker answers. A cluster that elects its leader, or makes eighty streams
 * for another process, answers later than a request waits; that is no reason not to start.
 */
export async function untilAnswered<T>(work: () => Promise<T>): Promise<T> {
  for (let attempt = 1;; attempt++) {
    try {
      return await work();
    } catch (error) {
      const isLate = error instanceof errors.TimeoutError || error instanceof errors.NoRespondersError;
      if (!isLate || attempt === ATTEMPTS) throw error;
      await new Promise((resolve) => setTimeout(resolve, 500));
    }
  }
}
/** Each waits five seconds. */
const ATTEMPTS = 6;

export const ensureStreams = (nc: NatsConnection, streams: readonly Stream[]): Promise<void> =>
  untilAnswered(() => ensure(nc, streams));

async function ensure(nc: NatsConnection, streams: readonly Stream[]): Promise<void> {
  const replicas = replicasOf(nc);
  const manager = await jetstreamManager(nc);
  const present = new Map<string, StreamConfig>();
  for await (const { config } of manager.streams.list()) present.set(config.name, config);
  for (const stream of streams) {
    const wanted = configOf(stream, replicas);
    const found = present.get(stream.name);
    if (!found) {
      await manager.streams.add(wanted).catch(async (error: unknown) => {
        // Another replica may have made it meanwhile; only a stream that is still missing is an error.
        await manager.streams.info(stream.name).catch(() => {
          throw error;
        });
      });
    } else if (differs(found, wanted)) await manager.streams.update(stream.name, { ...found, ...wanted });
  }
}

const configOf = (stream: Stream, replicas: number) => ({
  name: stream.name,
  subjects: [...stream.subjects],
  retention: stream.retention === "limits" ? RetentionPolicy.Limits : RetentionPolicy.Workqueue,
  storage: stream.storage === "file" ? StorageType.File : StorageType.Memory,
  max_age: nanos(stream.maxAgeMs),
  discard: DiscardPolicy.Old,
  num_replicas: replicas,
  allow_direct: true,
  // The server's own default of a thousand would turn the next agent away.
  max_consumers: stream.maxConsumers ?? -1,
  ...(stream.duplicateWindowMs ? { duplicate_window: nanos(stream.duplicateWindowMs) } : {}),
  ...(stream.maxPerSubject ? { max_msgs_per_subject: stream.maxPerSubject } : {}),
  ...(stream.schedules ? { allow_msg_schedules: true } : {}),
});

const differs = (found: StreamConfig, wanted: object): boolean =>
  Object.entries(wanted).some(([key, value]) =>
    JSON.stringify(found[key as keyof StreamConfig]) !== JSON.stringify(value)
  );
