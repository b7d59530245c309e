/** What a refused value is told: field, what came, what was expected, an example that would be taken. */
import { expect, test } from "vitest";
import { z } from "zod";
import { Fault } from "../../contracts/errors.ts";
import { parse } from "../../contracts/validation.ts";

const Order = z.object({
  name: z.string().min(1).max(5).meta({ examples: ["ada"] }),
  kind: z.enum(["a", "b"]),
  count: z.int().min(1).max(3),
  tags: z.array(z.string()).min(1).optional(),
  secret: z.string().min(50).meta({ secret: true, examples: ["…"] }).optional(),
  nested: z.object({ deep: z.array(z.object({ x: z.number() })) }).optional(),
  when: z.iso.datetime().optional(),
});
const good = { name: "ada", kind: "a", count: 1 };

test.each([
  [{ ...good, name: undefined }, { field: "name", value: null, expected: "a string", example: "ada" }],
  [{ ...good, name: "" }, { field: "name", value: "", expected: "at least 1 character", example: "ada" }],
  [{ ...good, kind: "c" }, { field: "kind", value: "c", expected: "one of a, b", example: "a" }],
  [{ ...good, count: 4 }, { field: "count", value: 4, expected: "at most 3", example: 1 }],
  [{ ...good, count: 1.5 }, { field: "count", value: 1.5, expected: "an integer", example: 1 }],
  [{ ...good, tags: [] }, { field: "tags", value: [], expected: "at least 1 item", example: ["text"] }],
  [{ ...good, tags: ["a", 7] }, { field: "tags[1]", value: 7, expected: "a string", example: "text" }],
  [{ ...good, secret: "hush" }, { field: "secret", value: "(left out)" }],
  [{ ...good, nested: { deep: [{ x: "1" }] } }, {
    field: "nested.deep[0].x",
    value: "1",
    expected: "a number",
    example: 1,
  }],
  [{ ...good, when: "yesterday" }, { field: "when", expected: "an ISO 8601 date-time" }],
  [7, { field: "", value: 7, expected: "an object" }],
])("%j", (value, details) => {
  const fault = (() => {
    try {
      parse(Order, value);
    } catch (error) {
      return error;
    }
  })();
  expect(fault).toBeInstanceOf(Fault);
  expect((fault as Fault).details).toMatchObject(details);
});

test("a long value is cut at 200 characters", () => {
  try {
    parse(Order, { ...good, name: "x".repeat(1_000) });
  } catch (error) {
    expect((error as Fault<"validation_failed">).details.value).toHaveLength(200);
  }
  expect.assertions(1);
});
