/**
 * How deliveries ended. HISTORY hears of every ending before anything else happens, under the name of the delivery's
 * place in its stream; the first to tell it has ended the delivery, everybody else learns who did.
 */
import { Ending } from "../../contracts/pipeline.ts";
import { subjects } from "../../contracts/subjects.ts";
import type { Publisher } from "../../runtime/publish.ts";
import type { AgentRef, Handle } from "./delivery-id.ts";
import { leaderGet, type Wire } from "./wire.ts";

export interface History {
  /** Undefined when this was the first ending told of the delivery at `place`; else that first one, where it is kept. */
  end(owner: AgentRef, place: string, ending: Ending): Promise<undefined | { readonly earlier: Ending | undefined }>;
  /** Acknowledged deliveries, newest first. */
  acknowledged(owner: AgentRef, limit: number): Promise<Ending[]>;
}

const STREAM = "HISTORY";
const READ_MS = 5_000;

export const history = (publisher: Publisher, wire: Wire): History => ({
  async end(owner, place, ending) {
    const subject = (ending.outcome === "acknowledged" ? subjects.history : subjects.dead)(owner.tenant, owner.agent);
    const { seq, duplicate } = await publisher.publish(subject, JSON.stringify(ending), { "Nats-Msg-Id": place });
    if (!duplicate) return undefined;
    const first = await leaderGet(wire, STREAM, { seq });
    return { earlier: first && Ending.parse(first.json()) };
  },

  async acknowledged({ tenant, agent }, limit) {
    // No more are kept than may be asked for, so all of them are read and the last ones taken.
    const { messages } = await wire.gather(
      `$JS.API.DIRECT.GET.${STREAM}`,
      JSON.stringify({ seq: 1, next_by_subj: subjects.history(tenant, agent), batch: 100 }),
      { most: Infinity, limitMs: READ_MS },
    );
    // After a restart of the broker a delivery may be told of twice (see `jetstream-queue.ts`); the first one counts.
    const endings = new Map<number, Ending>();
    for (const msg of messages) {
      const ending = Ending.parse(msg.json());
      if (!endings.has(ending.seq)) endings.set(ending.seq, ending);
    }
    return [...endings.values()].reverse().slice(0, limit);
  },
});

/** The name under which HISTORY hears of a delivery: its place in its stream. */
export const placeName = (shard: number, seq: number): string => `${shard}:${seq}`;

export const endingOf = ({ seq, at, tier, event }: Handle, outcome: Ending["outcome"], by: string): Ending => ({
  v: 1,
  outcome,
  seq,
  at,
  tier,
  event,
  ended_at: new Date().toISOString(),
  by,
});
