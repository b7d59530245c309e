import { z } from "zod";
import { BusEnv, SecretEnv, wholeNumber } from "../runtime/env.ts";

export const GatewayEnv = BusEnv.extend(SecretEnv.shape).extend({
  PORT: wholeNumber(0, 65_535, 8080).describe("Where agents reach us"),
  HOST: z.string().default("127.0.0.1").describe("The address to listen on"),
  RATE_LIMIT_AGENT_PER_MINUTE: wholeNumber(0, 1e9, 6_000).describe("Requests of one agent in any 60 s; 0 is no limit"),
  RATE_LIMIT_TENANT_PER_MINUTE: wholeNumber(0, 1e9, 60_000).describe(
    "Requests of one tenant in any 60 s; 0 is no limit",
  ),
  RATE_LIMIT_TOKEN_PER_MINUTE: wholeNumber(0, 1e9, 600).describe("Token exchanges from one address in any 60 s"),
  RATE_LIMIT_WEBHOOK_PER_MINUTE: wholeNumber(0, 1e9, 6_000).describe(
    "Webhook requests from one address in any 60 s; 0 is no limit",
  ),
  GATEWAY_REPLICAS: wholeNumber(1, 1_000, 1).describe("How many gateways share a limit while the broker cannot say"),
  DRAIN_NOTICE_SECONDS: wholeNumber(0, 600, 0).describe(
    "How long a stopping gateway still takes requests while /readyz says 503: as long as a load balancer needs to notice",
  ),
  DRAIN_SECONDS: wholeNumber(0, 600, 10).describe("How long a stopping gateway waits for requests in hand"),
});
export type GatewayEnv = z.output<typeof GatewayEnv>;
