import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { compileGlob, lettersOf } from "../../services/fanout/glob.ts";

const matches = (glob: string, type: string) => compileGlob(glob).matches(lettersOf(type));

describe("a glob matches whole types", () => {
  test.each([
    ["com.shop.order", "com.shop.order", true],
    ["com.shop.order", "com.shop.orders", false],
    ["com.shop.order", "com.shop.orde", false],
    ["com.shop.order", "Com.shop.order", false],
    ["*", "anything.at.all", true],
    ["com.shop.*", "com.shop.order.created", true],
    ["com.shop.*", "com.shop.", true],
    ["com.shop.*", "com.shop", false],
    ["com.*.created", "com.shop.order.created", true],
    ["com.*.created", "com.shop.order.created.again", false],
    ["*.created", "x.created", true],
    ["*order*", "com.shop.order.created", true],
    ["com.sho?.x", "com.shop.x", true],
    ["com.sho?.x", "com.sho.x", false],
    ["?", "é", true],
    ["?", "🦊", true],
    ["a[bcd]e", "ace", true],
    ["a[bcd]e", "afe", false],
    ["a[b-d]e", "ace", true],
    ["a[b-]e", "a-e", true],
    ["a[!bc]e", "ade", true],
    ["a[!bc]e", "abe", false],
    ["a[*]e", "a*e", true],
    ["a[*]e", "abe", false],
    ["a.b", "axb", false],
    ["a+b(c)", "a+b(c)", true],
    ["**", "x", true],
    ["a**b", "ab", true],
    ["*a*a*b", "aaaab", true],
    ["*a*a*b", "aaaaa", false],
  ])("%s on %s: %s", (glob, type, expected) => expect(matches(glob, type)).toBe(expected));
});

test("any glob agrees with the obvious way to match it", () => {
  const piece = fc.constantFrom("*", "?", "a", "b", ".", "[ab]", "[!a]", "[a-c]");
  const globs = fc.array(piece, { minLength: 1, maxLength: 8 });
  const types = fc.string({ unit: fc.constantFrom("a", "b", "c", "."), maxLength: 10 });
  fc.assert(
    fc.property(globs, types, (pieces, type) => {
      expect(matches(pieces.join(""), type)).toBe(obvious(pieces, type));
    }),
    { numRuns: 5_000 },
  );
});

function obvious([piece, ...rest]: string[], type: string): boolean {
  if (piece === undefined) return type === "";
  if (piece === "*") return obvious(rest, type) || (type !== "" && obvious(["*", ...rest], type.slice(1)));
  if (type === "") return false;
  const fits = piece === "?" || piece === type[0] ||
    (piece === "[ab]" && "ab".includes(type[0]!)) || (piece === "[!a]" && type[0] !== "a") ||
    (piece === "[a-c]" && "abc".includes(type[0]!));
  return fits && obvious(rest, type.slice(1));
}

test("the prefix of a glob begins every type it matches", () => {
  const globs = fc.string({ unit: fc.constantFrom("a", "b", ".", "*", "?"), minLength: 1, maxLength: 8 });
  const types = fc.string({ unit: fc.constantFrom("a", "b", "."), maxLength: 10 });
  fc.assert(fc.property(globs, types, (glob, type) => {
    const { prefix, isExact } = compileGlob(glob);
    if (matches(glob, type)) expect(type.startsWith(prefix)).toBe(true);
    if (isExact) expect(matches(glob, type)).toBe(type === prefix);
  }));
});

test("a glob made to go back and forth ends after few comparisons", () => {
  // A matcher that tries every star again would need more steps than there are atoms.
  expect(matches("*a".repeat(60) + "b", "a".repeat(256))).toBe(false);
});
