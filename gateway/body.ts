/** Request bytes, bounded in size, and what they claim to be. */
import type { Context } from "hono";
import { Fault, invalid } from "../contracts/errors.ts";
import { shown } from "../contracts/validation.ts";
import { mediaTypeOf } from "../runtime/json.ts";

/** Reads the whole body, or throws `payload_too_large` as soon as it is known to be over. */
export async function readBody(c: Context, maxBytes: number): Promise<Uint8Array> {
  const declared = c.req.header("content-length");
  if (declared !== undefined) {
    if (Number(declared) > maxBytes) throw tooLarge(Number(declared), maxBytes);
    return new Uint8Array(await c.req.arrayBuffer());
  }
  const stream = c.req.raw.body;
  if (!stream) return new Uint8Array();
  const chunks: Uint8Array[] = [];
  let size = 0;
  for await (const chunk of stream) {
    size += chunk.byteLength;
    if (size > maxBytes) throw tooLarge(size, maxBytes);
    chunks.push(chunk);
  }
  return chunks.length === 1 ? chunks[0]! : Buffer.concat(chunks);
}

const tooLarge = (actual_size: number, max_size: number) =>
  new Fault("payload_too_large", `The body is over the limit of ${max_size} bytes`, { actual_size, max_size });

export function assertContentType(contentType: string | undefined, accepted: readonly string[]): void {
  if (accepted.includes(mediaTypeOf(contentType))) return;
  throw invalid({
    field: "content-type",
    value: shown(contentType),
    expected: accepted.join(" or "),
    example: accepted[0],
  });
}
