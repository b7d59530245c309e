import { BusEnv, EventEnv, SecretEnv } from "../../runtime/env.ts";

export const IngestEnv = BusEnv.extend(EventEnv.shape).extend(SecretEnv.shape);
