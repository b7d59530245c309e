/** Events as they are published: the CloudEvents 1.0 envelope, and what is answered. */
import { z } from "zod";
import { Moment } from "./fields.ts";

/** An accepted event. Attributes beyond these are CloudEvents extensions and are kept. */
export const CloudEvent = z.looseObject({
  specversion: z.literal("1.0"),
  type: z.string().min(1).max(256).meta({ examples: ["com.example.order.created"] }),
  source: z.string().min(1).max(2048).meta({ examples: ["https://shop.example.com/orders"] }),
  id: z.string().min(1).max(256).meta({ examples: ["order-1001-created"] }),
  time: Moment.optional(),
  datacontenttype: z.string().min(1).max(256).optional(),
  dataschema: z.string().min(1).max(2048).optional(),
  subject: z.string().min(1).max(1024).optional().meta({ examples: ["order/1001"] }),
  data: z.unknown().optional().meta({ examples: [{ total: 120 }] }),
  data_base64: z.string().optional(),
}).meta({ id: "Event" });
export type CloudEvent = z.output<typeof CloudEvent>;

/**
 * What is wrong with an envelope is said as `invalid_event`, by ingest, so that the table lets any body through; the
 * schema is shown all the same.
 */
const looselyRead = <S extends z.ZodType>(shown: S) => {
  const { $schema: _, id: __, ...schema } = z.toJSONSchema(shown, { io: "input", unrepresentable: "any" });
  return z.unknown().meta(schema) as z.ZodType<unknown, z.input<S>>;
};
export const EventBody = looselyRead(CloudEvent);
export const EventBatch = looselyRead(z.array(CloudEvent).min(1).max(100));
export const BATCH_MAX = 100;

export const Published = z.object({ event_id: z.string(), status: z.enum(["accepted", "duplicate"]) })
  .meta({ id: "PublishedEvent" });
export type Published = z.output<typeof Published>;
export const PublishedBatch = z.object({ results: z.array(Published) });

export const TestEventSent = z.object({ event_id: z.string() });

const Day = z.iso.date().meta({ expected: "a date", examples: ["2026-01-31"] });
export const UsageQuery = z.object({
  tenant: z.string().min(1).max(128).optional(),
  from: Day.optional(),
  to: Day.optional(),
});
export type UsageQuery = z.output<typeof UsageQuery>;
/** Events accepted in a day of UTC, and the bytes they are stored in. */
export const Usage = z.object({ tenant: z.string(), day: z.string(), events: z.int(), bytes: z.int() });
export type Usage = z.output<typeof Usage>;
export const UsageList = z.object({ usage: z.array(Usage) });
