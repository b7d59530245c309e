import { z } from "zod";
import { BusEnv, EventEnv, QueueEnv, wholeNumber } from "../../runtime/env.ts";

export const FanoutEnv = BusEnv.extend(EventEnv.shape).extend(QueueEnv.shape).extend(
  z.object({
    FANOUT_ACK_WAIT_SECONDS: wholeNumber(1, 300, 30)
      .describe("How long after a crash of fan-out another replica takes up what it had in hand"),
  }).shape,
);
