import { BusEnv, DatabaseEnv, SecretEnv } from "../../runtime/env.ts";

export const RegistryEnv = BusEnv.extend(DatabaseEnv.shape).extend(SecretEnv.shape);
