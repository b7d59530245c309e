/** Puts deliveries into the queues of their agents: small messages that point to the event. */
import { deliveryMsgId, type QueuedDelivery } from "../../contracts/pipeline.ts";
import { shardOf, subjects } from "../../contracts/subjects.ts";
import type { Publisher } from "../../runtime/publish.ts";
import type { Recipient } from "./match.ts";

export interface QueuedEvent {
  readonly tenant: string;
  readonly seq: number;
  readonly id: string;
  /** Trace headers that go on with the delivery. */
  readonly trace: Readonly<Record<string, string>>;
}

/** Settles when every recipient's delivery is stored. Repeating it stores nothing twice within the stream's window. */
export type Enqueue = (event: QueuedEvent, recipients: readonly Recipient[]) => Promise<void>;

/** Unanswered publishes of one event; a wide one must not fill the memory of both ends. */
const WINDOW = 1_000;

export const enqueuer =
  (publisher: Publisher, shards: number, now: () => Date = () => new Date()): Enqueue => async (event, recipients) => {
    const at = now().toISOString();
    const put = ({ agent, matched, priority, enrichment }: Recipient) => {
      const delivery: QueuedDelivery = { v: 1, seq: event.seq, event_id: event.id, matched, priority, enrichment, at };
      return publisher.publish(
        subjects.delivery(shardOf(agent, shards), event.tenant, agent, priority),
        JSON.stringify(delivery),
        { "Nats-Msg-Id": deliveryMsgId(event.seq, agent), ...event.trace },
      );
    };
    for (let from = 0; from < recipients.length; from += WINDOW) {
      await Promise.all(recipients.slice(from, from + WINDOW).map(put));
    }
  };
