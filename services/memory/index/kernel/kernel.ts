/** Memory that vectors lie in, and the arithmetic over them, which is SIMD (kernel.wat) because there are many. */
import { readFileSync } from "node:fs";

/** All are places in the memory or counts. A vector takes `width` bytes, a multiple of 128, and its code an eighth. */
interface Kernel {
  /** Codes of the vectors from one to another: one bit for each component, whether it is above the mean's. */
  encode(dense: number, width: number, from: number, until: number, mean: number, codes: number): void;
  /** What the first `count` codes, a multiple of 16, score by the tables of a query, as 16 bits each. */
  scores(codes: number, codeWidth: number, count: number, tables: number, out: number): void;
  /** Adds up how many scores there are of each sixteen (32 bits each). */
  count(scores: number, count: number, counts: number): void;
  /** Which of them are at least so much (32 bits each, with room for eight more); answers how many. */
  atLeast(scores: number, count: number, least: number, out: number): number;
  /** The inner product of the query with each of the vectors at `places` (32 bits each). */
  products(dense: number, width: number, places: number, count: number, query: number, out: number): void;
}

/** The compiler knows it only together with a browser's page. */
declare const WebAssembly: {
  Module: new (bytes: Uint8Array) => object;
  Instance: new (module: object, imports: object) => { readonly exports: unknown };
  Memory: new (
    pages: { initial: number; maximum: number },
  ) => { readonly buffer: ArrayBuffer; grow(by: number): number };
};

const PAGE = 65_536;
/** What 32 bits can say. */
const MOST_PAGES = 65_536;
/** 16 MB. */
const LEAST_GROWTH = 256;
/** Blocks begin where the widest load likes them to. */
const ALIGNMENT = 16;
const SMALLEST = 256;

const compiled = new WebAssembly.Module(readFileSync(new URL("./kernel.wasm", import.meta.url)));

/**
 * One memory for everything an index holds, in blocks of a few sizes. A memory of WebAssembly's reserves gigabytes of
 * addresses, so each partition cannot have its own. What is freed is used again; the memory itself never shrinks.
 */
export class Arena {
  readonly #memory = new WebAssembly.Memory({ initial: 1, maximum: MOST_PAGES });
  readonly kernel = new WebAssembly.Instance(compiled, { index: { memory: this.#memory } })
    .exports as Kernel;
  readonly #free = new Map<number, number[]>();
  /** The first block is nobody's, so that no place is 0. */
  #used = SMALLEST;
  /** The memory as numbers; another object whenever it has grown. */
  int8 = new Int8Array(this.#memory.buffer);
  int32 = new Int32Array(this.#memory.buffer);

  /** A block of at least so many bytes, holding anything. */
  take(bytes: number): number {
    const size = sizeOf(bytes);
    const freed = this.#free.get(size)?.pop();
    if (freed !== undefined) return freed;
    const place = this.#used;
    if (place + size > this.int8.byteLength) this.#grow(place + size);
    this.#used += size;
    return place;
  }

  /**
   * Far more than is asked for, and seldom: pages that nobody touches cost nothing, but each growth looks to the garbage
   * collector as if all of the memory had been allocated once more.
   */
  #grow(bytes: number): void {
    const pages = this.int8.byteLength / PAGE;
    const needed = Math.ceil(bytes / PAGE);
    this.#memory.grow(Math.max(needed, Math.min(MOST_PAGES, pages + Math.max(LEAST_GROWTH, pages / 2 | 0))) - pages);
    this.int8 = new Int8Array(this.#memory.buffer);
    this.int32 = new Int32Array(this.#memory.buffer);
  }

  /** Gives back what `take` gave for so many bytes. */
  give(place: number, bytes: number): void {
    const size = sizeOf(bytes);
    const free = this.#free.get(size);
    if (free) free.push(place);
    else this.#free.set(size, [place]);
  }

  /** A block for `bytes` with what was in one for `before`, which is given back. */
  enlarge(place: number, before: number, bytes: number): number {
    if (sizeOf(before) === sizeOf(bytes)) return place;
    const larger = this.take(bytes);
    this.int8.copyWithin(larger, place, place + before);
    this.give(place, before);
    return larger;
  }
}

/** Powers of two and the middles between them, so that at most a third of a block lies idle. */
function sizeOf(bytes: number): number {
  let size = SMALLEST;
  while (size < bytes) size *= 2;
  const middle = size * 3 / 4;
  return size > SMALLEST && middle >= bytes && middle % ALIGNMENT === 0 ? middle : size;
}
