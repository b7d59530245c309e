/**
 * Taking messages from a stream: pulled as there is room, worked in batches, and answered one by one by what became of
 * them. What is in hand when a process dies comes back to another; what is in hand when it stops is finished.
 */
import { AckPolicy, type ConsumerConfig, DeliverPolicy, jetstreamManager } from "@nats-io/jetstream";
import { createInbox, type Msg, type MsgHdrs, nanos, type NatsConnection } from "@nats-io/nats-core";
import type { Consumer } from "../contracts/streams.ts";
import type { Log } from "./log.ts";

export interface Taken {
  readonly subject: string;
  readonly body: Uint8Array;
  readonly headers: MsgHdrs | undefined;
  /** Sequence in its stream. */
  readonly seq: number;
  /** How often it has been handed out, this time included. */
  readonly attempt: number;
  /** When the stream stored it, in ms since 1970, with fractions. */
  readonly storedAtMs: number;
}

/** What became of a message: it is dealt with, it comes back later, or it must never come back. */
export type Outcome = "done" | "drop" | { readonly retryInMs: number };

export interface Consumption extends AsyncDisposable {
  /** Whether messages can reach us: false from the moment the broker is silent. */
  isAlive(): boolean;
}

export interface ConsumeOptions {
  readonly nc: NatsConnection;
  readonly consumer: Consumer;
  readonly config?: Partial<ConsumerConfig>;
  /** The most that `work` gets at once; as many again may wait. */
  readonly batch: number;
  /** The most that may wait, in bytes. */
  readonly maxBytes?: number;
  /**
   * Answers for each message in turn; a throw gives all of them back. `signal` aborts when the process stops: finish
   * what is begun, begin nothing that takes long.
   */
  readonly work: (batch: readonly Taken[], signal: AbortSignal) => Promise<readonly Outcome[]>;
  readonly log: Log;
}

interface InHand extends Taken {
  readonly reply: string;
}

const PULL_MS = 30_000;
/** Silence of two of these means that the broker has forgotten our pull. */
const HEARTBEAT_MS = 5_000;

export async function consume(options: ConsumeOptions): Promise<Consumption> {
  const { nc, consumer, config, batch, maxBytes = 16 * 1024 * 1024, work, log } = options;
  const inbox = createInbox();
  const stop = new AbortController();
  const waiting: InHand[] = [];
  let working: readonly InHand[] = [];
  /** How many messages the broker has been asked for and has not sent. */
  let asked = 0;
  let heardAt = performance.now();
  let wake = () => {};

  const pull = () => {
    const room = 2 * batch - waiting.length - asked;
    if (stop.signal.aborted || nc.isClosed() || room < batch) return;
    asked += room;
    nc.publish(
      `$JS.API.CONSUMER.MSG.NEXT.${consumer.stream}.${consumer.name}`,
      JSON.stringify({
        batch: room,
        max_bytes: maxBytes,
        expires: nanos(PULL_MS),
        idle_heartbeat: nanos(HEARTBEAT_MS),
      }),
      { reply: `${inbox}.${room}` },
    );
  };

  const repair = once(async () => {
    if (stop.signal.aborted || nc.isClosed()) return;
    await ensureConsumer(nc, consumer, config);
    asked = 0;
    heardAt = performance.now();
    pull();
  }, (error) => log.warn("consume.repair_failed", { consumer: consumer.name, error }));

  await ensureConsumer(nc, consumer, config);
  const subscription = nc.subscribe(`${inbox}.*`, {
    callback: (error, msg) => {
      if (error) return;
      heardAt = performance.now();
      const taken = asTaken(msg);
      if (taken) {
        asked = Math.max(0, asked - 1);
        waiting.push(taken);
        return wake();
      }
      const code = msg.headers?.code;
      if (code === 100) return;
      // The end of a pull says how much of it was not served; without that its consumer is gone or moving.
      const unserved = Number(msg.headers?.get("Nats-Pending-Messages") || NaN);
      if (Number.isNaN(unserved)) return void setTimeout(repair, 250);
      asked = Math.max(0, asked - unserved);
      // Told no for a reason of the moment, do not ask again in the same breath.
      if (code === 408 || msg.headers?.description === "Batch Completed") pull();
      else setTimeout(pull, 50);
    },
  });
  const watching = watchReconnects(nc, () => void repair());
  const pulse = setInterval(() => {
    if (asked > 0 && performance.now() - heardAt > 2 * HEARTBEAT_MS + 1_000) void repair();
  }, HEARTBEAT_MS);
  const signs = setInterval(() => {
    for (const { reply } of [...working, ...waiting]) if (!nc.isClosed()) nc.publish(reply, WORKING);
  }, consumer.ackWaitMs / 3);

  const loop = (async () => {
    while (!stop.signal.aborted) {
      if (waiting.length === 0) {
        const { promise, resolve } = Promise.withResolvers<void>();
        wake = resolve;
        await promise;
        continue;
      }
      working = waiting.splice(0, batch);
      pull();
      const outcomes = await work(working, stop.signal).catch((error): Outcome[] => {
        log.error("consume.batch_failed", { consumer: consumer.name, error });
        return [];
      });
      working.forEach((taken, i) => answer(nc, taken.reply, outcomes[i] ?? { retryInMs: delayAfter(taken.attempt) }));
      working = [];
    }
  })();
  pull();

  return {
    isAlive: () => asked === 0 || performance.now() - heardAt < 3 * HEARTBEAT_MS,
    async [Symbol.asyncDispose]() {
      stop.abort();
      wake();
      clearInterval(pulse);
      watching.stop();
      // Draining still takes in what was on its way; it goes back at once instead of after its ack_wait.
      await briefly(() => subscription.drain(), nc);
      await loop;
      clearInterval(signs);
      for (const { reply } of waiting) answer(nc, reply, { retryInMs: 0 });
      await briefly(() => nc.flush(), nc);
    },
  };
}

/** Half a second, doubling up to a minute. */
export const delayAfter = (attempt: number): number => Math.min(60_000, 500 * 2 ** Math.min(attempt - 1, 10));

const encoder = new TextEncoder();
const ACK = encoder.encode("+ACK");
const BACK = encoder.encode("-NAK");
const DROP = encoder.encode("+TERM");
const WORKING = encoder.encode("+WPI");

function answer(nc: NatsConnection, reply: string, outcome: Outcome): void {
  if (nc.isClosed()) return; // it comes back after its ack_wait
  if (outcome === "done") nc.publish(reply, ACK);
  else if (outcome === "drop") nc.publish(reply, DROP);
  else if (outcome.retryInMs > 0) nc.publish(reply, `-NAK ${JSON.stringify({ delay: nanos(outcome.retryInMs) })}`);
  else nc.publish(reply, BACK);
}

/** `$JS.ACK.[<domain>.<account>.]<stream>.<consumer>.<attempt>.<seq>.<consumer seq>.<ns>.<pending>` */
function asTaken(msg: Msg): InHand | undefined {
  const { reply } = msg;
  if (!reply?.startsWith("$JS.ACK.")) return undefined;
  const tokens = reply.split(".");
  const at = tokens.length >= 11 ? 6 : 4;
  return {
    reply,
    subject: msg.subject,
    body: msg.data,
    headers: msg.headers,
    attempt: Number(tokens[at]),
    seq: Number(tokens[at + 1]),
    storedAtMs: Number(tokens[at + 3]) / 1e6,
  };
}

/** Without a limit on attempts: past it the broker would leave a message lying where nobody looks. */
async function ensureConsumer(
  nc: NatsConnection,
  { stream, name, subject, ackWaitMs, maxInHand }: Consumer,
  config: Partial<ConsumerConfig> = {},
): Promise<void> {
  const manager = await jetstreamManager(nc, { checkAPI: false });
  await manager.consumers.add(stream, {
    durable_name: name,
    ack_policy: AckPolicy.Explicit,
    deliver_policy: DeliverPolicy.All,
    ack_wait: nanos(ackWaitMs),
    max_deliver: -1,
    max_ack_pending: maxInHand,
    max_waiting: 512,
    ...(subject ? { filter_subject: subject } : {}),
    ...config,
  });
}

/** A broker that is away must not keep a process from stopping. */
async function briefly(work: () => Promise<void>, nc: NatsConnection): Promise<void> {
  if (nc.isClosed()) return;
  let timer: ReturnType<typeof setTimeout> | undefined;
  const late = new Promise<void>((resolve) => timer = setTimeout(resolve, 2_000));
  await Promise.race([work().catch(() => {}), late]);
  clearTimeout(timer);
}

/** Runs one at a time; asked for again meanwhile, it is running already. */
function once(work: () => Promise<void>, failed: (error: unknown) => void): () => Promise<void> {
  let running: Promise<void> | undefined;
  return () => running ??= work().catch(failed).finally(() => running = undefined);
}

function watchReconnects(nc: NatsConnection, onReconnect: () => void): { stop(): void } {
  let stopped = false;
  void (async () => {
    for await (const status of nc.status()) {
      if (stopped) return;
      if (status.type === "reconnect") onReconnect();
    }
  })();
  return { stop: () => stopped = true };
}
