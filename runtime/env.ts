/** Reads the environment once, at start, by a schema. */
import { z } from "zod";

export class UnusableEnvironment extends Error {
  override readonly name = "UnusableEnvironment";
}

/** Names every problem together, in one line, and never prints a value: it may be a secret. */
export function readEnv<S extends z.ZodObject>(
  schema: S,
  source: Record<string, string | undefined> = process.env,
): z.output<S> {
  // An empty variable is an unset one: `PORT= npm start` means the default.
  const given = Object.fromEntries(Object.entries(source).filter(([, value]) => value !== ""));
  const result = schema.safeParse(given);
  if (result.success) return result.data;
  const problems = result.error.issues.map((issue) => `${issue.path.join(".")}: ${issue.message}`);
  throw new UnusableEnvironment(`Cannot start: ${problems.join("; ")}`);
}

export const wholeNumber = (min: number, max: number, standard: number) =>
  z.string().regex(/^\d{1,15}$/, `must be a whole number from ${min} to ${max}`).transform(Number)
    .pipe(z.number().min(min, `must be at least ${min}`).max(max, `must be at most ${max}`))
    .default(standard);

export const flag = (standard: boolean) =>
  z.enum(["true", "false"], "must be true or false").transform((v) => v === "true").default(standard);

export const LogEnv = z.object({
  LOG_LEVEL: z.enum(["debug", "info", "warn", "error"], "must be debug, info, warn or error").default("info")
    .describe("What of the log is written, one JSON line a piece of work"),
});

/** What every process needs. */
export const BusEnv = z.object({
  NATS_URL: z.string("must be set").min(1).describe("Where the bus listens, credentials included; several by commas"),
  NATS_REPLICAS: wholeNumber(1, 5, 1)
    .describe("On how many nodes of the NATS cluster every stream and bucket is kept: 1, 3 or 5"),
});
export type BusEnv = z.output<typeof BusEnv>;
export const DatabaseEnv = z.object({
  DATABASE_URL: z.string("must be set").regex(/^postgres(ql)?:\/\//, "must be a postgres:// address")
    .describe("Postgres, owner of what must outlive the bus"),
});
export const SecretEnv = z.object({
  SERVER_SECRET: z.string("must be set").min(32, "must have at least 32 characters")
    .describe("Keys every hash and seal of ours; the same for all processes, and not changeable afterwards"),
});
export const EventEnv = z.object({
  EVENT_RETENTION_HOURS: wholeNumber(1, 8_760, 168)
    .describe("How long events are kept, and how long an id is recognised as a duplicate"),
});
export const QueueEnv = z.object({
  DELIVERY_SHARDS: wholeNumber(1, 1_024, 64)
    .describe("Over how many streams the agents' queues are spread; not changeable while deliveries are pending"),
});
