/**
 * The vectors of a partition's memories, at 8 bits a component. Few are all compared with the query. Of many, first only
 * codes are: one bit for each component, whether it is above the mean. Then the vectors of those whose codes are like
 * the query's. It is a scan, but of 32 bytes for each memory; there is no graph to build, keep or lose.
 */
import { isZero } from "../vectors.ts";
import type { Best } from "./best.ts";
import { enlarged } from "./columns.ts";
import type { Arena } from "./kernel/kernel.ts";

/** Up to so many, comparing all vectors costs no more than comparing codes first. */
export const CODES_LIMIT = 8_000;

/** How many vectors are compared at least, beside a share of all; see docs/decisions/memory-index.md for the recall. */
const DEPTH = 1_500;
const DEPTH_SHARE = 1 / 200;
/** The mean is judged by so many vectors spread over all. */
const MEAN_SAMPLE = 1_000;
/** Vectors are compared in steps of 16 components and codes in steps of 16 bytes. */
const WIDTH_STEP = 128;

export class Meanings {
  readonly #arena: Arena;
  readonly #dimension: number;
  readonly #codesLimit: number;
  /** Bytes of a vector; those of a code are an eighth. */
  readonly #width: number;
  /** What one step of a component's 8 bits stands for; the same for all, so that they compare as they are. */
  readonly #step: number;
  #size = 0;
  #capacity = 16;
  #there = new Uint8Array(16);
  #dense: number;
  /** Undefined while there are few. */
  #codes: { place: number; capacity: number; readonly mean: number; readonly madeAt: number } | undefined;

  constructor(arena: Arena, dimension: number, codesLimit: number) {
    this.#arena = arena;
    this.#dimension = dimension;
    this.#codesLimit = codesLimit;
    this.#width = Math.ceil(dimension / WIDTH_STEP) * WIDTH_STEP;
    // Six times what a component of a vector of length 1 is on average; what little lies beyond is cut. A cosine moves by
    // less than a thousandth.
    this.#step = Math.min(1, 6 / Math.sqrt(dimension)) / 127;
    this.#dense = arena.take(this.#capacity * this.#width);
  }

  has(slot: number): boolean {
    return this.#there[slot] === 1;
  }

  /** That of the next slot. */
  add(vector: Float32Array | undefined): void {
    if (this.#size === this.#capacity) this.#grow();
    const slot = this.#size++;
    const at = this.#dense + slot * this.#width;
    const { int8 } = this.#arena;
    int8.fill(0, at, at + this.#width);
    if (vector && vector.length === this.#dimension && !isZero(vector)) {
      this.#there[slot] = 1;
      for (let i = 0; i < vector.length; i++) int8[at + i] = this.#rounded(vector[i]!);
    }
    if (!this.#codes) {
      if (this.#size > this.#codesLimit) this.#encodeAll();
    } else if (this.#size > 2 * this.#codes.madeAt) this.#encodeAll();
    else this.#encode(slot, 1);
  }

  /** As it came in: vectors are exact at their steps. */
  at(slot: number): Float32Array | undefined {
    if (!this.has(slot)) return undefined;
    const at = this.#dense + slot * this.#width;
    return Float32Array.from(this.#arena.int8.subarray(at, at + this.#dimension), (value) => value * this.#step);
  }

  similarityAt(slot: number, query: Float32Array): number | null {
    if (!this.has(slot)) return null;
    const { int8 } = this.#arena;
    let [a, b, c, d] = [0, 0, 0, 0];
    const dimension = this.#dimension;
    const whole = dimension - dimension % 4;
    let at = this.#dense + slot * this.#width;
    for (let i = 0; i < whole; i += 4, at += 4) {
      a += query[i]! * int8[at]!;
      b += query[i + 1]! * int8[at + 1]!;
      c += query[i + 2]! * int8[at + 2]!;
      d += query[i + 3]! * int8[at + 3]!;
    }
    for (let i = whole; i < dimension; i++, at++) a += query[i]! * int8[at]!;
    return (a + b + c + d) * this.#step;
  }

  /** Offers the memories nearest to the query among those that pass, of which there is about such a share. */
  nearest(query: Float32Array, passes: (slot: number) => boolean, share: number, best: Best): void {
    const wanted = Math.max(best.room, DEPTH + this.#size * DEPTH_SHARE) / Math.max(share, 1e-6);
    if (this.#codes && wanted < this.#size / 2) {
      if (this.#offerAlike(query, Math.ceil(wanted), passes, best) >= best.room) return;
      // Fewer pass than was thought.
      best.clear();
    }
    this.#inScratch(
      this.#size,
      ({ places }) => {
        let count = 0;
        const { int32 } = this.#arena;
        for (let slot = 0; slot < this.#size; slot++) {
          if (this.#there[slot] === 1 && passes(slot)) int32[places + count++] = slot;
        }
        return count;
      },
      query,
      best,
    );
  }

  dispose(): void {
    this.#arena.give(this.#dense, this.#capacity * this.#width);
    this.#forgetCodes();
  }

  /** Offers those that pass among the `wanted` whose codes are most like the query's; answers how many did. */
  #offerAlike(query: Float32Array, wanted: number, passes: (slot: number) => boolean, best: Best): number {
    const { place, mean } = this.#codes!;
    return this.#inScratch(
      this.#size,
      ({ code, counts, differences, places, vector }) => {
        const { kernel, int8 } = this.#arena;
        for (let i = 0; i < this.#dimension; i++) int8[vector + i] = this.#rounded(query[i]!);
        kernel.encode(vector, this.#width, 1, mean, code);
        kernel.differences(place, this.#width / 8, this.#size, code, differences, counts);
        const { int32 } = this.#arena;
        let most = -1;
        for (let alike = 0; alike < wanted && most < this.#width;) alike += int32[counts / 4 + ++most]!;
        const found = kernel.within(differences, this.#size, most, places * 4);
        let count = 0;
        for (let i = places; i < places + found; i++) {
          const slot = int32[i]!;
          if (this.#there[slot] === 1 && passes(slot)) int32[places + count++] = slot;
        }
        return count;
      },
      query,
      best,
    );
  }

  /** Lends room for one search to `choose`, which puts down the places to compare; then compares and offers them. */
  #inScratch(size: number, choose: (room: Scratch) => number, query: Float32Array, best: Best): number {
    const width = this.#width;
    const { total, ...offsets } = roomFor(width, size);
    const start = this.#arena.take(total);
    const [vector, code, counts] = [start + offsets.vector, start + offsets.code, start + offsets.counts];
    const [differences, places] = [start + offsets.differences, start + offsets.places];
    const products = start + offsets.products;
    try {
      const { int8, int32, kernel } = this.#arena;
      int8.fill(0, vector, differences);
      const count = choose({ vector, code, counts, differences, places: places / 4 });
      // The finest steps that this query fits in: it is compared with all and need not share theirs.
      let largest = 0;
      for (const value of query) largest = Math.max(largest, Math.abs(value));
      const step = largest / 127 || 1;
      for (let i = 0; i < this.#dimension; i++) int8[vector + i] = Math.round(query[i]! / step);
      kernel.products(this.#dense, width, places, count, vector, products);
      for (let i = 0; i < count; i++) {
        best.offer(int32[places / 4 + i]!, int32[products / 4 + i]! * step * this.#step);
      }
      return count;
    } finally {
      this.#arena.give(start, total);
    }
  }

  #rounded(value: number): number {
    return Math.max(-127, Math.min(127, Math.round(value / this.#step)));
  }

  /** Codes for all, by the mean of what is there now; each time at least twice as many. */
  #encodeAll(): void {
    this.#forgetCodes();
    const arena = this.#arena;
    const mean = arena.take(this.#width);
    const place = arena.take(this.#capacity * this.#width / 8);
    const sums = new Float64Array(this.#width);
    const stride = Math.max(1, Math.floor(this.#size / MEAN_SAMPLE));
    let counted = 0;
    const { int8 } = arena;
    for (let slot = 0; slot < this.#size; slot += stride) {
      if (!this.has(slot)) continue;
      counted++;
      const at = this.#dense + slot * this.#width;
      for (let i = 0; i < this.#width; i++) sums[i]! += int8[at + i]!;
    }
    for (let i = 0; i < this.#width; i++) int8[mean + i] = Math.round(sums[i]! / Math.max(1, counted));
    this.#codes = { place, capacity: this.#capacity, mean, madeAt: this.#size };
    this.#encode(0, this.#size);
  }

  #encode(from: number, count: number): void {
    const { place, mean } = this.#codes!;
    const width = this.#width;
    this.#arena.kernel.encode(this.#dense + from * width, width, count, mean, place + from * width / 8);
  }

  #forgetCodes(): void {
    if (!this.#codes) return;
    this.#arena.give(this.#codes.place, this.#codes.capacity * this.#width / 8);
    this.#arena.give(this.#codes.mean, this.#width);
    this.#codes = undefined;
  }

  #grow(): void {
    const capacity = this.#capacity * 2;
    const codeBytes = this.#width / 8;
    this.#there = enlarged(this.#there, new Uint8Array(capacity));
    this.#dense = this.#arena.enlarge(this.#dense, this.#capacity * this.#width, capacity * this.#width);
    if (this.#codes) {
      this.#codes.place = this.#arena.enlarge(
        this.#codes.place,
        this.#codes.capacity * codeBytes,
        capacity * codeBytes,
      );
      this.#codes.capacity = capacity;
    }
    this.#capacity = capacity;
  }
}

/** Places of one search's numbers; `places` counts in 32 bits, the others in bytes. */
interface Scratch {
  readonly vector: number;
  readonly code: number;
  readonly counts: number;
  readonly differences: number;
  readonly places: number;
}

function roomFor(width: number, size: number) {
  let total = 0;
  const next = (bytes: number) => {
    const at = total;
    total += Math.ceil(bytes / 16) * 16;
    return at;
  };
  const [vector, code, counts] = [next(width), next(width / 8), next(4 * (width + 1))];
  // The last place may be written to once more than is counted.
  const [differences, places, products] = [next(2 * size), next(4 * (size + 1)), next(4 * size)];
  return { vector, code, counts, differences, places, products, total };
}
