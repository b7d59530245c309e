/** Bytes from outside → a JSON value that is safe to look at: bounded in depth, well-formed text. */
import { invalid } from "../contracts/errors.ts";
import { shown } from "../contracts/validation.ts";

const MAX_DEPTH = 64;

/** `Application/JSON; charset=utf-8` is `application/json`. */
export const mediaTypeOf = (contentType: string | undefined): string =>
  (contentType ?? "").split(";", 1)[0]!.trim().toLowerCase();

const decoder = new TextDecoder("utf-8", { fatal: true });

export function parseJson(bytes: Uint8Array): unknown {
  if (bytes.byteLength === 0) throw unreadable("nothing", "a JSON body");
  let text: string;
  try {
    text = decoder.decode(bytes);
  } catch {
    throw unreadable("bytes that are not UTF-8", "a JSON body in UTF-8");
  }
  assertDepth(text);
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw unreadable((error as Error).message, "a well-formed JSON body");
  }
  // JSON can spell what UTF-8 cannot; only then is a walk through the value worth its time.
  if (text.includes("\\u")) assertText(value, "");
  return value;
}

const unreadable = (value: string, expected: string) =>
  invalid({ field: "body", value: shown(value), expected, example: {} });

/** Counted before parsing: what comes after recurses, and a deep enough body would overflow its stack. */
function assertDepth(text: string): void {
  let depth = 0;
  let quoted = false;
  for (let i = 0; i < text.length; i++) {
    const code = text.charCodeAt(i);
    if (quoted) {
      if (code === 92) i++;
      else if (code === 34) quoted = false;
    } else if (code === 34) quoted = true;
    else if (code === 123 || code === 91) {
      if (++depth > MAX_DEPTH) {
        throw unreadable(`nesting deeper than ${MAX_DEPTH}`, `a body nested at most ${MAX_DEPTH} deep`);
      }
    } else if (code === 125 || code === 93) depth--;
  }
}

/** Neither NUL nor half a surrogate pair: no database takes them, and nobody means them. */
export function assertText(value: unknown, field: string): void {
  if (typeof value === "string") {
    if (value.includes("\0") || !value.isWellFormed()) {
      throw invalid({
        field: field || "body",
        value: shown(value.toWellFormed().replaceAll("\0", "\\u0000")),
        expected: "text without NUL characters and lone surrogates",
        example: "text",
      });
    }
  } else if (Array.isArray(value)) {
    value.forEach((item, i) => assertText(item, `${field}[${i}]`));
  } else if (typeof value === "object" && value !== null) {
    for (const [key, item] of Object.entries(value)) {
      assertText(key, field || key);
      assertText(item, field ? `${field}.${key}` : key);
    }
  }
}
