/** The ways an event comes over HTTP or AMQP, brought into one: the JSON envelope. Header names are lower-case. */
import { invalid } from "../contracts/errors.ts";
import { assertText, mediaTypeOf, parseJson } from "./json.ts";

export const EVENT_TYPES = ["application/json", "application/cloudevents+json"] as const;

/** In binary mode the attributes are headers and the body is the data. */
export const isBinaryMode = (header: (name: string) => string | undefined): boolean =>
  header("ce-specversion") !== undefined || header("ce-id") !== undefined;

export function envelopeOf(headers: Readonly<Record<string, string>>, bytes: Uint8Array): Record<string, unknown> {
  const envelope: Record<string, unknown> = {};
  for (const [name, value] of Object.entries(headers)) {
    if (name.startsWith("ce-")) envelope[name.slice(3)] = decoded(name, value);
  }
  assertText(envelope, "");
  if (bytes.byteLength === 0) return envelope;
  const contentType = headers["content-type"];
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
