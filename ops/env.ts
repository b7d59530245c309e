/** What the embedded start reads: its own, and all that the services in it read, so that a mistake is told at once. */
import { z } from "zod";
import { GatewayEnv } from "../gateway/env.ts";
import { LogEnv } from "../runtime/env.ts";
import { TelemetryEnv } from "../runtime/telemetry.ts";
import { ConnectorEnv } from "../services/connector/env.ts";
import { DeliveryEnv } from "../services/delivery/env.ts";
import { FanoutEnv } from "../services/fanout/env.ts";
import { IngestEnv } from "../services/ingest/env.ts";
import { MemoryEnv } from "../services/memory/env.ts";
import { RegistryEnv } from "../services/registry/env.ts";

export const StartEnv = z.object({
  ...RegistryEnv.shape,
  ...DeliveryEnv.shape,
  ...FanoutEnv.shape,
  ...IngestEnv.shape,
  ...ConnectorEnv.shape,
  ...MemoryEnv.shape,
  ...GatewayEnv.shape,
  ...TelemetryEnv.shape,
  DATA_DIR: z.string().default(".data").describe("Where everything is kept"),
  NATS_URL: z.string().optional().describe("An external NATS; embedded when not set"),
  DATABASE_URL: z.string().optional().describe("An external Postgres; embedded when not set"),
  SERVER_SECRET: z.string().min(32, "must have at least 32 characters").optional(),
  DURABILITY: z.enum(["standard", "strict"], "must be standard or strict").default("standard")
    .describe("Whether a message is on disk before it is acknowledged (strict) or within a second (standard)"),
  ...LogEnv.shape,
});
