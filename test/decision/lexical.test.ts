/** How texts are read into words. */
import { describe, expect, test } from "vitest";
import { packSparse, queryTerms, sparseOf, termOf, unpackSparse, wordsOf } from "../../services/memory/lexical.ts";
import { stem } from "../../services/memory/porter.ts";

describe("words", () => {
  test.each([
    ["The quick, brown fox!", ["the", "quick", "brown", "fox"]],
    ["ERR_CONN-42 at v1.2", ["err", "conn", "42", "at", "v1", "2"]],
    ["don't the customer's", ["dont", "the", "customer"]],
    ["Café naïve Straße ÅNGSTRÖM", ["cafe", "naive", "strasse", "angstrom"]],
    ["ﬁne ½ Ⅳ", ["fine", "1", "2", "iv"]],
    ["東京都", ["東京", "京都", "東", "京", "都"]],
    ["犬", ["犬"]],
    ["iPhone15を買う", ["iphone15", "を買", "買う", "を", "買", "う"]],
    ["Ελλάδα", ["ελλαδα"]],
    ["ёлка", ["елка"]],
    ["हिन्दी", ["हिन्दी"]],
    ["שלום", ["שלום"]],
    ["party 🎉 time", ["party", "🎉", "time"]],
    ["", []],
    ["?! …", []],
  ])("%s", (text, words) => expect([...wordsOf(text)]).toEqual(words));
});

describe("stems", () => {
  // From the published vocabulary of the algorithm.
  test.each([
    ["caresses", "caress"],
    ["ponies", "poni"],
    ["ties", "ti"],
    ["cats", "cat"],
    ["feed", "feed"],
    ["agreed", "agre"],
    ["plastered", "plaster"],
    ["motoring", "motor"],
    ["sing", "sing"],
    ["conflated", "conflat"],
    ["troubled", "troubl"],
    ["sized", "size"],
    ["hopping", "hop"],
    ["falling", "fall"],
    ["hissing", "hiss"],
    ["filing", "file"],
    ["happy", "happi"],
    ["sky", "sky"],
    ["relational", "relat"],
    ["conditional", "condit"],
    ["digitizer", "digit"],
    ["vietnamization", "vietnam"],
    ["hopefulness", "hope"],
    ["electrical", "electr"],
    ["goodness", "good"],
    ["adjustable", "adjust"],
    ["adoption", "adopt"],
    ["probate", "probat"],
    ["rate", "rate"],
    ["controll", "control"],
    ["roll", "roll"],
    ["yes", "ye"],
    ["as", "as"],
  ])("%s → %s", (word, expected) => expect(stem(word)).toBe(expected));
});

describe("terms", () => {
  test("inflections of a word are one term, different words are different ones", () => {
    expect(termOf("connections")).toBe(termOf("connected"));
    expect(termOf("connection")).not.toBe(termOf("connector"));
  });

  test("stop words are no terms, and a question of nothing else has none", () => {
    expect(queryTerms("what is it to be").terms).toHaveLength(0);
    expect(sparseOf("the", "and of the").terms).toHaveLength(0);
  });

  test("a word said more often weighs more, but never without end; a longer text dilutes", () => {
    const weightOf = (text: string) => sparseOf("", text).weights[0]!;
    expect(weightOf("fox fox")).toBeGreaterThan(weightOf("fox"));
    expect(weightOf("fox ".repeat(1_000))).toBeLessThan(2.2);
    expect(weightOf(`fox ${"the ".repeat(500)}`)).toBeLessThan(weightOf("fox"));
  });

  test("what is kept is what was read, to within a step of its scale", () => {
    const read = sparseOf("Title of it", "Some words, and some words again; 東京 too.");
    const kept = unpackSparse(packSparse(read));
    expect(kept.terms).toEqual(read.terms);
    kept.weights.forEach((weight, i) => expect(Math.abs(weight - read.weights[i]!)).toBeLessThan(0.005));
  });

  test("a text of any length is read in time that grows with it", () => {
    expect(sparseOf("", "a".repeat(1_000_000)).terms).toHaveLength(1);
    expect(sparseOf("", "'".repeat(1_000_000)).terms).toHaveLength(0);
    expect(sparseOf("", "a'".repeat(100_000)).terms.length).toBeLessThan(2);
    expect(sparseOf("", "\u0301".repeat(1_000_000)).terms.length).toBeLessThan(2);
  });
});
