/** The log of accepted events: EVENTS. An event is accepted when it is stored here, and not before. */
import type { CloudEvent } from "../../contracts/events.ts";
import { eventHeaders, eventMsgId } from "../../contracts/pipeline.ts";
import { subjects } from "../../contracts/subjects.ts";
import { sending } from "../../runtime/messaging.ts";
import type { Publisher } from "../../runtime/publish.ts";

export interface Logged {
  readonly isDuplicate: boolean;
  readonly sizeBytes: number;
}

export interface EventLog {
  /** Settles when the event is stored, or was before. `target` receives it whatever its interests say. */
  append(tenant: string, event: CloudEvent, target?: string): Promise<Logged>;
}

const encoder = new TextEncoder();
const EVENTS = "EVENTS";

/** The trace in which the event came to be, where its maker says so (an extension of CloudEvents). */
const madeIn = ({ traceparent }: CloudEvent) => typeof traceparent === "string" ? { traceparent } : undefined;

export const eventLog = (publisher: Publisher, now: () => Date = () => new Date()): EventLog => ({
  async append(tenant, event, target) {
    const body = encoder.encode(JSON.stringify(event));
    const headers = {
      "Nats-Msg-Id": eventMsgId(tenant, event.id),
      [eventHeaders.acceptedAt]: now().toISOString(),
      ...(target === undefined ? {} : { [eventHeaders.target]: target }),
    };
    const { duplicate } = await sending(
      EVENTS,
      { id: event.id, links: [madeIn(event)] },
      (trace) => publisher.publish(subjects.event(tenant), body, { ...headers, ...trace }),
    );
    return { isDuplicate: duplicate, sizeBytes: body.length };
  },
});
