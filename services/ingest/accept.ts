/** Whether an envelope is a CloudEvents 1.0 event that we take. Pure. */
import { type CloudEvent } from "../../contracts/events.ts";
import { Fault } from "../../contracts/errors.ts";
import { Moment } from "../../contracts/fields.ts";
import { shown } from "../../contracts/validation.ts";

/** Gives the event as it is stored, or throws `invalid_event` for the first thing wrong. `at` names it in a batch. */
export function accept(sent: unknown, at = ""): CloudEvent {
  if (typeof sent !== "object" || sent === null || Array.isArray(sent)) throw refused(at, sent, "a CloudEvents object");
  // In the JSON format an attribute that is null is one that is not there.
  const event = Object.fromEntries(Object.entries(sent).filter(([name, value]) => value !== null || name === "data"));
  for (const [name, { expected, isRequired, holds }] of Object.entries(attributes)) {
    const value = event[name];
    if (value === undefined ? isRequired : !holds(value)) throw refused(field(at, name), value, expected);
  }
  for (const [name, value] of Object.entries(event)) {
    if (!Object.hasOwn(attributes, name) && name !== "data" && !isExtension(name, value)) delete event[name];
  }
  if (event.data !== undefined && event.data_base64 !== undefined) {
    throw refused(field(at, "data_base64"), event.data_base64, "either data or data_base64, not both");
  }
  return event as CloudEvent;
}

/** Any other field is one we do not know, and such fields are ignored. */
const isExtension = (name: string, value: unknown): boolean =>
  /^[a-z0-9]{1,64}$/.test(name) && ["string", "number", "boolean"].includes(typeof value);

interface Attribute {
  readonly expected: string;
  readonly isRequired?: true;
  readonly holds: (value: unknown) => boolean;
}

const attributes: Record<string, Attribute> = {
  specversion: { isRequired: true, expected: "exactly 1.0", holds: (value) => value === "1.0" },
  type: {
    isRequired: true,
    expected: "1 to 256 characters such as com.example.order.created, none of them control characters",
    holds: (value) => isText(value, 256),
  },
  source: {
    isRequired: true,
    expected: "a URI reference of 1 to 2048 characters",
    holds: (value) => isText(value, 2048) && isUriReference(value),
  },
  id: {
    isRequired: true,
    expected: "1 to 256 characters, none of them control characters",
    holds: (value) => isText(value, 256),
  },
  time: {
    expected: "an ISO 8601 date-time with a time zone",
    holds: (value) => typeof value === "string" && Moment.safeParse(value.toUpperCase()).success,
  },
  datacontenttype: {
    expected: "a media type such as application/json",
    holds: (value) => isText(value, 256) && /^[^\s/]+\/[^\s/;]+\s*(;.*)?$/.test(value),
  },
  dataschema: {
    expected: "an absolute URI of at most 2048 characters",
    holds: (value) => isText(value, 2048) && isUriReference(value) && /^[A-Za-z][A-Za-z0-9+.-]*:/.test(value),
  },
  subject: {
    expected: "1 to 1024 characters, none of them control characters",
    holds: (value) => isText(value, 1024),
  },
  data_base64: {
    expected: "text in base64",
    holds: (value) => typeof value === "string" && /^[A-Za-z0-9+/]*={0,2}$/.test(value) && value.length % 4 === 0,
  },
};

const isText = (value: unknown, max: number): value is string =>
  typeof value === "string" && value.length > 0 && value.length <= max && !/\p{Cc}/u.test(value) &&
  value.isWellFormed();

/** RFC 3986: its characters, whole escapes, one fragment, and a scheme before the first colon of the first segment. */
function isUriReference(text: string): boolean {
  if (!/^(?:[A-Za-z0-9\-._~:/?#[\]@!$&'()*+,;=]|%[0-9A-Fa-f]{2})+$/.test(text)) return false;
  if (text.indexOf("#") !== text.lastIndexOf("#")) return false;
  const first = /^[^/?#]*/.exec(text)![0];
  return !first.includes(":") || /^[A-Za-z][A-Za-z0-9+.-]*:/.test(first);
}

const field = (at: string, name: string) => at ? `${at}.${name}` : name;

const refused = (field: string, value: unknown, expected: string) =>
  new Fault("invalid_event", `${field || "The body"} is not valid: expected ${expected}`, {
    field,
    value: shown(value),
    expected,
  });
