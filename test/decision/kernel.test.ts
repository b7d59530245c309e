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
    all: fc.array(vector, { minLength: 1, maxLength: 9 }),
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
  const codes = arena.take(all.length * width / 8);
  const code = arena.take(width / 8);
  arena.kernel.encode(places.dense, width, all.length, places.mean, codes);
  arena.kernel.encode(places.query, width, 1, places.mean, code);
  return { arena, ...places, codes, code };
}

const differing = (a: number[], b: number[], mean: number[]) =>
  a.filter((value, i) => (value > mean[i]!) !== (b[i]! > mean[i]!)).length;

describe("the kernel", () => {
  test("is what its source says", async () => {
    const source = wabtOf(await wabt(), await readFile(kernelFile("kernel.wat"), "utf8"));
    expect(Buffer.from(source).equals(await readFile(kernelFile("kernel.wasm"))), "npm run kernel").toBe(true);
  });

  test("counts in how many components two vectors lie on other sides of the mean", () => {
    fc.assert(fc.property(vectors, (given) => {
      const { arena, codes, code } = laidOut(given);
      const { all, mean, query, width } = given;
      const out = arena.take(2 * all.length);
      const counts = arena.take(4 * (width + 1));
      arena.int8.fill(0, counts, counts + 4 * (width + 1));
      arena.kernel.differences(codes, width / 8, all.length, code, out, counts);
      const expected = all.map((vector) => differing(vector, query, mean));
      expect([...new Uint16Array(arena.int8.buffer, out, all.length)]).toEqual(expected);
      const histogram = Array.from({ length: width + 1 }, (_, bits) => expected.filter((each) => each === bits).length);
      expect([...arena.int32.subarray(counts / 4, counts / 4 + width + 1)]).toEqual(histogram);

      const most = expected[0]!;
      const chosen = arena.take(4 * (all.length + 1));
      const found = arena.kernel.within(out, all.length, most, chosen);
      expect([...arena.int32.subarray(chosen / 4, chosen / 4 + found)]).toEqual(
        expected.flatMap((bits, place) => bits <= most ? [place] : []),
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
