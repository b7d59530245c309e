/** What ingest answers: events come in, and are counted. */
import * as events from "../events.ts";
import type { Operation } from "../operation.ts";
import { AgentPath } from "../registry.ts";

const MEGABYTE = 1024 * 1024;

export const ingestOperations = {
  "events.publish": {
    service: "ingest",
    summary: "Publish an event to every agent that cares for it",
    http: ["POST", "/events"],
    access: "send",
    body: events.EventBody,
    output: events.Published,
    success: 202,
    statusOf: (output) => (output as events.Published).status === "duplicate" ? 200 : 202,
    cloudEvent: true,
    batch: { contentType: "application/cloudevents-batch+json", operation: "events.publish_batch" },
    faults: ["invalid_event"],
    maxBodyBytes: MEGABYTE,
  },
  "events.publish_batch": {
    service: "ingest",
    summary: "Publish up to 100 events; all are checked before the first is accepted",
    access: "send",
    body: events.EventBatch,
    output: events.PublishedBatch,
    success: 202,
    faults: ["invalid_event"],
    deadlineMs: 10_000,
    maxBodyBytes: MEGABYTE,
  },
  "events.test": {
    service: "ingest",
    summary: "Send a test event to an agent",
    http: ["POST", "/agents/{id}/test-event"],
    access: { self: "send", other: "admin" },
    path: AgentPath,
    output: events.TestEventSent,
    success: 202,
    faults: ["business_rule_violation"],
  },
  "operator.usage": {
    service: "ingest",
    summary: "Events accepted by tenant and day",
    access: "operator",
    body: events.UsageQuery,
    output: events.UsageList,
    success: 200,
    deadlineMs: 10_000,
  },
} as const satisfies Record<string, Operation>;
