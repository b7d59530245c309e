/** The sliding window: whatever the pace, no 60 seconds hold more than the limit. */
import fc from "fast-check";
import { expect, test } from "vitest";
import { type Counts, grantIn, prune, resetAfter, total, WINDOW_SECONDS } from "../../gateway/window.ts";

test("never more than the limit in any 60 s, at any pace, with leases of any size", () => {
  const step = fc.record({ afterSeconds: fc.nat(20), wanted: fc.integer({ min: 1, max: 40 }), used: fc.nat(100) });
  fc.assert(fc.property(fc.integer({ min: 1, max: 100 }), fc.array(step, { maxLength: 80 }), (limit, steps) => {
    const counts: Counts = new Map();
    const admitted: number[] = [];
    let second = 1_000;
    for (const { afterSeconds, wanted, used } of steps) {
      second += afterSeconds;
      const granted = grantIn(counts, second, limit, wanted, Math.min(wanted, 3));
      counts.set(second, (counts.get(second) ?? 0) + granted);
      for (let i = 0; i < Math.min(used, granted); i++) admitted.push(second);
    }
    for (const start of admitted) {
      // A request may come at any moment of its second, so 60 s can touch 61 of them.
      const inWindow = admitted.filter((at) => at >= start && at <= start + WINDOW_SECONDS).length;
      expect(inWindow).toBeLessThanOrEqual(limit);
    }
  }));
});

test("a full window opens again when its oldest second has left", () => {
  const counts: Counts = new Map([[100, 10]]);
  expect(grantIn(counts, 160, 10, 1, 1)).toBe(0);
  expect(resetAfter(counts, 160)).toBe(1);
  expect(grantIn(counts, 161, 10, 1, 1)).toBe(1);
});

test("a lease near the limit is no larger than those who wait for it", () => {
  expect(grantIn(new Map([[100, 80]]), 101, 100, 15, 2)).toBe(2);
  expect(grantIn(new Map([[100, 10]]), 101, 100, 15, 2)).toBe(15);
});

test("what is returned unused counts no more", () => {
  const counts: Counts = new Map([[100, 0], [101, 2], [30, 5]]);
  expect(total(prune(counts, 101))).toBe(2);
});
