/** How signals become one order. */
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import type { Candidate } from "../../services/memory/index/port.ts";
import { rank, recencyOf, relevance } from "../../services/memory/rank.ts";

const NOW = Date.parse("2030-01-01T00:00:00Z");
const DAY = 86_400_000;
const candidate = (id: string, more: Partial<Candidate> = {}): Candidate => ({
  id,
  similarity: 0.5,
  lexical: 0.5,
  confidence: 0.5,
  importance: 0.5,
  freshAt: NOW,
  ...more,
});
const order = (...candidates: Candidate[]) => rank(candidates, NOW).map(({ id }) => id);

describe("relevance", () => {
  test.each([
    [0.8, 0.4, 0.56],
    [0.4, 0.8, 0.64],
    [0.8, null, 0.8],
    [null, 0.4, 0.4],
    [null, null, 0],
    [1, 1, 1],
    [0, 0, 0],
  ])(
    "similarity %s and words %s give %s",
    (similarity, lexical, expected) => expect(relevance(similarity, lexical)).toBeCloseTo(expected, 10),
  );
});

describe("recency", () => {
  test.each([[0, 1], [30, 0.5], [60, 0.25], [-10, 1]])(
    "after %s days it is %s",
    (days, expected) => expect(recencyOf(NOW - days * DAY, NOW)).toBeCloseTo(expected, 10),
  );
});

describe("order", () => {
  test("near ties go to the newer, the surer and the more important", () => {
    expect(order(candidate("old", { freshAt: NOW - 90 * DAY }), candidate("new"))).toEqual(["new", "old"]);
    expect(order(candidate("a", { confidence: 0.1 }), candidate("b", { confidence: 0.9 }))).toEqual(["b", "a"]);
    expect(order(candidate("a", { importance: 0 }), candidate("b", { importance: 1 }))).toEqual(["b", "a"]);
  });

  test("no prior lifts a memory above one that is clearly more relevant", () => {
    const best = { confidence: 1, importance: 1, freshAt: NOW };
    const worst = { confidence: 0, importance: 0, freshAt: 0 };
    expect(order(candidate("asked", { ...worst, similarity: 0.8, lexical: 0.6 }), candidate("shiny", best))).toEqual([
      "asked",
      "shiny",
    ]);
  });

  test("equals are in the same order each time, the newer id first", () => {
    expect(order(candidate("mem_1"), candidate("mem_2"))).toEqual(order(candidate("mem_2"), candidate("mem_1")));
    expect(order(candidate("mem_1"), candidate("mem_2"))).toEqual(["mem_2", "mem_1"]);
  });

  test("scores lie between 0 and 1 and fall, whatever comes in", () => {
    const share = fc.double({ min: 0, max: 1, noNaN: true });
    const any = fc.record({
      id: fc.string(),
      similarity: fc.option(share),
      lexical: fc.option(share),
      confidence: share,
      importance: share,
      freshAt: fc.integer({ min: 0, max: 2 * NOW }),
    });
    fc.assert(fc.property(fc.array(any), (candidates) => {
      const scores = rank(candidates, NOW).map(({ score }) => score);
      return scores.every((score, i) => score >= 0 && score <= 1 && (i === 0 || score <= scores[i - 1]!));
    }));
  });
});
