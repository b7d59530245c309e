import { BusEnv, EventEnv } from "../../runtime/env.ts";

export const IngestEnv = BusEnv.extend(EventEnv.shape);
