/**
 * The queue on JetStream. An agent's deliveries rest in the stream of its shard until they end; a pull consumer for
 * each agent and tier that polls knows who has been handed what, how often, until when. Nothing is remembered in this
 * process that another replica would need: any of them serves any agent. `docs/decisions/delivery-queue.md` has the
 * measurements.
 */
import { createInbox, type Msg, nanos, type NatsConnection } from "@nats-io/nats-core";
import { unavailable } from "../../contracts/errors.ts";
import { DeliveryNote, type Ending, Expired, type QueuedDelivery } from "../../contracts/pipeline.ts";
import { consumers, deliveryStreamName, HISTORY_WINDOW_MS } from "../../contracts/streams.ts";
import { parseDelivery, shardOf, subjects } from "../../contracts/subjects.ts";
import { consume, type Consumption, type Outcome, type Taken } from "../../runtime/consume.ts";
import type { Log } from "../../runtime/log.ts";
import type { Publisher } from "../../runtime/publish.ts";
import { traceIn } from "../../runtime/telemetry.ts";
import type { AgentRef, Handle } from "./delivery-id.ts";
import { history } from "./history.ts";
import type { DeadDelivery, Keep, Lease, Queue } from "./queue.ts";
import { tiers } from "./tiers.ts";
import { deleteMessage, leaderGet, type Wire } from "./wire.ts";

export interface JetStreamQueue extends Queue, AsyncDisposable {
  /** Whether what has run out of attempts can reach us. */
  isAlive(): boolean;
}

export interface QueueOptions {
  readonly nc: NatsConnection;
  readonly wire: Wire;
  readonly publisher: Publisher;
  readonly shards: number;
  readonly visibilityMs: number;
  readonly maxAttempts: number;
  /** How long an agent may stay away before its consumer, and with it the attempts of what it holds, is forgotten. */
  readonly retentionMs: number;
  readonly keep: Keep;
  readonly log: Log;
  /** How long after connecting HISTORY is taken at its word on what was queued since then. */
  readonly trustAfterMs?: number;
}

/** Where a delivery is now. */
interface Place {
  readonly handle: Handle;
  readonly seq: number;
  readonly tier: number;
  readonly attempt: number;
  readonly delivery: QueuedDelivery;
}

/**
 * A pull that finds nothing waits this long: without it, one in a hundred right after a publish finds nothing although
 * the message is there.
 */
const EMPTY_PULL_MS = 50;
const PULL_LIMIT_MS = 5_000;
/** How often a wait for fewer deliveries than the agent has priorities looks at those it does not wait for. */
const LOOK_AGAIN_MS = 200;
/**
 * HISTORY forgets a delivery after its window, and at a restart of the broker all but the last hundred of an agent. A
 * delivery queued longer ago than this, or before the connection was last made, is therefore looked up before it ends.
 */
const TRUST_MS = HISTORY_WINDOW_MS / 2;
const CLOCK_SKEW_MS = 5_000;
/** A dead letter that cannot be stored is tried again at least this often. */
const MAX_RETRY_MS = 5_000;

export async function jetstreamQueue(options: QueueOptions): Promise<JetStreamQueue> {
  const {
    nc,
    wire,
    publisher,
    shards,
    visibilityMs,
    maxAttempts,
    retentionMs,
    keep,
    log,
    trustAfterMs = CLOCK_SKEW_MS,
  } = options;
  const endings = history(publisher, wire);
  const high = tiers(nc, wire, shards);
  const ensured = new Set<string>();
  /** Where a lease came from: its place in the stream, and where to give it back. */
  const taken = new WeakMap<Lease, { readonly seq: number; readonly reply: string }>();
  const waiting = new Set<() => void>();
  let connectedAt = Date.now();
  const exhaustedReason = `Not acknowledged within ${visibilityMs / 1_000} s in any of ${maxAttempts} attempts`;

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

  // Leasing

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

  /**
   * What others must know of these leases, before the agent does: a note where the first look would mislead, and an
   * alarm for the last attempt. Dying before the alarm is set leaves the delivery to the broker's advisory, which
   * comes with the agent's next poll.
   */
  const announce = async (owner: AgentRef, leases: readonly Lease[]) => {
    const shard = shardOf(owner.agent, shards);
    const published: Promise<unknown>[] = [];
    for (const lease of leases) {
      const { attempt, handle, delivery } = lease;
      if (attempt === 1 && !delivery.origin && maxAttempts > 1) continue;
      const { seq } = taken.get(lease)!;
      published.push(writeNote(shard, handle.seq, { v: 1, seq, tier: delivery.priority, attempt }));
      if (attempt >= maxAttempts) published.push(setAlarm(owner, seq, attempt, visibilityMs));
    }
    await Promise.all(published);
  };

  const writeNote = (shard: number, seq: number, note: DeliveryNote) =>
    publisher.publish(subjects.note(shard, seq), JSON.stringify(note));

  const setAlarm = (owner: AgentRef, seq: number, attempt: number, inMs: number) => {
    const shard = shardOf(owner.agent, shards);
    return publisher.publish(
      subjects.alarm(shard, seq),
      JSON.stringify({ v: 1, shard, seq, attempt, reason: exhaustedReason, by: "" } satisfies Expired),
      {
        "Nats-Schedule": `@at ${new Date(Date.now() + inMs).toISOString()}`,
        "Nats-Schedule-Target": subjects.expired(shard, seq),
      },
    );
  };

  const putBack = async (leases: readonly Lease[]) => {
    for (const lease of leases) nc.publish(taken.get(lease)!.reply, "-NAK");
    if (leases.length > 0) await nc.flush();
  };

  // Finding a delivery again

  const streamOf = ({ agent }: AgentRef) => deliveryStreamName(shardOf(agent, shards));
  const noteOn = async ({ agent }: AgentRef, { seq }: Handle) => {
    const found = await leaderGet(wire, "NOTES", { last_by_subj: subjects.note(shardOf(agent, shards), seq) });
    return found && DeliveryNote.parse(found.json());
  };

  /** Where the delivery is now, as the leaders have it; undefined once it has ended. */
  const find = async (owner: AgentRef, handle: Handle): Promise<Place | undefined> => {
    const [first, note] = await Promise.all([
      leaderGet(wire, streamOf(owner), { seq: handle.seq }),
      noteOn(owner, handle),
    ]);
    const found = !note || note.seq === handle.seq ? first : await leaderGet(wire, streamOf(owner), { seq: note.seq });
    if (!found) return undefined;
    const subject = parseDelivery(found.subject);
    if (subject?.tenant !== owner.tenant || subject.agent !== owner.agent) return undefined;
    const { seq } = found;
    return { handle, seq, tier: subject.priority, attempt: note?.attempt ?? 1, delivery: found.json() };
  };

  const isWhereItWas = async (owner: AgentRef, { seq }: Handle): Promise<boolean> => {
    const found = await leaderGet(wire, streamOf(owner), { seq });
    const subject = found && parseDelivery(found.subject);
    return subject?.tenant === owner.tenant && subject.agent === owner.agent;
  };

  // Ending

  const placeName = (owner: AgentRef, seq: number) => `${shardOf(owner.agent, shards)}:${seq}`;
  const endingOf = ({ seq, at, tier, event }: Handle, outcome: Ending["outcome"], by: string): Ending => ({
    v: 1,
    outcome,
    seq,
    at,
    tier,
    event,
    ended_at: new Date().toISOString(),
    by,
  });

  /** Queued since we connected: no restart of the broker can have made its consumer forget whom it was handed to. */
  const isOfThisConnection = ({ at }: Handle) => at > connectedAt + trustAfterMs;
  const isTrusted = (handle: Handle) => isOfThisConnection(handle) && handle.at > Date.now() - TRUST_MS;

  /** Whether this call ended it, and where it must be taken out of the stream now. */
  const acknowledgeOne = async (owner: AgentRef, handle: Handle, by: string) => {
    const isFresh = isTrusted(handle);
    let place: Pick<Place, "seq" | "tier"> | undefined = isFresh || await isWhereItWas(owner, handle)
      ? handle
      : await find(owner, handle);
    if (!place) return { counts: false, ended: handle };
    const ending = endingOf(handle, "acknowledged", by);
    let told = await endings.end(owner, placeName(owner, place.seq), ending);
    if (told && told.earlier?.outcome !== "acknowledged" && place === handle) {
      // It died where it first was. A replay has taken it elsewhere.
      const elsewhere = await find(owner, handle);
      if (!elsewhere || elsewhere.seq === place.seq) return { counts: false };
      place = elsewhere;
      told = await endings.end(owner, placeName(owner, place.seq), ending);
    }
    // What another is sending to the dead must stay until it is among them.
    if (told && told.earlier?.outcome !== "acknowledged") return { counts: false };
    const counts = !told || told.earlier?.by === by;
    return { counts, remove: place, byAck: !told && place === handle && isOfThisConnection(handle) };
  };

  /**
   * Acknowledging to the consumer takes a message out at a third of the price of deleting it, but does nothing for one
   * the consumer does not remember handing out. The acks of a consumer are worked off in order, so the last one's
   * answer stands for all.
   */
  const removeByAck = async (owner: AgentRef, places: readonly Pick<Place, "seq" | "tier">[]) => {
    const stream = streamOf(owner);
    const byTier = Map.groupBy(places, (place) => place.tier);
    await Promise.all([...byTier].map(async ([tier, places]) => {
      const ack = (seq: number) => `$JS.ACK.${stream}.${consumerName(owner, tier)}.1.${seq}.1.0.0`;
      const last = places.at(-1)!;
      for (const { seq } of places) if (seq !== last.seq) nc.publish(ack(seq), "+ACK");
      if (!await wire.ask(ack(last.seq), "+ACK")) {
        await Promise.all(places.map(({ seq }) => deleteMessage(wire, stream, seq)));
      }
    }));
  };

  // Dying

  /** Ends each as dead, unless it has ended otherwise, stores them and takes them out. True for what is now dealt with. */
  const bury = async (expired: readonly Expired[]): Promise<boolean[]> => {
    const dead = await Promise.all(expired.map(async ({ shard, seq, attempt, reason, by }) => {
      const found = await leaderGet(wire, deliveryStreamName(shard), { seq });
      const parsed = found && parseDelivery(found.subject);
      if (!found || !parsed) return undefined;
      const owner = { tenant: parsed.tenant, agent: parsed.agent };
      const delivery = found.json<QueuedDelivery>();
      const origin = delivery.origin ?? { seq, at: found.at, tier: parsed.priority };
      const handle = { ...origin, event: delivery.seq };
      const told = await endings.end(owner, placeName(owner, seq), endingOf(handle, "dead", by));
      if (told?.earlier?.outcome === "acknowledged") {
        await deleteMessage(wire, deliveryStreamName(shard), seq);
        return undefined;
      }
      const counts = !told || told.earlier?.by === by;
      const item: DeadDelivery = { owner, handle, generation: seq, attempt, reason, delivery };
      return { counts, item };
    }));
    const items = dead.flatMap((found) => found ? [found.item] : []);
    if (items.length > 0) await keep(items);
    await Promise.all(items.map(({ owner, generation }) => deleteMessage(wire, streamOf(owner), generation)));
    return dead.map((found) => found?.counts ?? false);
  };

  const work = async (batch: readonly Taken[]): Promise<Outcome[]> => {
    try {
      const expired = batch.map(readExpired);
      await bury(expired.filter((item) => item !== undefined));
      return batch.map(() => "done");
    } catch (error) {
      log.warn("dead_letters.delayed", { deliveries: batch.length, error });
      return batch.map(({ attempt }) => ({ retryInMs: Math.min(MAX_RETRY_MS, 250 * 2 ** Math.min(attempt, 6)) }));
    }
  };

  const expiry: Consumption = await consume({
    nc,
    consumer: consumers.expiry,
    config: { filter_subjects: ["expired.>", "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.>"] },
    batch: 20,
    work,
    log,
  });

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
        await announce(owner, leases);
        return leases;
      }
    },

    putBack,

    async drop(leases) {
      for (const lease of leases) nc.publish(taken.get(lease)!.reply, "+TERM");
      if (leases.length > 0) await nc.flush();
    },

    async acknowledge(owner, handles, by) {
      const results = await Promise.all(handles.map((handle) => acknowledgeOne(owner, handle, by)));
      const removals = results.filter((result) => result.remove !== undefined);
      await Promise.all([
        removeByAck(owner, removals.filter((result) => result.byAck).map((result) => result.remove!)),
        ...removals.filter((result) => !result.byAck).map(({ remove }) =>
          deleteMessage(wire, streamOf(owner), remove!.seq)
        ),
      ]);
      const counted = results.filter((result) => result.counts).length;
      const ended = new Set(results.flatMap((result) => result.ended ? [result.ended.seq] : []));
      if (ended.size === 0) return counted;
      // Some had ended before: by this very request, perhaps, whose first try was not heard of.
      const lately = await endings.acknowledged(owner, 100);
      return counted + lately.filter((ending) => ending.by === by && ended.has(ending.seq)).length;
    },

    async hold(owner, handles, ms) {
      const places = (await Promise.all(handles.map((handle) => find(owner, handle)))).filter((p) => p !== undefined);
      const last = places.filter(({ attempt }) => attempt >= maxAttempts);
      const shard = shardOf(owner.agent, shards);
      await Promise.all(
        last.map(({ seq, attempt }) => {
          if (ms > 0) return setAlarm(owner, seq, attempt, ms);
          const expired: Expired = { v: 1, shard, seq, attempt, reason: exhaustedReason, by: "" };
          return publisher.publish(subjects.expired(shard, seq), JSON.stringify(expired));
        }),
      );
      for (const [tier, held] of Map.groupBy(places, (place) => place.tier)) {
        await postpone(owner, tier, held, ms);
      }
      return places.length;
    },

    async reject(owner, handles, reason, by) {
      const places = (await Promise.all(handles.map((handle) => find(owner, handle)))).filter((p) => p !== undefined);
      const shard = shardOf(owner.agent, shards);
      const expired = places.map(({ seq, attempt }): Expired => ({ v: 1, shard, seq, attempt, reason, by }));
      // The intent first: whoever dies from here on, the others carry it out.
      await Promise.all(
        expired.map((item) => publisher.publish(subjects.expired(shard, item.seq), JSON.stringify(item))),
      );
      return (await bury(expired)).filter(Boolean).length;
    },

    async put(owner, delivery, name) {
      const shard = shardOf(owner.agent, shards);
      const { origin, priority } = delivery;
      const subject = subjects.delivery(shard, owner.tenant, owner.agent, priority);
      const { seq } = await publisher.publish(subject, JSON.stringify(delivery), { "Nats-Msg-Id": name });
      // An agent knows the id of what is replayed, and may end it before it is handed out again.
      if (origin) await writeNote(shard, origin.seq, { v: 1, seq, tier: priority, attempt: 1 });
    },

    async acknowledged(owner, limit) {
      const ended = await endings.acknowledged(owner, limit);
      if (ended.length === 0) return [];
      const shard = shardOf(owner.agent, shards);
      const { messages } = await wire.gather(
        "$JS.API.DIRECT.GET.NOTES",
        JSON.stringify({ multi_last: ended.map(({ seq }) => subjects.note(shard, seq)), batch: ended.length }),
        { most: Infinity, limitMs: PULL_LIMIT_MS },
      );
      const attempts = new Map(
        messages.map((msg) => [msg.headers!.get("Nats-Subject"), DeliveryNote.parse(msg.json()).attempt]),
      );
      return ended.map(({ seq, at, tier, event, ended_at }) => ({
        handle: { seq, at, tier, event },
        attempt: attempts.get(subjects.note(shard, seq)) ?? 1,
        at: ended_at,
      }));
    },

    isAlive: () => expiry.isAlive(),

    async [Symbol.asyncDispose]() {
      await expiry[Symbol.asyncDispose]();
      await high[Symbol.asyncDispose]();
    },
  };

  /** Moves the moment at which the consumer hands them out again. */
  async function postpone(owner: AgentRef, tier: number, places: readonly Place[], ms: number): Promise<void> {
    const name = consumerName(owner, tier);
    const info = await wire.api<{ delivered: { consumer_seq: number } }>(
      `CONSUMER.INFO.${streamOf(owner)}.${name}`,
      {},
    );
    // Without its consumer a delivery is held by nobody: it comes again at once, which is all that can be done.
    if ("error" in info) return;
    const body = ms > 0 ? `-NAK ${JSON.stringify({ delay: nanoseconds(ms) })}` : "-NAK";
    for (const { seq, attempt } of places) {
      // The consumer goes by the place in the stream; of its own count it only wants to see one it has reached.
      const subject = `$JS.ACK.${streamOf(owner)}.${name}.${attempt}.${seq}.${info.delivered.consumer_seq}.0.0`;
      nc.publish(subject, body);
    }
    await nc.flush();
  }
}

/** Whole ones: the broker takes a delay with a fraction for no delay at all, and a wait for a bad request. */
const nanoseconds = (ms: number) => nanos(Math.ceil(ms));
const consumerName = ({ agent }: AgentRef, tier: number) => `${agent}-${tier}`;
const nextOf = (stream: string, consumer: string) => `$JS.API.CONSUMER.MSG.NEXT.${stream}.${consumer}`;

/** `$JS.ACK.[<domain>.<account>.]<stream>.<consumer>.<attempt>.<seq>.<consumer seq>.<ns>.<pending>` */
function readReply(reply: string): { attempt: number; seq: number; at: number } {
  const tokens = reply.split(".");
  const from = tokens.length >= 11 ? 6 : 4;
  return { attempt: Number(tokens[from]), seq: Number(tokens[from + 1]), at: Number(tokens[from + 3]!.slice(0, -6)) };
}

const decoder = new TextDecoder();

/** An alarm that went off, an intent to reject, or the broker's advisory. */
function readExpired({ subject, body }: Taken): Expired | undefined {
  const message: unknown = JSON.parse(decoder.decode(body));
  if (subject.startsWith("expired.")) return Expired.parse(message);
  const { stream, stream_seq, deliveries } = message as { stream: string; stream_seq: number; deliveries: number };
  const shard = /^DELIVERIES-(\d+)$/.exec(stream)?.[1];
  if (shard === undefined) return undefined;
  const reason = `Not acknowledged in any of ${deliveries} attempts`;
  return { v: 1, shard: Number(shard), seq: stream_seq, attempt: deliveries, reason, by: "" };
}
