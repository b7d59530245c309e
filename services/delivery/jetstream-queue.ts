/**
 * The queue on JetStream. An agent's deliveries rest in the stream of its shard until they end; a pull consumer for
 * each agent and tier that polls knows who has been handed what, how often, until when. Nothing is remembered in this
 * process that another replica would need: any of them serves any agent. `docs/decisions/delivery-queue.md` has the
 * measurements.
 */
import type { NatsConnection } from "@nats-io/nats-core";
import { DeliveryNote, type Expired, type QueuedDelivery } from "../../contracts/pipeline.ts";
import { deliveryStreamName, HISTORY_WINDOW_MS } from "../../contracts/streams.ts";
import { parseDelivery, shardOf, subjects } from "../../contracts/subjects.ts";
import type { Log } from "../../runtime/log.ts";
import type { Publisher } from "../../runtime/publish.ts";
import { burials } from "./burial.ts";
import type { AgentRef, Handle } from "./delivery-id.ts";
import { endingOf, history, placeName } from "./history.ts";
import { consumerName, leasesOn, nanoseconds } from "./leases.ts";
import type { Keep, Lease, Queue } from "./queue.ts";
import { deleteMessage, leaderGet, type StoredMessage, type Wire } from "./wire.ts";

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

const READ_LIMIT_MS = 5_000;
/**
 * HISTORY forgets a delivery after its window, and at a restart of the broker all but the last hundred of an agent. A
 * delivery queued longer ago than this, or before the connection was last made, is therefore looked up before it ends.
 */
const TRUST_MS = HISTORY_WINDOW_MS / 2;
const CLOCK_SKEW_MS = 5_000;

export async function jetstreamQueue(options: QueueOptions): Promise<JetStreamQueue> {
  const {
    nc,
    wire,
    publisher,
    shards,
    visibilityMs,
    maxAttempts,
    keep,
    log,
    trustAfterMs = CLOCK_SKEW_MS,
  } = options;
  const endings = history(publisher, wire);
  const handedOut = leasesOn(options);
  const { bury, ...burial } = await burials({ nc, wire, endings, keep, log });
  const exhaustedReason = `Not acknowledged within ${visibilityMs / 1_000} s in any of ${maxAttempts} attempts`;

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
      const seq = handedOut.seqOf(lease);
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

  // Finding a delivery again

  /**
   * Whether the message at a place is the delivery of the handle. A broker that was put back from a backup counts on from
   * there, so the place may be another's by now; the moment is not.
   */
  const isMeant = (owner: AgentRef, { seq, at }: Handle, found: StoredMessage): boolean => {
    const subject = parseDelivery(found.subject);
    const first = found.json<QueuedDelivery>().origin ?? found;
    return subject?.tenant === owner.tenant && subject.agent === owner.agent && first.seq === seq && first.at === at;
  };
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
    if (!found || !isMeant(owner, handle, found)) return undefined;
    const { seq } = found;
    const tier = parseDelivery(found.subject)!.priority;
    return { handle, seq, tier, attempt: note?.attempt ?? 1, delivery: found.json() };
  };

  const findAll = async (owner: AgentRef, handles: readonly Handle[]): Promise<Place[]> =>
    (await Promise.all(handles.map((handle) => find(owner, handle)))).filter((place) => place !== undefined);

  const isWhereItWas = async (owner: AgentRef, handle: Handle): Promise<boolean> => {
    const found = await leaderGet(wire, streamOf(owner), { seq: handle.seq });
    return found !== undefined && isMeant(owner, handle, found);
  };

  // Ending

  const nameOf = ({ agent }: AgentRef, seq: number) => placeName(shardOf(agent, shards), seq);
  /** Queued since we connected: no restart of the broker can have made its consumer forget whom it was handed to. */
  const isOfThisConnection = ({ at }: Handle) => at > handedOut.connectedAt() + trustAfterMs;
  const isTrusted = (handle: Handle) => isOfThisConnection(handle) && handle.at > Date.now() - TRUST_MS;

  /** Whether this call ended it, and where it must be taken out of the stream now. */
  const acknowledgeOne = async (owner: AgentRef, handle: Handle, by: string) => {
    const isFresh = isTrusted(handle);
    let place: Pick<Place, "seq" | "tier"> | undefined = isFresh || await isWhereItWas(owner, handle)
      ? handle
      : await find(owner, handle);
    if (!place) return { counts: false, ended: handle };
    const ending = endingOf(handle, "acknowledged", by);
    let told = await endings.end(owner, nameOf(owner, place.seq), ending);
    if (told && told.earlier?.outcome !== "acknowledged" && place === handle) {
      // It died where it first was. A replay has taken it elsewhere.
      const elsewhere = await find(owner, handle);
      if (!elsewhere || elsewhere.seq === place.seq) return { counts: false };
      place = elsewhere;
      told = await endings.end(owner, nameOf(owner, place.seq), ending);
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

  return {
    async lease(owner, limit, waitMs, signal) {
      const taken = await handedOut.lease(owner, limit, waitMs, signal);
      await announce(owner, taken);
      return taken;
    },

    putBack: handedOut.putBack,
    drop: handedOut.drop,

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
      const places = await findAll(owner, handles);
      await holdAt(owner, places, ms);
      return places.length;
    },

    async renew(owner, given) {
      const attempts = new Map(given.map(({ handle, attempt }) => [handle, attempt]));
      const places = (await findAll(owner, [...attempts.keys()])).filter((p) => p.attempt === attempts.get(p.handle));
      await holdAt(owner, places, visibilityMs);
      return places.map(({ handle, attempt, delivery }) => ({ handle, attempt, delivery }));
    },

    async reject(owner, handles, reason, by) {
      const places = await findAll(owner, handles);
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
        { most: Infinity, limitMs: READ_LIMIT_MS },
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

    isAlive: burial.isAlive,

    async [Symbol.asyncDispose]() {
      await burial[Symbol.asyncDispose]();
      await handedOut[Symbol.asyncDispose]();
    },
  };

  /** Lets them come again so much later than now. Of a last attempt that moment is the end. */
  async function holdAt(owner: AgentRef, places: readonly Place[], ms: number): Promise<void> {
    const last = places.filter(({ attempt }) => attempt >= maxAttempts);
    const shard = shardOf(owner.agent, shards);
    await Promise.all(
      last.map(({ seq, attempt }) => {
        if (ms > 0) return setAlarm(owner, seq, attempt, ms);
        const expired: Expired = { v: 1, shard, seq, attempt, reason: exhaustedReason, by: "" };
        return publisher.publish(subjects.expired(shard, seq), JSON.stringify(expired));
      }),
    );
    for (const [tier, held] of Map.groupBy(places, (place) => place.tier)) await postpone(owner, tier, held, ms);
  }

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
