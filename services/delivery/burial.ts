/** Dying: what has run out of attempts, or was rejected, is ended, stored among the dead letters and taken out. */
import type { NatsConnection } from "@nats-io/nats-core";
import { Expired, type QueuedDelivery } from "../../contracts/pipeline.ts";
import { consumers, deliveryStreamName } from "../../contracts/streams.ts";
import { parseDelivery, subjects } from "../../contracts/subjects.ts";
import { consume, type Consumption, type Outcome, type Taken } from "../../runtime/consume.ts";
import type { Log } from "../../runtime/log.ts";
import { endingOf, type History, placeName } from "./history.ts";
import type { DeadDelivery, Keep } from "./queue.ts";
import { deleteMessage, leaderGet, type Wire } from "./wire.ts";

export interface Burial extends AsyncDisposable {
  /** True for each that this call ended. May be repeated. */
  bury(expired: readonly Expired[]): Promise<boolean[]>;
  /** Whether what has run out of attempts can reach us. */
  isAlive(): boolean;
}

/** A dead letter that cannot be stored is tried again at least this often. */
const MAX_RETRY_MS = 5_000;

export async function burials(deps: {
  readonly nc: NatsConnection;
  readonly wire: Wire;
  readonly endings: History;
  readonly keep: Keep;
  readonly log: Log;
}): Promise<Burial> {
  const { nc, wire, endings, keep, log } = deps;

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
      const told = await endings.end(owner, placeName(shard, seq), endingOf(handle, "dead", by));
      if (told?.earlier?.outcome === "acknowledged") {
        await deleteMessage(wire, deliveryStreamName(shard), seq);
        return undefined;
      }
      const counts = !told || told.earlier?.by === by;
      const item: DeadDelivery = { owner, handle, generation: seq, attempt, reason, delivery };
      return { counts, item, shard };
    }));
    const kept = dead.filter((found) => found !== undefined);
    if (kept.length > 0) await keep(kept.map(({ item }) => item));
    await Promise.all(kept.map(({ shard, item }) => deleteMessage(wire, deliveryStreamName(shard), item.generation)));
    return dead.map((found) => found?.counts ?? false);
  };

  /**
   * Has the last word on when a last attempt ends: it is moved with the lease. The broker's own clock may have run out
   * before, when the visibility timeout was shortened since, or an extension came just as it ran out.
   */
  const alarmOf = ({ shard, seq }: Expired) =>
    leaderGet(wire, consumers.expiry.stream, { last_by_subj: subjects.alarm(shard, seq) });

  /** What an alarm that went off, an intent to reject or the broker's advisory says must die now. */
  const dying = async ({ subject, body }: Taken): Promise<Expired | undefined> => {
    const message: unknown = JSON.parse(decoder.decode(body));
    if (subject.startsWith("expired.")) return Expired.parse(message);
    const exhausted = readAdvisory(message as Advisory);
    return exhausted && !await alarmOf(exhausted) ? exhausted : undefined;
  };

  const work = async (batch: readonly Taken[]): Promise<Outcome[]> => {
    try {
      const expired = await Promise.all(batch.map(dying));
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
    bury,
    isAlive: () => expiry.isAlive(),
    [Symbol.asyncDispose]: () => expiry[Symbol.asyncDispose](),
  };
}

const decoder = new TextDecoder();

/** What the broker says of a message that it will not hand out again. */
interface Advisory {
  readonly stream: string;
  readonly stream_seq: number;
  readonly deliveries: number;
}

function readAdvisory({ stream, stream_seq, deliveries }: Advisory): Expired | undefined {
  const shard = /^DELIVERIES-(\d+)$/.exec(stream)?.[1];
  if (shard === undefined) return undefined;
  const reason = `Not acknowledged in any of ${deliveries} attempts`;
  return { v: 1, shard: Number(shard), seq: stream_seq, attempt: deliveries, reason, by: "" };
}
