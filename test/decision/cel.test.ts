import { describe, expect, test } from "vitest";
import { compileFilter, FilterFault, type FilterScope } from "../../runtime/cel.ts";

const event: FilterScope = {
  data: { total: 120, tags: ["new", "paid"], customer: { country: "NL" }, note: null, ratio: 0.5 },
  type: "com.shop.order.created",
  source: "https://shop.example.com",
  subject: null,
  id: "order-1",
  time: "2026-01-31T12:00:00Z",
};

describe("a filter's verdict on an event", () => {
  test.each([
    ["data.total > 100", "match"],
    ["data.total > 100.5", "match"],
    ["data.total + 1 == 121", "match"],
    ["data.total * data.ratio < 61", "match"],
    ["data.total <= 100", "no-match"],
    [`data.customer.country in ["NL", "BE"]`, "match"],
    [`"paid" in data.tags`, "match"],
    [`data.tags.exists(t, t == "new")`, "match"],
    [`data.tags.all(t, t.size() > 3)`, "no-match"],
    [`has(data.customer.country)`, "match"],
    [`has(data.missing)`, "no-match"],
    [`type == "com.shop.order.created"`, "match"],
    [`type.startsWith("com.shop.") && id == "order-1"`, "match"],
    ["subject == null", "match"],
    ["data.note == null", "match"],
    [`source.matches("^https://shop")`, "match"],
    [`data.customer.country == "DE" || data.total == 120`, "match"],
    ["data.missing > 1", "error"],
    ["data.customer.city.name == 'x'", "error"],
    ["data.tags > 3", "error"],
    ["data.total", "error"],
  ])("%s: %s", (source, verdict) => expect(compileFilter(source)(event)).toBe(verdict));
});

describe("a filter that is refused when it is made", () => {
  test.each([
    ["what does not parse", "data.total >", 12],
    ["what names the unknown", "total > 100", 0],
    ["what is no condition", `"text"`, 0],
    ["what is too long", "true || ".repeat(300) + "true", 2048],
    ["one comprehension inside another", "data.a.all(x, data.b.all(y, x == y))", 0],
  ])("%s", (_, source, position) => {
    expect(() => compileFilter(source)).toThrow(FilterFault);
    try {
      compileFilter(source);
    } catch (error) {
      expect((error as FilterFault).position).toBeGreaterThanOrEqual(Math.min(position, source.length) > 0 ? 1 : 0);
    }
  });
});

test("a pattern made to backtrack costs no more than any other", () => {
  const filter = compileFilter(`data.matches("^(a+)+$")`);
  expect(filter({ ...event, data: "a".repeat(5_000) + "b" })).toBe("no-match");
});

test("a comprehension over a list of unusual length is an error, not a wait", () => {
  const filter = compileFilter("data.list.all(x, x >= 0)");
  expect(filter({ ...event, data: { list: Array.from({ length: 1_000 }, (_, i) => i) } })).toBe("match");
  expect(filter({ ...event, data: { list: Array.from({ length: 1_001 }, (_, i) => i) } })).toBe("error");
});
