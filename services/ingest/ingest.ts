/** Ingest: events come in, once each, and are answered when they are safe. */
import type { z } from "zod";
import { Fault, notFound, ruleBroken } from "../../contracts/errors.ts";
import { BATCH_MAX, type CloudEvent, type Published } from "../../contracts/events.ts";
import type { Handlers } from "../../contracts/operations.ts";
import type { AgentRoute } from "../../contracts/routes.ts";
import { shown } from "../../contracts/validation.ts";
import { measure } from "../../runtime/measure.ts";
import { accept } from "./accept.ts";
import type { EventLog } from "./event-log.ts";
import type { Meter, ReadUsage } from "./usage.ts";
import type { WebhookDirectory } from "./webhook-routes.ts";
import { webhookHandlers } from "./webhooks.ts";

export interface IngestDeps {
  readonly log: EventLog;
  readonly meter: Pick<Meter, "count" | "flush">;
  readonly usage: ReadUsage;
  /** An agent as the registry last announced it. */
  readonly findAgent: (tenant: string, agent: string) => Promise<z.output<typeof AgentRoute> | undefined>;
  readonly directory: Pick<WebhookDirectory, "known" | "newer" | "find">;
  readonly now?: () => Date;
}

export function ingest(deps: IngestDeps): Handlers<"ingest"> {
  const { log, meter, usage, findAgent, directory, now = () => new Date() } = deps;
  const publish = async (tenant: string, event: CloudEvent, target?: string): Promise<Published> => {
    const { isDuplicate, sizeBytes } = await log.append(tenant, event, target);
    const status = isDuplicate ? "duplicate" : "accepted";
    if (!isDuplicate) meter.count(tenant, sizeBytes);
    measure().events.add(1, { tenant, outcome: status });
    return { event_id: event.id, status };
  };
  return {
    "events.publish": async ({ body }, { caller }) => publish(caller.tenant, accept(body)),

    async "events.publish_batch"({ body }, { caller }) {
      const events = asBatch(body).map((item, i) => accept(item, `[${i}]`));
      // Sent together and in order: of two with one id the first is accepted and the second its duplicate.
      return { results: await Promise.all(events.map((event) => publish(caller.tenant, event))) };
    },

    async "events.test"({ path: { id } }, { caller, seed }) {
      const agent = await findAgent(caller.tenant, id);
      if (!agent) throw notFound("agent", id);
      if (agent.status !== "active") {
        throw ruleBroken("agent_inactive", `Agent ${id} is inactive and gets no deliveries`, { agent_id: id });
      }
      const event: CloudEvent = {
        specversion: "1.0",
        type: "test.dashboard",
        source: "dashboard.test-event",
        // Named by the request, so that trying it again under its key sends nothing twice.
        id: `evt_${seed}`,
        time: now().toISOString(),
        subject: id,
        datacontenttype: "application/json",
        data: { message: "A test event, sent from the dashboard" },
      };
      const { event_id } = await publish(caller.tenant, event, id);
      return { event_id };
    },

    ...webhookHandlers({ directory, publish, now }),

    async "operator.usage"({ body }) {
      await meter.flush();
      return { usage: await usage(body) };
    },
  };
}

function asBatch(body: unknown): unknown[] {
  if (Array.isArray(body) && body.length > 0 && body.length <= BATCH_MAX) return body;
  const expected = `a list of 1 to ${BATCH_MAX} events`;
  const value = Array.isArray(body) ? `a list of ${body.length}` : shown(body);
  throw new Fault("invalid_event", `The body is not valid: expected ${expected}`, { field: "", value, expected });
}
