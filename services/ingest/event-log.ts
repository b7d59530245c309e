/** The log of accepted events: EVENTS. An event is accepted when it is stored here, and not before. */
import type { CloudEvent } from "../../contracts/events.ts";
import { eventHeaders, eventMsgId } from "../../contracts/pipeline.ts";
import { subjects } from "../../contracts/subjects.ts";
import type { Publisher } from "../../runtime/publish.ts";
import { injectTrace } from "../../runtime/telemetry.ts";

export interface Logged {
  readonly isDuplicate: boolean;
  readonly sizeBytes: number;
}

export interface EventLog {
  /** Settles when the event is stored, or was before. `target` receives it whatever its interests say. */
  append(tenant: string, event: CloudEvent, target?: string): Promise<Logged>;
}

const encoder = new TextEncoder();

export const eventLog = (publisher: Publisher, now: () => Date = () => new Date()): EventLog => ({
  async append(tenant, event, target) {
    const body = encoder.encode(JSON.stringify(event));
    const headers: Record<string, string> = {
      "Nats-Msg-Id": eventMsgId(tenant, event.id),
      [eventHeaders.acceptedAt]: now().toISOString(),
    };
    if (target !== undefined) headers[eventHeaders.target] = target;
    injectTrace((name, value) => headers[name] = value);
    const { duplicate } = await publisher.publish(subjects.event(tenant), body, headers);
    return { isDuplicate: duplicate, sizeBytes: body.length };
  },
});
