import { z } from "zod";
import { BusEnv, DatabaseEnv, EventEnv, flag, QueueEnv, SecretEnv, wholeNumber } from "../../runtime/env.ts";

export const DeliveryEnv = BusEnv.extend(DatabaseEnv.shape).extend(SecretEnv.shape).extend(EventEnv.shape)
  .extend(QueueEnv.shape).extend(
    z.object({
      VISIBILITY_TIMEOUT_SECONDS: wholeNumber(1, 43_200, 30)
        .describe("How long a delivery stays with the agent that polled it before it comes again"),
      MAX_DELIVERY_ATTEMPTS: wholeNumber(1, 100, 5)
        .describe("How often a delivery is handed out before it is a dead letter"),
      PUSH_ALLOW_PRIVATE: flag(false)
        .describe("Whether deliveries may be pushed to private, loopback and link-local addresses"),
      PUSH_BACKOFF_SECONDS: wholeNumber(1, 3_600, 5)
        .describe("How long the first failed push waits for its second attempt; each further one twice as long"),
    }).shape,
  );
