/** Messages from outside → CloudEvents. Pure. */
import { createHash } from "node:crypto";
import { Fault } from "../../contracts/errors.ts";
import type { CloudEvent } from "../../contracts/events.ts";
import { type Mapping, placesIn, pointerPath, type Preset } from "../../contracts/ingestion.ts";
import { isValidation, shown } from "../../contracts/validation.ts";
import { envelopeOf, isBinaryMode } from "../../runtime/cloudevents.ts";
import { mediaTypeOf, parseJson } from "../../runtime/json.ts";
import { accept } from "./accept.ts";
import { FORM_TYPE, parseForm } from "./form.ts";

/** A message before anybody looked into it. Header names are lower-case. */
export interface Message {
  readonly headers: Readonly<Record<string, string>>;
  readonly body: Uint8Array;
  readonly receivedAt: Date;
  /** Stands for the id of an event that brings none, before the hash of the body does. */
  readonly messageId?: string;
}

/** What a message is about, in the words of its sender; null where the sender does not say. */
interface Facts {
  readonly entity: unknown;
  readonly action: unknown;
  readonly entityId: unknown;
  readonly id: unknown;
  readonly subject?: unknown;
  readonly time: unknown;
  readonly body: unknown;
}

/** A sender may first ask for proof that we are there; one that shows the answer to somebody wants nothing in it. */
export type Mapped = { readonly event: CloudEvent; readonly quietly: boolean } | { readonly challenge: string };

/** By a preset; `mapping` is for the preset `custom`. Throws `invalid_event` for what cannot be mapped. */
export function mapWebhook(source: string, preset: Preset, mapping: Mapping | null, message: Message): Mapped {
  if (preset === "cloudevents") return { event: cloudEventIn(message), quietly: false };
  const isForm = mediaTypeOf(message.headers["content-type"]) === FORM_TYPE;
  const body = isForm ? asInvalidEvent(() => parseForm(message.body)) : jsonIn(message.body);
  if (preset === "slack" && at(body, "type") === "url_verification") {
    return { challenge: String(at(body, "challenge") ?? "") };
  }
  const facts = preset === "custom" ? factsBy(mapping!, body, message.headers) : factsOf[preset](body, message.headers);
  return { event: eventOf(source, facts, message), quietly: preset === "slack" && isForm };
}

/** A message of a connector: one that is a CloudEvent says so itself, any other is mapped. */
export function mapMessage(source: string, mapping: Mapping | null, message: Message): CloudEvent {
  const type = mediaTypeOf(message.headers["content-type"]);
  if (type === "application/cloudevents+json" || isBinaryMode((name) => message.headers[name])) {
    return cloudEventIn(message);
  }
  if (!mapping) throw refused("", type, "a CloudEvent, because this connector has no mapping");
  return eventOf(source, factsBy(mapping, jsonIn(message.body), message.headers), message);
}

const cloudEventIn = ({ headers, body }: Message): CloudEvent =>
  accept(isBinaryMode((name) => headers[name]) ? asInvalidEvent(() => envelopeOf(headers, body)) : jsonIn(body));

function eventOf(source: string, facts: Facts, { body, receivedAt, messageId }: Message): CloudEvent {
  const entity = word("entity", facts.entity);
  const action = word("action", facts.action);
  const entityId = textOf(facts.entityId) ?? null;
  const occurredAt = momentOf(facts.time) ?? receivedAt.toISOString();
  const subject = textOf(facts.subject) ?? (entityId === null ? undefined : `${entity}/${entityId}`);
  return accept({
    specversion: "1.0",
    type: `com.${source}.${entity}.${action}`,
    source,
    id: textOf(facts.id) ?? messageId ?? createHash("sha256").update(body).digest("hex"),
    ...(subject === undefined ? {} : { subject }),
    time: occurredAt,
    datacontenttype: "application/json",
    data: { source, entity, entity_id: entityId, action, occurred_at: occurredAt, body: facts.body },
  });
}

function factsBy(mapping: Mapping, body: unknown, headers: Message["headers"]): Facts {
  const value = (place: string | undefined) => place === undefined ? undefined : valueAt(place, body, headers);
  const data = mapping.data === undefined ? body : pointed(body, pointerPath(mapping.data));
  if (data === undefined) throw refused("data", null, `a value at ${mapping.data}`);
  return {
    entity: value(mapping.entity) ?? missing(mapping.entity),
    action: value(mapping.action) ?? missing(mapping.action),
    entityId: value(mapping.entity_id),
    id: value(mapping.id),
    subject: value(mapping.subject),
    time: value(mapping.time),
    body: data,
  };
}

/** Undefined as soon as one of its parts is nowhere: half a text would be a wrong one. */
function valueAt(place: string, body: unknown, headers: Message["headers"]): unknown {
  const parts = placesIn(place) ?? [];
  const values = parts.map((part) =>
    part.kind === "text" ? part.text : part.kind === "header" ? headers[part.name] : pointed(body, part.path)
  );
  if (values.length === 1) return values[0];
  const texts = values.map(textOf);
  return texts.includes(undefined) ? undefined : texts.join("");
}

const pointed = (value: unknown, path: readonly string[]): unknown => path.reduce(at, value);

/** Own fields only: what every object inherits is not in the message. */
function at(value: unknown, key: string): unknown {
  if (Array.isArray(value)) return /^(0|[1-9]\d*)$/.test(key) ? value[Number(key)] : undefined;
  if (typeof value !== "object" || value === null || !Object.hasOwn(value, key)) return undefined;
  return (value as Record<string, unknown>)[key];
}

type Sender = Exclude<Preset, "custom" | "cloudevents">;
const factsOf: Record<Sender, (body: unknown, headers: Message["headers"]) => Facts> = {
  /** The kind of event is a header; most bodies hold the thing it is about under the same name. */
  github(body, headers) {
    const event = headers["x-github-event"];
    const thing = at(body, event === "issues" ? "issue" : event ?? "");
    const repository = textOf(pointed(body, ["repository", "full_name"]));
    const number = textOf(at(thing, "number"));
    return {
      entity: event ?? missing("header:x-github-event"),
      action: at(body, "action") ?? githubActions[event ?? ""] ?? "received",
      entityId: repository && number ? `${repository}#${number}` : textOf(at(thing, "id")) ?? repository,
      id: headers["x-github-delivery"],
      time: at(thing, "updated_at") ?? pointed(body, ["head_commit", "timestamp"]),
      body,
    };
  },

  /** `customer.subscription.created`: the last word is what happened to the rest. */
  stripe(body) {
    const type = textOf(at(body, "type")) ?? "";
    const dot = type.lastIndexOf(".");
    return {
      entity: dot > 0 ? type.slice(0, dot) : missing("/type"),
      action: type.slice(dot + 1),
      entityId: pointed(body, ["data", "object", "id"]),
      id: at(body, "id"),
      time: at(body, "created"),
      body,
    };
  },

  /** Events are JSON around an `event`; what a person did in Slack is a form, and has it all at the top. */
  slack(body) {
    const command = textOf(at(body, "command"))?.replace(/^\//, "");
    if (command !== undefined) {
      return {
        entity: "slash_command",
        action: isWord(command) ? command : "received",
        entityId: textOf(at(body, "channel_id")) ?? at(body, "user_id"),
        id: undefined,
        time: undefined,
        body,
      };
    }
    const event = at(body, "event") ?? body;
    const [channel, ts, user] = ["channel", "ts", "user"].map((key) => at(event, key));
    return {
      entity: at(event, "type") ?? at(body, "type") ?? missing("/event/type"),
      action: at(event, "subtype") ?? "received",
      entityId: textOf(channel) && textOf(ts)
        ? `${channel}:${ts}`
        : textOf(channel) ?? at(channel, "id") ?? textOf(user) ?? at(user, "id"),
      id: at(body, "event_id"),
      time: at(body, "event_time") ?? at(body, "action_ts"),
      body,
    };
  },
};

/** Events of GitHub whose body has no `action`. */
const githubActions: Record<string, string> = {
  push: "pushed",
  create: "created",
  delete: "deleted",
  fork: "forked",
  ping: "pinged",
};

const textOf = (value: unknown): string | undefined =>
  typeof value === "string" && value !== "" ? value : typeof value === "number" ? String(value) : undefined;

/** A word of an event type. It may have dots inside; it may not smuggle in anything a glob would trip over. */
function word(field: string, value: unknown): string {
  if (value instanceof Missing) throw refused(field, null, `text at ${value.place}`);
  const text = textOf(value);
  if (text !== undefined && isWord(text)) return text;
  throw refused(field, value, "up to 100 letters, digits, underscores and hyphens, in words parted by dots");
}

const isWord = (text: string) => text.length <= 100 && /^[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*$/.test(text);

/** ISO 8601, or seconds or milliseconds since 1970; the latter are above 10¹¹, which in seconds is the year 5138. */
function momentOf(value: unknown): string | undefined {
  if (value === undefined || value === null) return undefined;
  const isNumber = typeof value === "number" || (typeof value === "string" && /^\d{1,16}(\.\d{1,9})?$/.test(value));
  const date = isNumber
    ? new Date(Number(value) > 1e11 ? Number(value) : Number(value) * 1_000)
    : typeof value === "string" && /^\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d(:\d\d(\.\d+)?)?([Zz]|[+-]\d\d:?\d\d)$/.test(value)
    ? new Date(value)
    : undefined;
  if (date && !Number.isNaN(date.getTime())) return date.toISOString();
  throw refused("time", value, "an ISO 8601 date-time with a time zone, or seconds or milliseconds since 1970");
}

class Missing {
  readonly place: string;
  constructor(place: string) {
    this.place = place;
  }
}
const missing = (place: string) => new Missing(place);

const jsonIn = (bytes: Uint8Array): unknown => asInvalidEvent(() => parseJson(bytes));

/** What the edge would call a bad request is, in a message that was signed, an event that cannot be read. */
function asInvalidEvent<T>(read: () => T): T {
  try {
    return read();
  } catch (thrown) {
    if (!isValidation(thrown)) throw thrown;
    const { field, value, expected } = thrown.details;
    throw refused(field, value, expected);
  }
}

const refused = (field: string, value: unknown, expected: string) =>
  new Fault("invalid_event", `${field || "The message"} is not valid: expected ${expected}`, {
    field,
    value: shown(value),
    expected,
  });
