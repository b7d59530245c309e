/** Answers as HTTP: what a fault looks like outside. */
import { catalogue, type Fault } from "../contracts/errors.ts";

/** An answer before it becomes an HTTP response. Header values are ours or filtered; see `safeHeader`. */
export interface Reply {
  readonly status: number;
  readonly body: Uint8Array | undefined;
  /** Instead of a body. */
  readonly stream?: ReadableStream<Uint8Array>;
  readonly headers?: Readonly<Record<string, string>>;
}

const encoder = new TextEncoder();
export const jsonBytes = (value: unknown): Uint8Array => encoder.encode(JSON.stringify(value));

export function faultReply({ code, message, details }: Fault, requestId: string): Reply {
  const wait = (details as { retry_after_seconds?: number }).retry_after_seconds;
  return {
    status: catalogue[code].status,
    body: jsonBytes({ error: { code, message, request_id: requestId, details } }),
    ...(wait === undefined ? {} : { headers: { "retry-after": String(wait) } }),
  };
}

/** A line break in a header value ends the process on some servers, so nothing but printable ASCII gets through. */
export const safeHeader = (value: string): string => value.replace(/[^\x20-\x7e]/g, "");
