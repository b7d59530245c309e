/** An AMQP 1.0 message → headers and bytes, as ingest reads whatever comes from outside. Pure. */
import type { Message } from "rhea-promise";
import type { Foreign } from "../../contracts/ingestion.ts";

/** As much as an event may have that is published over HTTP. */
export const MAX_BODY_BYTES = 1024 * 1024;

export interface Received extends Foreign {
  readonly message_id?: string;
}

/**
 * Application properties become headers. Those of the CloudEvents binding, `cloudEvents:id` or `cloudEvents_id`, become
 * what they are over HTTP, `ce-id`; the message's own properties get names such as `amqp-subject`.
 */
export function receivedIn(message: Message): Received {
  const headers: Record<string, string> = {};
  for (const name of ["subject", "correlation_id", "reply_to", "creation_time", "group_id", "to"] as const) {
    const text = textOf(message[name]);
    if (text !== undefined) headers[`amqp-${name.replaceAll("_", "-")}`] = text;
  }
  for (const [name, value] of Object.entries(message.application_properties ?? {})) {
    const text = textOf(value);
    if (text === undefined) continue;
    const [, attribute] = /^cloudEvents[:_](.+)$/i.exec(name) ?? [];
    // Over HTTP these are percent-encoded, and are read as such.
    if (attribute) headers[`ce-${attribute.toLowerCase()}`] = encodeURIComponent(text.toWellFormed());
    else headers[name.toLowerCase()] = text;
  }
  const { bytes, isValue } = bodyOf(message.body);
  const contentType = textOf(message.content_type) ?? (isValue ? "application/json" : undefined);
  if (contentType) headers["content-type"] = contentType;
  const id = textOf(message.message_id);
  return { headers, body: bytes.toString("base64"), ...(id ? { message_id: id } : {}) };
}

/** A data section is bytes, a text is its bytes, and any other value is written as JSON. */
function bodyOf(body: unknown): { bytes: Buffer; isValue: boolean } {
  if (body === undefined || body === null) return { bytes: Buffer.alloc(0), isValue: false };
  if (Buffer.isBuffer(body)) return { bytes: body, isValue: false };
  if (typeof body === "string") return { bytes: Buffer.from(body), isValue: false };
  const { typecode, content, multiple } = body as { typecode?: number; content?: unknown; multiple?: boolean };
  if (typecode === 0x75) {
    return { bytes: multiple ? Buffer.concat(content as Buffer[]) : content as Buffer, isValue: false };
  }
  return { bytes: Buffer.from(JSON.stringify(typecode === 0x76 ? content : body)), isValue: true };
}

function textOf(value: unknown): string | undefined {
  if (typeof value === "string") return value === "" ? undefined : value;
  if (typeof value === "number" || typeof value === "boolean" || typeof value === "bigint") return String(value);
  if (value instanceof Date) return value.toISOString();
  // A uuid or a binary id: 16 bytes or so.
  if (Buffer.isBuffer(value)) return value.toString("hex");
  return undefined;
}
