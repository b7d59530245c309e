/**
 * Handing out: a pull consumer for each agent and tier that polls, made at its first poll, from which any replica takes.
 * A poll that waits leaves a pull with the broker; nobody asks in a circle.
 */
import { createInbox, type Msg, nanos, type NatsConnection } from "@nats-io/nats-core";
import { unavailable } from "../../contracts/errors.ts";
import type { QueuedDelivery } from "../../contracts/pipeline.ts";
import { deliveryStreamName } from "../../contracts/streams.ts";
import { parseDelivery, shardOf, subjects } from "../../contracts/subjects.ts";
import { traceIn } from "../../runtime/telemetry.ts";
import type { AgentRef } from "./delivery-id.ts";
import type { Lease, Queue } from "./queue.ts";
import { tiers } from "./tiers.ts";
import type { Wire } from "./wire.ts";

export interface Leases extends Pick<Queue, "lease" | "putBack" | "drop">, AsyncDisposable {
  /** Where in its stream a lease is now. */
  seqOf(lease: Lease): number;
  /** When the connection to the broker was last made, in milliseconds. */
  connectedAt(): number;
}

export interface LeaseOptions {
  readonly nc: NatsConnection;
  readonly wire: Wire;
  readonly shards: number;
  readonly visibilityMs: number;
  readonly maxAttempts: number;
  /** How long an agent may stay away before its consumer, and with it the attempts of what it holds, is forgotten. */
  readonly retentionMs: number;
}

/**
 * A pull that finds nothing waits this long: without it, one in a hundred right after a publish finds nothing although
 * the message is there.
 */
const EMPTY_PULL_MS = 50;
const PULL_LIMIT_MS = 5_000;
/** How often a wait for fewer deliveries than the agent has priorities looks at those it does not wait for. */
const LOOK_AGAIN_MS = 200;

export function leasesOn({ nc, wire, shards, visibilityMs, maxAttempts, retentionMs }: LeaseOptions): Leases {
  const high = tiers(nc, wire, shards);
  const ensured = new Set<string>();
  /** Where a lease came from: its place in the stream, and where to give it back. */
  const taken = new WeakMap<Lease, { readonly seq: number; readonly reply: string }>();
  const waiting = new Set<() => void>();
  let connectedAt = Date.now();
  const streamOf = ({ agent }: AgentRef) => deliveryStreamName(shardOf(agent, shards));

  void (async () => {
    for await (const status of nc.status()) {
      if (status.type !== "reconnect") continue;
      connectedAt = Date.now();
      ensured.clear();
      high.forget();
      // The broker has forgotten the pulls of whoever waits.
      for (const wake of waiting) wake();
    }
  })();

  /** Made at an agent's first poll here, which also brings an older one up to the limits of today. */
  const ensureConsumer = async (owner: AgentRef, tier: number) => {
    const stream = streamOf(owner);
    const name = consumerName(owner, tier);
    const made = await wire.api(`CONSUMER.DURABLE.CREATE.${stream}.${name}`, {
      stream_name: stream,
      config: {
        durable_name: name,
        filter_subject: subjects.delivery(shardOf(owner.agent, shards), owner.tenant, owner.agent, tier),
        deliver_policy: "all",
        ack_policy: "explicit",
        ack_wait: nanoseconds(visibilityMs),
        max_deliver: maxAttempts,
        max_ack_pending: 100_000,
        max_waiting: 512,
        inactive_threshold: nanoseconds(retentionMs),
      },
    });
    if ("error" in (made as object)) {
      throw unavailable("The agent's queue cannot be opened; try again shortly", (made as { error: unknown }).error);
    }
    ensured.add(name);
  };

  const pull = async (owner: AgentRef, tier: number, batch: number, expiresMs: number): Promise<readonly Msg[]> => {
    const name = consumerName(owner, tier);
    for (let tries = 0; tries < 3; tries++) {
      if (!ensured.has(name)) await ensureConsumer(owner, tier);
      const { messages, status } = await wire.gather(
        nextOf(streamOf(owner), name),
        JSON.stringify({ batch, no_wait: true, ...(expiresMs > 0 ? { expires: nanoseconds(expiresMs) } : {}) }),
        { most: batch, limitMs: PULL_LIMIT_MS },
      );
      if (messages.length > 0 || status === 404 || status === 408) return messages;
      ensured.delete(name); // 503, 409: the consumer is gone or moving
    }
    throw unavailable("The agent's queue does not answer; try again shortly");
  };

  /** What can be had at once, from the highest tier down. */
  const take = async (owner: AgentRef, limit: number, expiresMs: number): Promise<Lease[]> => {
    const leases: Lease[] = [];
    for (const tier of [...await high.of(owner), 0]) {
      const left = limit - leases.length;
      if (left === 0) break;
      const patient = tier === 0 && leases.length === 0;
      const messages = await pull(owner, tier, left, patient ? expiresMs : 0);
      if (tier > 0 && messages.length === 0) high.foundEmpty(owner);
      leases.push(...messages.map(asLease));
    }
    return leases;
  };

  /** The first delivery to come in any tier, in the time given; nothing when something new must be looked at. */
  const waitForFirst = async (
    owner: AgentRef,
    limit: number,
    waitMs: number,
    signal: AbortSignal,
  ): Promise<Lease[]> => {
    const leases: Lease[] = [];
    const inbox = createInbox();
    const { promise, resolve } = Promise.withResolvers<void>();
    const answers = nc.subscribe(inbox, {
      callback: (error, msg) => {
        if (error || msg.headers?.code === 100) return;
        if (!msg.headers?.code) leases.push(asLease(msg));
        resolve();
      },
    });
    const wake = () => resolve();
    const unhear = high.onHigh(owner, wake);
    waiting.add(wake);
    signal.addEventListener("abort", wake);
    let timer: NodeJS.Timeout | undefined;
    try {
      const tiers = [...await high.of(owner), 0];
      // Each may bring one at the same moment, and what is put back has used up an attempt that nobody saw. So no more
      // of them are waited for than may bring one; the others are looked at in between.
      const awaited = tiers.slice(-limit);
      const patienceMs = awaited.length < tiers.length ? Math.min(waitMs, LOOK_AGAIN_MS) : waitMs;
      timer = setTimeout(wake, patienceMs);
      for (const tier of awaited) {
        const body = JSON.stringify({ batch: 1, expires: nanoseconds(patienceMs) });
        nc.publish(nextOf(streamOf(owner), consumerName(owner, tier)), body, { reply: inbox });
      }
      if (!signal.aborted) await promise;
    } finally {
      signal.removeEventListener("abort", wake);
      waiting.delete(wake);
      clearTimeout(timer);
      unhear();
      // Ends the pull at the broker, and still takes in what it had sent by then.
      await Promise.race([answers.drain(), new Promise((done) => setTimeout(done, 1_000))]);
    }
    return leases;
  };

  function asLease(msg: Msg): Lease {
    const { attempt, seq, at } = readReply(msg.reply!);
    const delivery = msg.json<QueuedDelivery>();
    const { origin } = delivery;
    const tier = parseDelivery(msg.subject)!.priority;
    const handle = { ...origin ?? { seq, at, tier }, event: delivery.seq };
    const lease = { attempt, delivery, handle, trace: traceIn(msg.headers) };
    taken.set(lease, { seq, reply: msg.reply! });
    return lease;
  }

  const putBack = async (leases: readonly Lease[]) => {
    for (const lease of leases) nc.publish(taken.get(lease)!.reply, "-NAK");
    if (leases.length > 0) await nc.flush();
  };

  return {
    async lease(owner, limit, waitMs, signal) {
      const until = performance.now() + waitMs;
      for (let pauseMs = 20;; pauseMs = Math.min(1_000, 2 * pauseMs)) {
        let leases = await take(owner, limit, waitMs > 0 ? 0 : EMPTY_PULL_MS);
        const leftMs = until - performance.now();
        if (leases.length === 0 && leftMs > 0 && !signal.aborted) {
          const waitsFrom = performance.now();
          leases = await waitForFirst(owner, limit, leftMs, signal);
          if (leases.length === 0) {
            if (signal.aborted || performance.now() >= until) return [];
            // Something else happened, or the broker takes no more waiters: look again, but not in a tight circle.
            if (performance.now() - waitsFrom < LOOK_AGAIN_MS) await new Promise((done) => setTimeout(done, pauseMs));
            continue;
          }
          if (signal.aborted) {
            await putBack(leases);
            return [];
          }
          if (leases.length < limit) leases.push(...await take(owner, limit - leases.length, 0));
        }
        leases.sort((a, b) => b.delivery.priority - a.delivery.priority || taken.get(a)!.seq - taken.get(b)!.seq);
        await putBack(leases.splice(limit));
        return leases;
      }
    },

    putBack,

    async drop(leases) {
      for (const lease of leases) nc.publish(taken.get(lease)!.reply, "+TERM");
      if (leases.length > 0) await nc.flush();
    },

    seqOf: (lease) => taken.get(lease)!.seq,
    connectedAt: () => connectedAt,
    [Symbol.asyncDispose]: () => high[Symbol.asyncDispose](),
  };
}

/** Whole ones: the broker takes a delay with a fraction for no delay at all, and a wait for a bad request. */
export const nanoseconds = (ms: number) => nanos(Math.ceil(ms));
export const consumerName = ({ agent }: AgentRef, tier: number) => `${agent}-${tier}`;
const nextOf = (stream: string, consumer: string) => `$JS.API.CONSUMER.MSG.NEXT.${stream}.${consumer}`;

/** `$JS.ACK.[<domain>.<account>.]<stream>.<consumer>.<attempt>.<seq>.<consumer seq>.<ns>.<pending>` */
function readReply(reply: string): { attempt: number; seq: number; at: number } {
  const tokens = reply.split(".");
  const from = tokens.length >= 11 ? 6 : 4;
  return { attempt: Number(tokens[from]), seq: Number(tokens[from + 1]), at: Number(tokens[from + 3]!.slice(0, -6)) };
}
