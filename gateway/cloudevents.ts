/** The three ways an event comes over HTTP, brought into one: the JSON envelope. */
import type { Context } from "hono";
import { invalid } from "../contracts/errors.ts";
import { assertText, mediaTypeOf, parseJson } from "./body.ts";

export const EVENT_TYPES = ["application/json", "application/cloudevents+json"] as const;

/** In binary mode the attributes are headers and the body is the data. */
export const isBinaryMode = (c: Context): boolean =>
  c.req.header("ce-specversion") !== undefined || c.req.header("ce-id") !== undefined;

export function envelopeOf(c: Context, bytes: Uint8Array): Record<string, unknown> {
  const envelope: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(c.req.header())) {
    if (name.startsWith("ce-")) envelope[name.slice(3)] = decoded(name, value);
  }
  assertText(envelope, "");
  if (bytes.byteLength === 0) return envelope;
  const contentType = c.req.header("content-type");
  const type = mediaTypeOf(contentType);
  if (contentType) envelope.datacontenttype = contentType;
  if (type === "application/json" || type.endsWith("+json")) envelope.data = parseJson(bytes);
  else if (type.startsWith("text/")) envelope.data = new TextDecoder().decode(bytes).replaceAll("\0", "");
  else envelope.data_base64 = Buffer.from(bytes).toString("base64");
  return envelope;
}

/** Header values are percent-encoded where they are not printable ASCII. */
function decoded(name: string, value: string): string {
  try {
    return decodeURIComponent(value);
  } catch {
    throw invalid({ field: name, value, expected: "a percent-encoded value", example: "order%2F1001" });
  }
}
