/**
 * The vectors of a partition's memories, at 8 bits a component. Few are all compared with the query. Of many, first only
 * codes are: one bit for each component, whether it is above the mean. Then the vectors of those whose codes promise
 * most. It is a scan, but of 32 bytes for each memory; there is no graph to build, keep or lose.
 */
import { isZero } from "../vectors.ts";
import type { Best } from "./best.ts";
import { enlarged } from "./columns.ts";
import type { Arena } from "./kernel/kernel.ts";

/** Up to so many, comparing all vectors costs no more than comparing codes first. */
export const CODES_LIMIT = 8_000;

/** How many vectors are compared at least, beside a share of all; see docs/decisions/memory-index.md for the recall. */
const DEPTH = 400;
const DEPTH_SHARE = 1 / 500;
/** The mean is judged by so many vectors spread over all. */
const MEAN_SAMPLE = 1_000;
/** Vectors are compared in steps of 16 components and codes in steps of 16 bytes. */
const WIDTH_STEP = 128;
/** Codes are scored so many at once. */
const CODES_AT_ONCE = 16;
/** Scores have 16 bits, and are counted by their upper 12. */
const HIGHEST_SCORE = 65_535;
const SCORE_CELLS = 4_096;

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
    else this.#encode(slot, this.#size);
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
      if (this.#offerPromising(query, Math.ceil(wanted), passes, best) >= best.room) return;
      // Fewer pass than was thought.
      best.clear();
    }
    this.#inScratch(
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

  /** Offers those that pass among the `wanted` whose codes promise most; answers how many did. */
  #offerPromising(query: Float32Array, wanted: number, passes: (slot: number) => boolean, best: Best): number {
    const { place } = this.#codes!;
    return this.#inScratch(
      ({ tables, counts, scores, places }) => {
        const { kernel, int32 } = this.#arena;
        this.#layTables(query, tables);
        kernel.scores(place, this.#width / 8, roundedUp(this.#size, CODES_AT_ONCE), tables, scores);
        kernel.count(scores, this.#size, counts);
        let least = SCORE_CELLS;
        for (let promising = 0; promising < wanted && least > 0;) promising += int32[counts / 4 + --least]!;
        const found = kernel.atLeast(scores, this.#size, least * (HIGHEST_SCORE + 1) / SCORE_CELLS, places * 4);
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

  /**
   * What a query says of each four bits of a code: how far it agrees with vectors that lie above the mean there. All tables
   * together stay within a score's bits.
   */
  #layTables(query: Float32Array, at: number): void {
    const { int8 } = this.#arena;
    const { mean } = this.#codes!;
    const sums = new Float32Array(this.#width / 4 * 16);
    let range = 0;
    for (let table = 0; table < this.#width / 4; table++) {
      let least = 0;
      for (let bit = 0; bit < 4; bit++) {
        const k = table * 4 + bit;
        const value = k < this.#dimension ? query[k]! / this.#step - int8[mean + k]! : 0;
        least += Math.min(0, value);
        // Every entry so far again, this bit set.
        for (let entry = 0; entry < 1 << bit; entry++) {
          sums[table * 16 + (1 << bit) + entry] = sums[table * 16 + entry]! + value;
        }
      }
      for (let entry = 0; entry < 16; entry++) {
        const value = sums[table * 16 + entry]! -= least;
        if (value > range) range = value;
      }
    }
    // Four entries are added in eight bits, and all of them in sixteen.
    const highest = Math.min(63, Math.floor(HIGHEST_SCORE / (this.#width / 4)));
    const factor = range === 0 ? 0 : highest / range;
    for (let i = 0; i < sums.length; i++) int8[at + i] = Math.round(sums[i]! * factor);
  }

  /** Lends room for one search to `choose`, which puts down the places to compare; then compares and offers them. */
  #inScratch(choose: (room: Scratch) => number, query: Float32Array, best: Best): number {
    const width = this.#width;
    const { total, ...offsets } = roomFor(width, this.#size);
    const start = this.#arena.take(total);
    const [vector, tables, counts] = [start + offsets.vector, start + offsets.tables, start + offsets.counts];
    const [scores, places, products] = [start + offsets.scores, start + offsets.places, start + offsets.products];
    try {
      const { int8, int32, kernel } = this.#arena;
      int8.fill(0, vector, scores);
      const count = choose({ tables, counts, scores, places: places / 4 });
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

  #encode(from: number, until: number): void {
    const { place, mean } = this.#codes!;
    this.#arena.kernel.encode(this.#dense, this.#width, from, until, mean, place);
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
  readonly tables: number;
  readonly counts: number;
  readonly scores: number;
  readonly places: number;
}

const roundedUp = (value: number, step: number): number => Math.ceil(value / step) * step;

function roomFor(width: number, size: number) {
  let total = 0;
  const next = (bytes: number) => {
    const at = total;
    total += roundedUp(bytes, 16);
    return at;
  };
  const [vector, tables, counts] = [next(width), next(4 * width), next(4 * SCORE_CELLS)];
  const [scores, places, products] = [next(2 * roundedUp(size, CODES_AT_ONCE)), next(4 * (size + 8)), next(4 * size)];
  return { vector, tables, counts, scores, places, products, total };
}
