/** Messages from outside become events as the mapping or the preset says, or are refused with the reason. */
import { createHash } from "node:crypto";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { Fault } from "../../contracts/errors.ts";
import type { CloudEvent } from "../../contracts/events.ts";
import { Mapping, placesIn, type Preset, presets } from "../../contracts/ingestion.ts";
import { mapMessage, mapWebhook } from "../../services/ingest/webhook-map.ts";
import { sampleOf } from "../../services/ingest/webhook-sample.ts";

const receivedAt = new Date("2026-05-01T12:00:00.000Z");
const hash = (text: string) => createHash("sha256").update(text).digest("hex");

function mapped(
  mapping: Mapping | null,
  body: unknown,
  options: { preset?: Preset; headers?: Record<string, string>; source?: string } = {},
): CloudEvent {
  const { preset = "custom", headers = {}, source = "shop" } = options;
  const bytes = Buffer.from(typeof body === "string" ? body : JSON.stringify(body));
  const result = mapWebhook(source, preset, mapping, { headers, body: bytes, receivedAt });
  if (!("event" in result)) throw new Error("a challenge");
  return result.event;
}

function refusal(work: () => unknown): { code: string; field: string; expected: string } {
  try {
    work();
  } catch (thrown) {
    if (thrown instanceof Fault) return { code: thrown.code, ...thrown.details as { field: string; expected: string } };
    throw thrown;
  }
  throw new Error("It was not refused");
}

const whole: Mapping = {
  entity: "order",
  action: "/action",
  entity_id: "/order/id",
  id: "/event_id",
  subject: "orders/{/order/id}",
  time: "/at",
  data: "/order",
};

describe("a mapping", () => {
  test("fills type, id, subject, time and the normalized data", () => {
    const body = { action: "paid", event_id: "e-1", at: "2026-04-30T10:00:00+02:00", order: { id: 7, total: 12.5 } };
    expect(mapped(whole, body)).toEqual({
      specversion: "1.0",
      type: "com.shop.order.paid",
      source: "shop",
      id: "e-1",
      subject: "orders/7",
      time: "2026-04-30T08:00:00.000Z",
      datacontenttype: "application/json",
      data: {
        source: "shop",
        entity: "order",
        entity_id: "7",
        action: "paid",
        occurred_at: "2026-04-30T08:00:00.000Z",
        body: { id: 7, total: 12.5 },
      },
    });
  });

  test("of entity and action alone: the id is the hash of the bytes, the time that of receipt, the data the body", () => {
    const text = '{ "a" : "made" }';
    const event = mapped({ entity: "thing", action: "/a" }, text);
    expect(event).toMatchObject({ id: hash(text), time: receivedAt.toISOString(), type: "com.shop.thing.made" });
    expect(event).not.toHaveProperty("subject");
    expect(event.data).toMatchObject({ entity_id: null, body: { a: "made" } });
    expect(mapped({ entity: "thing", action: "/a" }, '{"a":"made"}').id).not.toBe(event.id);
  });

  test("whose id is not in this body falls back to the hash", () => {
    const text = '{"a":"made"}';
    for (const id of ["/event_id", "/a/b", "shop-{/nowhere}", "header:x-id"]) {
      expect(mapped({ entity: "thing", action: "/a", id }, text).id, id).toBe(hash(text));
    }
  });

  test.each([
    ["a pointer with escapes", "/a~1b/~0c", { "a/b": { "~c": "x" } }, {}, "x"],
    ["a pointer into a list", "/list/1", { list: ["w", "x"] }, {}, "x"],
    ["a pointer to the empty name", "/", { "": "x" }, {}, "x"],
    ["a number", "/n", { n: 12 }, {}, "12"],
    ["a header, whatever its case", "header:X-Event", {}, { "x-event": "x" }, "x"],
    ["a constant", "x", {}, {}, "x"],
    ["a text with places", "a-{/n}-{header:x-event}", { n: 1 }, { "x-event": "x" }, "a-1-x"],
  ])("reads %s", (_, place, body, headers, expected) => {
    expect(mapped({ entity: "e", action: place }, body, { headers }).type).toBe(`com.shop.e.${expected}`);
  });

  test.each([
    ["missing", {}],
    ["null", { a: null }],
    ["an object", { a: {} }],
    ["a list", { a: ["x"] }],
    ["empty", { a: "" }],
    ["a boolean", { a: true }],
    ["with a space", { a: "x y" }],
    ["with a star", { a: "x.*" }],
    ["with a dot at its end", { a: "x." }],
    ["with a line end", { a: "x\n" }],
    ["too long", { a: "x".repeat(101) }],
    ["what every object inherits", { toString: undefined }],
  ])("refuses an action that is %s", (_, body) => {
    const place = "toString" in body && Object.hasOwn(body, "toString") ? "/constructor" : "/a";
    expect(refusal(() => mapped({ entity: "e", action: place }, body))).toMatchObject({
      code: "invalid_event",
      field: "action",
    });
  });

  test.each([
    ["ISO with an offset", "2026-04-30T10:00:00+02:00"],
    ["ISO in UTC", "2026-04-30T08:00:00Z"],
    ["seconds", 1777536000],
    ["seconds in text, with a fraction", "1777536000.000200"],
    ["milliseconds", 1777536000000],
  ])("reads a time in %s", (_, at) => {
    const event = mapped({ ...whole, data: undefined }, { action: "a", at, order: { id: 1 } });
    expect(event.time).toBe("2026-04-30T08:00:00.000Z");
  });

  test.each([["yesterday"], ["2026-04-30"], ["2026-04-30T08:00:00"], [{}], [true], ["2026-99-99T00:00:00Z"]])(
    "refuses the time %j",
    (at) => {
      expect(refusal(() => mapped({ ...whole, data: undefined }, { action: "a", at })).field).toBe("time");
    },
  );

  test.each([
    ["is not JSON", "<xml/>"],
    ["is empty", ""],
    ["is too deep", `${"[".repeat(65)}${"]".repeat(65)}`],
    ["holds a NUL", '{"a":"x\\u0000"}'],
    ["is a list", "[]"],
    ["is a word", '"made"'],
    ["has no data where the mapping says", '{"action":"x"}'],
  ])("refuses a body that %s", (_, text) => {
    expect(refusal(() => mapped({ ...whole, entity: "e" }, text)).code).toBe("invalid_event");
  });

  test.each(["{/a", "/a}~2", "{}", "{b}", "header:", "header:a b", "/a~2", ""])(
    "with the place %j is refused when it is registered",
    (place) => {
      expect(Mapping.safeParse({ entity: place, action: "x" }).success).toBe(false);
    },
  );

  test("knows its places", () => {
    expect(placesIn("a{/b}c")).toEqual([
      { kind: "text", text: "a" },
      { kind: "pointer", path: ["b"] },
      { kind: "text", text: "c" },
    ]);
  });
});

describe("presets", () => {
  const github = (event: string, body: unknown) =>
    mapped(null, body, {
      preset: "github",
      source: "github",
      headers: { "x-github-event": event, "x-github-delivery": "72d3162e-cc78-11e3-81ab-4c9367dc0958" },
    });

  test("GitHub: the event is in a header, the action in the body", () => {
    const event = github("pull_request", {
      action: "opened",
      number: 5,
      pull_request: { id: 99, number: 5, updated_at: "2026-04-30T08:00:00Z" },
      repository: { full_name: "octocat/hello" },
    });
    expect(event).toMatchObject({
      type: "com.github.pull_request.opened",
      id: "72d3162e-cc78-11e3-81ab-4c9367dc0958",
      subject: "pull_request/octocat/hello#5",
      time: "2026-04-30T08:00:00.000Z",
    });
    expect(github("issues", { action: "closed", issue: { number: 3 }, repository: { full_name: "a/b" } }))
      .toMatchObject({
        type: "com.github.issues.closed",
        data: { entity_id: "a/b#3" },
      });
    expect(github("push", { ref: "refs/heads/main", head_commit: { timestamp: "2026-04-30T10:00:00+02:00" } }))
      .toMatchObject({ type: "com.github.push.pushed", time: "2026-04-30T08:00:00.000Z" });
    expect(github("something_new", {}).type).toBe("com.github.something_new.received");
  });

  test("Stripe: the last word of the type is the action", () => {
    const event = mapped(null, {
      id: "evt_1",
      type: "customer.subscription.updated",
      created: 1777536000,
      data: { object: { id: "sub_1" } },
    }, { preset: "stripe", source: "stripe" });
    expect(event).toMatchObject({
      type: "com.stripe.customer.subscription.updated",
      id: "evt_1",
      subject: "customer.subscription/sub_1",
      time: "2026-04-30T08:00:00.000Z",
      data: { entity: "customer.subscription", action: "updated", entity_id: "sub_1" },
    });
    expect(refusal(() => mapped(null, { id: "evt_1" }, { preset: "stripe" })).field).toBe("entity");
  });

  test("Slack: the event inside, and the challenge before any", () => {
    const body = {
      type: "event_callback",
      event_id: "Ev0PV52K21",
      event_time: 1777536000,
      event: { type: "message", subtype: "message_changed", channel: "C1", ts: "1777536000.000200" },
    };
    expect(mapped(null, body, { preset: "slack", source: "slack" })).toMatchObject({
      type: "com.slack.message.message_changed",
      id: "Ev0PV52K21",
      subject: "message/C1:1777536000.000200",
      time: "2026-04-30T08:00:00.000Z",
    });
    const challenge = Buffer.from(JSON.stringify({ type: "url_verification", challenge: "3eZbrw1a" }));
    expect(mapWebhook("slack", "slack", null, { headers: {}, body: challenge, receivedAt })).toEqual({
      challenge: "3eZbrw1a",
    });
  });

  const event = { specversion: "1.0", id: "1", type: "com.x.y.z", source: "/x", data: { a: 1 } };
  test("CloudEvents stay as they are, structured and binary", () => {
    expect(mapped(null, event, { preset: "cloudevents" })).toEqual(event);
    const headers = {
      "ce-specversion": "1.0",
      "ce-id": "1",
      "ce-type": "com.x.y.z",
      "ce-source": "/x",
      "content-type": "application/json",
    };
    expect(mapped(null, { a: 1 }, { preset: "cloudevents", headers })).toEqual({
      ...event,
      datacontenttype: "application/json",
    });
    expect(refusal(() => mapped(null, { ...event, id: undefined }, { preset: "cloudevents" })).field).toBe("id");
  });

  test.each(presets)("%s: the sample of `webhook test` maps", (preset) => {
    const mapping = preset === "custom" ? { ...whole, entity: "/list/0/kind", action: "{header:x-verb}ed" } : null;
    const sample = sampleOf(preset, mapping, "01seed", receivedAt);
    const result = mapped(mapping, sample.body, { preset, headers: { ...sample.headers } });
    expect(result.type).toMatch(/^com\./);
    expect(result.id).toContain("01seed");
  });
});

describe("a form", () => {
  const headers = { "content-type": "application/x-www-form-urlencoded; charset=utf-8" };
  const by: Mapping = { entity: "form", action: "sent" };
  const bodyOf = (text: string) => (mapped(by, text, { headers }).data as { body: unknown }).body;

  test.each<[string, unknown]>([
    ["a=1&b=two+words&c=%C3%A4%26%3D", { a: "1", b: "two words", c: "ä&=" }],
    ["a=1&b=x&a=2&a=", { a: ["1", "2", ""], b: "x" }],
    ["flag&=nameless&&a=b=c", { flag: "", "": "nameless", a: "b=c" }],
    ["payload=%7B%22a%22%3A%5B1%5D%7D", { a: [1] }],
    ["token=x&payload=+%5B1%5D", [1]],
    ["payload=plain&a=1", { payload: "plain", a: "1" }],
    ["payload=%7B%7D&payload=%7B%7D", { payload: ["{}", "{}"] }],
    ["", {}],
  ])("%j is read", (text, body) => expect(bodyOf(text)).toEqual(body));

  test("has fields of every name, and none that it was not sent", () => {
    const body = bodyOf("__proto__=1&constructor=2");
    expect(Object.entries(body as object)).toEqual([["__proto__", "1"], ["constructor", "2"]]);
    expect(refusal(() => mapped({ entity: "/toString", action: "x" }, "a=1", { headers })).field).toBe("entity");
  });

  test.each([
    ["a broken escape", "a=%zz"],
    ["half a letter", "a=%C3"],
    ["a NUL", "a=%00"],
    ["a payload that is no JSON although it begins like some", "payload=%7B%22a%22"],
    ["a payload nested too deep", `payload=${"[".repeat(65)}${"]".repeat(65)}`],
    ["more than a thousand fields", "a=1&".repeat(1_001)],
  ])("with %s is refused", (_, text) => {
    expect(refusal(() => mapped(by, text, { headers })).code).toBe("invalid_event");
  });

  test("of Slack is a command or what a person did, and is answered without a word", () => {
    const slack = (fields: Record<string, string>) => {
      const body = Buffer.from(new URLSearchParams(fields).toString());
      return mapWebhook("slack", "slack", null, { headers, body, receivedAt });
    };
    const command = { command: "/weather", text: "94070 & more", user_id: "U1", channel_id: "C1", trigger_id: "13345" };
    expect(slack(command)).toMatchObject({
      quietly: true,
      event: { type: "com.slack.slash_command.weather", subject: "slash_command/C1", data: { body: command } },
    });
    expect(slack({ ...command, command: "/süß" })).toMatchObject({
      event: { type: "com.slack.slash_command.received" },
    });
    const payload = { type: "shortcut", callback_id: "x", user: { id: "U1" }, action_ts: "1777536000.000200" };
    expect(slack({ payload: JSON.stringify(payload) })).toMatchObject({
      quietly: true,
      event: {
        type: "com.slack.shortcut.received",
        subject: "shortcut/U1",
        time: "2026-04-30T08:00:00.000Z",
        data: { body: payload },
      },
    });
  });
});

describe("a message of a connector", () => {
  const message = (headers: Record<string, string>, text: string, messageId?: string) => ({
    headers,
    body: Buffer.from(text),
    receivedAt,
    messageId,
  });
  const mapping: Mapping = { entity: "order", action: "/action", id: "/id" };

  test("that is a CloudEvent is taken as one, mapping or not", () => {
    const event = { specversion: "1.0", id: "1", type: "com.x.y.z", source: "/x", data: 1 };
    const headers = { "content-type": "application/cloudevents+json; charset=utf-8" };
    for (const by of [mapping, null]) {
      expect(mapMessage("s", by, message(headers, JSON.stringify(event)))).toEqual(event);
    }
  });

  test("is named by its body, else by its own id, else by its hash", () => {
    const ids = [
      mapMessage("s", mapping, message({}, '{"action":"a","id":"b-1"}', "m-1")).id,
      mapMessage("s", mapping, message({}, '{"action":"a"}', "m-1")).id,
      mapMessage("s", mapping, message({}, '{"action":"a"}')).id,
    ];
    expect(ids).toEqual(["b-1", "m-1", hash('{"action":"a"}')]);
  });

  test("that is no CloudEvent is refused without a mapping", () => {
    expect(refusal(() => mapMessage("s", null, message({}, "{}"))).code).toBe("invalid_event");
  });
});

describe("whatever is in a body", () => {
  const place = fc.constantFrom(
    "/a",
    "/a/0",
    "/__proto__",
    "/constructor/name",
    "/a/b/c",
    "x",
    "{/a}-{/b}",
    "header:h",
  );
  const field = fc.oneof(
    { arbitrary: fc.constantFrom("a", "b", "__proto__", "type", "event"), weight: 3 },
    fc.string(),
  );
  const body = fc.oneof(fc.dictionary(field, fc.jsonValue()), fc.jsonValue());
  const only = (work: () => CloudEvent) => {
    try {
      const event = work();
      expect(event.type).toMatch(/^com\.shop\.[\w-]+(\.[\w-]+)+$/);
      expect(event.id.length).toBeGreaterThan(0);
    } catch (thrown) {
      if (!(thrown instanceof Fault)) throw thrown;
      expect(thrown.code).toBe("invalid_event");
    }
  };

  test("a mapping gives an event or says invalid_event", () => {
    const mapping = fc.record({ entity: place, action: place, id: place, time: place, subject: place }, {
      requiredKeys: ["entity", "action"],
    });
    fc.assert(
      fc.property(mapping, body, fc.string(), (by, value, h) => only(() => mapped(by, value, { headers: { h } }))),
    );
  });

  test("so it does for a form", () => {
    const headers = { "content-type": "application/x-www-form-urlencoded" };
    const text = fc.oneof(fc.string(), fc.webQueryParameters(), fc.string().map((json) => `payload={${json}`));
    fc.assert(fc.property(text, (value) => only(() => mapped({ entity: "/a", action: "sent" }, value, { headers }))));
  });

  test.each(["github", "stripe", "slack"] as const)("so does the preset %s", (preset) => {
    const headers = { "x-github-event": "issues" };
    fc.assert(fc.property(body, (value) => {
      fc.pre(!(preset === "slack" && (value as { type?: unknown } | null)?.type === "url_verification"));
      only(() => mapped(null, value, { preset, headers }));
    }));
  });
});
