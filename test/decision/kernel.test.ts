/** The arithmetic over vectors, against the same said plainly. */
import { readFile } from "node:fs/promises";
import fc from "fast-check";
import { describe, expect, test } from "vitest";
import wabt from "wabt";
import { Arena } from "../../services/memory/index/kernel/kernel.ts";

const kernelFile = (name: string) => new URL(`../../services/memory/index/kernel/${name}`, import.meta.url);
const component = fc.integer({ min: -127, max: 127 });

/** A mean, a query and some vectors of one width, laid out in an arena. */
const vectors = fc.integer({ min: 1, max: 3 }).chain((steps) => {
  const width = 128 * steps;
  const vector = fc.array(component, { minLength: width, maxLength: width });
  return fc.record({
    width: fc.constant(width),
    mean: vector,
    query: vector,
    all: fc.array(vector, { minLength: 1, maxLength: 35 }),
  });
});

function laidOut({ width, mean, query, all }: { width: number; mean: number[]; query: number[]; all: number[][] }) {
  const arena = new Arena();
  const put = (numbers: number[]) => {
    const place = arena.take(numbers.length);
    arena.int8.set(numbers, place);
    return place;
  };
  const places = { mean: put(mean), query: put(query), dense: put(all.flat()) };
  const many = Math.ceil(all.length / 16) * 16;
  const codes = arena.take(many * width / 8);
  arena.kernel.encode(places.dense, width, 0, all.length, places.mean, codes);
  return { arena, ...places, codes, many };
}

describe("the kernel", () => {
  test("is what its source says", async () => {
    const source = wabtOf(await wabt(), await readFile(kernelFile("kernel.wat"), "utf8"));
    expect(Buffer.from(source).equals(await readFile(kernelFile("kernel.wasm"))), "npm run kernel").toBe(true);
  });

  test("scores codes by the tables of their half bytes, and finds those with the highest scores", () => {
    const tables = fc.array(fc.integer({ min: 0, max: 63 }), { minLength: 64, maxLength: 64 });
    fc.assert(fc.property(vectors, tables, (given, entries) => {
      const { arena, codes, many } = laidOut(given);
      const { all, mean, width } = given;
      const halves = width / 4;
      const table = (half: number, entry: number) => entries[(half * 7 + entry * 3) % entries.length]!;
      const tablesAt = arena.take(16 * halves);
      for (let half = 0; half < halves; half++) {
        for (let entry = 0; entry < 16; entry++) arena.int8[tablesAt + half * 16 + entry] = table(half, entry);
      }
      const out = arena.take(2 * many);
      arena.kernel.scores(codes, width / 8, many, tablesAt, out);
      const expected = all.map((vector) => {
        let score = 0;
        for (let half = 0; half < halves; half++) {
          const bits = [0, 1, 2, 3].map((bit) => vector[half * 4 + bit]! > mean[half * 4 + bit]! ? 1 << bit : 0);
          score += table(half, bits.reduce((sum, bit) => sum + bit, 0));
        }
        return score;
      });
      expect([...new Uint16Array(arena.int8.buffer, out, all.length)]).toEqual(expected);

      const counts = arena.take(4 * 4_096);
      arena.int8.fill(0, counts, counts + 4 * 4_096);
      arena.kernel.count(out, all.length, counts);
      const cells = Array.from({ length: 4_096 }, () => 0);
      for (const score of expected) cells[score >> 4]!++;
      expect([...arena.int32.subarray(counts / 4, counts / 4 + 4_096)]).toEqual(cells);

      const least = expected[0]!;
      const chosen = arena.take(4 * (all.length + 8));
      const found = arena.kernel.atLeast(out, all.length, least, chosen);
      expect([...arena.int32.subarray(chosen / 4, chosen / 4 + found)]).toEqual(
        expected.flatMap((score, place) => score >= least ? [place] : []),
      );
    }));
  });

  test("multiplies the vectors it is told to, in that order", () => {
    fc.assert(fc.property(vectors, (given) => {
      const { arena, dense, query } = laidOut(given);
      const order = given.all.map((_, i) => i).reverse();
      const places = arena.take(4 * order.length);
      const out = arena.take(4 * order.length);
      arena.int32.set(order, places / 4);
      arena.kernel.products(dense, given.width, places, order.length, query, out);
      expect([...arena.int32.subarray(out / 4, out / 4 + order.length)]).toEqual(
        order.map((i) => given.all[i]!.reduce((sum, value, k) => sum + value * given.query[k]!, 0)),
      );
    }));
  });
});

describe("its memory", () => {
  test("is given again, and never to two", () => {
    const arena = new Arena();
    const held: { place: number; bytes: number; filled: number; mark: number }[] = [];
    for (let i = 0; i < 2_000; i++) {
      const bytes = 16 + (i * 7_919) % 40_000;
      const one = { place: arena.take(bytes), bytes, filled: bytes, mark: i % 100 };
      arena.int8.fill(one.mark, one.place, one.place + bytes);
      held.push(one);
      if (i % 3 === 0) {
        const { place, bytes } = held.shift()!;
        arena.give(place, bytes);
      } else if (i % 5 === 0) {
        const { place, bytes, ...rest } = held.shift()!;
        held.push({ ...rest, place: arena.enlarge(place, bytes, 2 * bytes), bytes: 2 * bytes });
      }
    }
    for (const { place, filled, mark } of held) {
      expect(arena.int8.subarray(place, place + filled).every((value) => value === mark)).toBe(true);
    }
  });
});

type Wabt = Awaited<ReturnType<typeof wabt>>;
function wabtOf({ parseWat }: Wabt, text: string): Uint8Array {
  const parsed = parseWat("kernel.wat", text);
  try {
    return parsed.toBinary({}).buffer;
  } finally {
    parsed.destroy();
  }
}
