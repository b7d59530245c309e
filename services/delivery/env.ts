import { z } from "zod";
import { BusEnv, DatabaseEnv, EventEnv, QueueEnv, SecretEnv, wholeNumber } from "../../runtime/env.ts";

export const DeliveryEnv = BusEnv.extend(DatabaseEnv.shape).extend(SecretEnv.shape).extend(EventEnv.shape)
  .extend(QueueEnv.shape).extend(
    z.object({
      VISIBILITY_TIMEOUT_SECONDS: wholeNumber(1, 43_200, 30)
        .describe("How long a delivery stays with the agent that polled it before it comes again"),
      MAX_DELIVERY_ATTEMPTS: wholeNumber(1, 100, 5)
        .describe("How often a delivery is handed out before it is a dead letter"),
    }).shape,
  );
