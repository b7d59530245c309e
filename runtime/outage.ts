/** Losing a dependency is a 503 for the caller, not a riddle. */
import { unavailable } from "../contracts/errors.ts";

/** What postgres.js and the server say when the database is away, going away or full. */
const away = new Set([
  "ECONNREFUSED",
  "ECONNRESET",
  "EPIPE",
  "CONNECT_TIMEOUT",
  "CONNECTION_CLOSED",
  "CONNECTION_ENDED",
  "CONNECTION_DESTROYED",
  "57P01",
  "57P02",
  "57P03",
  "57014",
  "53300",
]);

export function outageOr(thrown: unknown): unknown {
  const code = (thrown as { code?: unknown } | undefined)?.code;
  return typeof code === "string" && away.has(code)
    ? unavailable("The database is away; try again shortly", thrown)
    : thrown;
}
