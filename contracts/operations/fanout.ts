/** What fan-out answers beside its work. */
import { z } from "zod";
import type { Operation } from "../operation.ts";
import { QueuedDelivery } from "../pipeline.ts";

export const fanoutOperations = {
  "fanout.match": {
    service: "fanout",
    summary: "Why an agent would receive an event now",
    access: "service",
    body: z.object({ tenant: z.string(), agent: z.string(), seq: z.int() }),
    output: QueuedDelivery.pick({ matched: true, priority: true, enrichment: true }),
    success: 200,
    faults: ["not_found"],
  },
} as const satisfies Record<string, Operation>;
