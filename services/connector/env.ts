import { BusEnv, SecretEnv, wholeNumber } from "../../runtime/env.ts";

export const ConnectorEnv = BusEnv.extend(SecretEnv.shape).extend({
  CONNECTOR_LEASE_SECONDS: wholeNumber(1, 600, 10)
    .describe("How long the owner of a connector may be silent before another process takes it over"),
  CONNECTOR_MAX_BEHIND: wholeNumber(1, 1e9, 10_000)
    .describe("How many events may wait for fan-out before connectors stop asking their brokers for more"),
});
