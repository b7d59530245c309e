import { BusEnv, EventEnv, QueueEnv } from "../../runtime/env.ts";

export const FanoutEnv = BusEnv.extend(EventEnv.shape).extend(QueueEnv.shape);
