import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { Fault } from "../../contracts/errors.ts";
import { eventMsgId } from "../../contracts/pipeline.ts";
import { accept } from "../../services/ingest/accept.ts";

const whole = { specversion: "1.0", type: "com.example.order.created", source: "https://example.com/shop", id: "1" };

describe("an envelope that is refused names its field", () => {
  const without = (name: string) => Object.fromEntries(Object.entries(whole).filter(([key]) => key !== name));
  test.each([
    ["no type", without("type"), "type"],
    ["no source", without("source"), "source"],
    ["no id", without("id"), "id"],
    ["no specversion", without("specversion"), "specversion"],
    ["a null type", { ...whole, type: null }, "type"],
    ["an empty type", { ...whole, type: "" }, "type"],
    ["a type that is a number", { ...whole, type: 7 }, "type"],
    ["a type with a line end", { ...whole, type: "com.\nexample" }, "type"],
    ["a type of 257 characters", { ...whole, type: "x".repeat(257) }, "type"],
    ["an empty id", { ...whole, id: "" }, "id"],
    ["an id of 257 characters", { ...whole, id: "x".repeat(257) }, "id"],
    ["an id with half a letter", { ...whole, id: "\ud800" }, "id"],
    ["specversion 0.3", { ...whole, specversion: "0.3" }, "specversion"],
    ["specversion as a number", { ...whole, specversion: 1.0 }, "specversion"],
    ["an empty source", { ...whole, source: "" }, "source"],
    ["a source with a space", { ...whole, source: "my shop" }, "source"],
    ["a source with a broken escape", { ...whole, source: "/shop%2" }, "source"],
    ["a source with two fragments", { ...whole, source: "/a#b#c" }, "source"],
    ["a source with a scheme that is none", { ...whole, source: "1a:b" }, "source"],
    ["a time that is none", { ...whole, time: "yesterday" }, "time"],
    ["a time without zone", { ...whole, time: "2026-01-31T12:00:00" }, "time"],
    ["the 30th of February", { ...whole, time: "2026-02-30T12:00:00Z" }, "time"],
    ["a time that is a number", { ...whole, time: 1_700_000_000 }, "time"],
    ["an empty subject", { ...whole, subject: "" }, "subject"],
    ["a content type that is none", { ...whole, datacontenttype: "json" }, "datacontenttype"],
    ["a relative dataschema", { ...whole, dataschema: "/schema" }, "dataschema"],
    ["data in two forms", { ...whole, data: 1, data_base64: "AA==" }, "data_base64"],
    ["data_base64 that is none", { ...whole, data_base64: "%%" }, "data_base64"],
    ["a list", [whole], ""],
    ["a text", "event", ""],
    ["nothing", undefined, ""],
    ["null", null, ""],
  ])("%s", (_, sent, field) => {
    const fault = refusalOf(sent);
    expect(fault).toMatchObject({ code: "invalid_event", details: { field, expected: expect.any(String) } });
    expect(Object.keys(fault!.details).sort()).toEqual(["expected", "field", "value"]);
  });
  test("in a batch, with its place", () => {
    expect(() => accept({ ...whole, type: "" }, "[3]")).toThrow(expect.objectContaining({
      details: expect.objectContaining({ field: "[3].type" }),
    }));
  });
});

describe("an envelope that is taken", () => {
  test("without the fields that no CloudEvent can have", () => {
    expect(accept({ ...whole, traceParent: "x", my_field: "x", extension: {}, kept: "x" })).toEqual({
      ...whole,
      kept: "x",
    });
  });
  test.each([
    ["with what is required", whole],
    ["with everything", {
      ...whole,
      time: "2026-01-31T12:00:00.123+01:00",
      datacontenttype: "application/json; charset=utf-8",
      dataschema: "https://example.com/schema",
      subject: "order/1",
      data: { nested: [1, null, "x"] },
      traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
      partition1: 5,
      sampled: true,
    }],
    ["with data of null", { ...whole, data: null }],
    ["with data of any kind", { ...whole, data: "text" }],
    ["with binary data", { ...whole, data_base64: "AAEC" }],
    ["with a plain word as source", { ...whole, source: "dashboard.test-event" }],
    ["with a urn as source", { ...whole, source: "urn:uuid:6e8bc430-9c3a-11d9-9669-0800200c9a66" }],
    ["with a type that is not reverse DNS", { ...whole, type: "Order placed ✓" }],
    ["with an id in any script", { ...whole, id: " заказ 1 🦊 " }],
  ])("%s is stored as it came", (_, sent) => expect(accept(sent)).toEqual(sent));
  test("loses the attributes that are null", () => {
    expect(accept({ ...whole, subject: null, time: null, extension: null })).toEqual(whole);
  });
});

test("whatever is sent is taken or refused with a reason, and nothing else happens", () => {
  const attribute = fc.constantFrom(
    ...Object.keys(whole),
    "time",
    "subject",
    "data",
    "__proto__",
    "constructor",
    "ext",
  );
  fc.assert(
    fc.property(fc.anything(), fc.dictionary(attribute, fc.anything()), (anything, changes) => {
      for (const sent of [anything, { ...whole, ...changes }]) expect(["taken", "invalid_event"]).toContain(try_(sent));
    }),
  );
});

test("two ids have one name only when they are the same id", () => {
  const id = fc.string({ unit: fc.constantFrom("a", "%", " ", ":", "é", "\u{1f98a}", "2", "0"), minLength: 1 });
  fc.assert(fc.property(id, id, (one, two) => {
    const name = eventMsgId("ten_a", one);
    expect(name === eventMsgId("ten_a", two)).toBe(one === two);
    expect(name).toMatch(/^[\x21-\x7e]+$/);
  }));
});

function refusalOf(sent: unknown): Fault | undefined {
  try {
    accept(sent);
  } catch (error) {
    if (error instanceof Fault) return error as Fault;
    throw error;
  }
}

const try_ = (sent: unknown) => refusalOf(sent)?.code ?? "taken";
