/** Bodies as forms send them: a JSON text in the field `payload`, or else the fields themselves. Pure. */
import { invalid } from "../../contracts/errors.ts";
import { shown } from "../../contracts/validation.ts";
import { assertText, parseJson } from "../../runtime/json.ts";

export const FORM_TYPE = "application/x-www-form-urlencoded";

/** More than any sender's form has; each costs some work, and a body of a megabyte could hold half a million. */
const MAX_FIELDS = 1_000;

export function parseForm(bytes: Uint8Array): unknown {
  const fields = fieldsIn(bytes);
  const { payload } = fields;
  const isJson = typeof payload === "string" && /^\s*[[{]/.test(payload);
  return isJson ? parseJson(encoder.encode(payload)) : fields;
}

/** A field that comes more than once is a list of what came, in that order. */
function fieldsIn(bytes: Uint8Array): Record<string, string | string[]> {
  const pairs = textIn(bytes).split("&").filter((pair) => pair !== "");
  if (pairs.length > MAX_FIELDS) throw unreadable(`${pairs.length} fields`, `a form of at most ${MAX_FIELDS} fields`);
  const fields = new Map<string, string | string[]>();
  for (const pair of pairs) {
    const equals = pair.indexOf("=");
    const name = decoded(equals < 0 ? pair : pair.slice(0, equals));
    const value = decoded(equals < 0 ? "" : pair.slice(equals + 1));
    const before = fields.get(name);
    fields.set(name, before === undefined ? value : [...typeof before === "string" ? [before] : before, value]);
  }
  // Unlike an assignment it makes a field of every name, `__proto__` too.
  const form = Object.fromEntries(fields);
  assertText(form, "");
  return form;
}

function textIn(bytes: Uint8Array): string {
  try {
    return decoder.decode(bytes);
  } catch {
    throw unreadable("bytes that are not UTF-8", "a form in UTF-8");
  }
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text.replaceAll("+", " "));
  } catch {
    throw unreadable(text, "a form with whole escapes, in UTF-8");
  }
}

const unreadable = (value: string, expected: string) =>
  invalid({ field: "body", value: shown(value), expected, example: "action=paid&id=1" });

const decoder = new TextDecoder("utf-8", { fatal: true });
const encoder = new TextEncoder();
