/**
 * Memories that the same readers may see, in columns: one agent's own, one team's, or the institution's. A slot is never
 * used twice; what is removed is marked, and left behind when the partition is next made anew.
 *
 * Where there are few memories both legs look at every slot. Above a number words have posting lists, and above a larger
 * one vectors a graph. It is built in the background: slots it does not hold yet are still compared, so none is missed.
 */
import { exactSearch, type Index, MetricKind } from "usearch";
import { type MemoryType, memoryTypes } from "../../../contracts/memory.ts";
import { isZero } from "../vectors.ts";
import type { Best } from "./best.ts";
import { addAll, newGraph, type Vectors } from "./graph.ts";
import type { Entry, Standing } from "./port.ts";

/** Below this, a memory's words are looked through as quickly as lists of them are kept. */
const POSTINGS_LIMIT = 2_000;
/** Comparing every vector costs about 0.04 µs each, the graph about a millisecond whatever the size. */
export const GRAPH_LIMIT = 30_000;

/** So many outside the graph are compared beside it; with more it is cheaper to compare with all and leave it out. */
const TAIL_LIMIT = 4_000;
/** Beyond this a search of the graph costs more than looking at each slot that passes. */
const MOST_ASKED = 1_000;
const SAMPLE = 128;

export interface Filter {
  readonly type?: MemoryType;
  readonly minConfidence?: number;
  readonly nowMs: number;
  readonly owner?: string;
}

/** What of an entry is kept here; where it belongs is said by the partition it is in. */
type Kept = Omit<Entry, "version" | "team" | "scope">;

/** Growing list of pairs for one term: slot in the upper 24 bits, weight in the lower 8. */
interface Postings {
  packed: Uint32Array;
  count: number;
}

export class Partition {
  readonly #dimension: number;
  readonly #graphLimit: number;
  #capacity = 16;
  /** Slots given out so far. */
  size = 0;
  removed = 0;
  readonly #ids: string[] = [];
  readonly #owners: string[] = [];
  #alive = new Uint8Array(16);
  #types = new Uint8Array(16);
  #confidences = new Float32Array(16);
  #importances = new Float32Array(16);
  #freshness = new Float64Array(16);
  #expiries = new Float64Array(16);
  #dense: Int8Array;
  #hasVector = new Uint8Array(16);
  /** What one step of the 8 bits of a vector's component stands for; the same for all, so that they compare as they are. */
  readonly #step: number;
  #terms = new Uint32Array(256);
  #weights = new Uint8Array(256);
  /** Where each slot's words begin; one longer than the slots. */
  #offsets = new Uint32Array(17);
  #postings: Map<number, Postings> | undefined;
  #graph: Index | undefined;
  /** Slots below this are in the graph, if they have a vector. */
  #inGraph = 0;
  #scores = new Float32Array(16);

  constructor(dimension: number, graphLimit = GRAPH_LIMIT) {
    this.#dimension = dimension;
    this.#graphLimit = graphLimit;
    // Six times what a component of a vector of length 1 is on average; what little lies beyond is cut. A cosine moves by
    // less than a thousandth.
    this.#step = Math.min(1, 6 / Math.sqrt(dimension)) / 127;
    this.#dense = new Int8Array(16 * dimension);
  }

  get alive(): number {
    return this.size - this.removed;
  }

  idAt(slot: number): string {
    return this.#ids[slot]!;
  }

  standingAt(slot: number): Standing {
    return {
      confidence: this.#confidences[slot]!,
      importance: this.#importances[slot]!,
      freshAt: this.#freshness[slot]!,
    };
  }

  add(entry: Kept): number {
    const slot = this.size;
    if (slot === this.#capacity) this.#grow();
    this.#ids.push(entry.id);
    this.#owners.push(entry.agent);
    this.#alive[slot] = 1;
    this.#types[slot] = memoryTypes.indexOf(entry.type);
    this.#confidences[slot] = entry.confidence;
    this.#importances[slot] = entry.importance;
    this.#freshness[slot] = entry.freshAt;
    this.#expiries[slot] = entry.expiresAt ?? Infinity;
    this.#keepVector(slot, entry.dense);
    this.#keepWords(slot, entry);
    this.size++;
    if (this.#postings) this.#post(slot);
    else if (this.size > POSTINGS_LIMIT) this.#makePostings();
    return slot;
  }

  remove(slot: number): void {
    if (!this.#alive[slot]) return;
    this.#alive[slot] = 0;
    this.removed++;
  }

  /** How many slots still wait for the graph. */
  get waiting(): number {
    return this.size > this.#graphLimit ? this.size - this.#inGraph : 0;
  }

  /** Whether so many wait that the graph is better built anew, elsewhere; each time at least a quarter larger. */
  get isFarBehind(): boolean {
    return this.waiting > Math.max(TAIL_LIMIT, this.#inGraph / 4);
  }

  /** Adds up to `count` waiting slots to the graph. */
  tend(count: number): void {
    if (this.waiting === 0) return;
    const until = Math.min(this.size, this.#inGraph + count);
    addAll(this.#graph ??= newGraph(this.#dimension), this.#vectors(this.#inGraph, until), 0, count);
    this.#inGraph = until;
  }

  /** What a graph of all slots is built from, and how it is then taken. */
  forGraph(): { readonly vectors: Vectors; readonly adopt: (graph: Index) => void } {
    const until = this.size;
    return {
      vectors: this.#vectors(0, until),
      adopt: (graph) => {
        this.#graph = graph;
        this.#inGraph = until;
      },
    };
  }

  /** Copies, because they may go to another thread. */
  #vectors(from: number, until: number): Vectors {
    const slots: number[] = [];
    for (let slot = from; slot < until; slot++) if (this.#hasVector[slot] && this.#alive[slot]) slots.push(slot);
    const dimension = this.#dimension;
    const dense = new Int8Array(slots.length * dimension);
    slots.forEach((slot, i) => {
      dense.set(this.#dense.subarray(slot * dimension, (slot + 1) * dimension), i * dimension);
    });
    return { dimension, step: this.#step, slots: Uint32Array.from(slots), dense };
  }

  /** In how many memories each term occurs. */
  frequencies(terms: Uint32Array): Uint32Array {
    const found = new Uint32Array(terms.length);
    if (this.#postings) {
      terms.forEach((term, i) => found[i] = this.#postings!.get(term)?.count ?? 0);
      return found;
    }
    const place = new Map<number, number>();
    terms.forEach((term, i) => place.set(term, i));
    this.#eachOccurrence(terms, (_, term) => found[place.get(term)!]!++);
    return found;
  }

  /** Scores every memory with one of the terms, and offers those that pass. Then `lexicalAt` knows each slot's score. */
  scoreWords(terms: Uint32Array, importances: Float64Array, filter: Filter, best: Best): void {
    if (this.#scores.length < this.size) this.#scores = new Float32Array(this.#capacity);
    else this.#scores.fill(0, 0, this.size);
    const scores = this.#scores;
    if (this.#postings) {
      terms.forEach((term, i) => {
        const postings = this.#postings!.get(term);
        if (!postings) return;
        const { packed, count } = postings;
        const factor = importances[i]! / 255;
        for (let k = 0; k < count; k++) {
          const pair = packed[k]!;
          scores[pair >>> 8]! += (pair & 255) * factor;
        }
      });
    } else {
      const place = new Map<number, number>();
      terms.forEach((term, i) => place.set(term, importances[i]! / 255));
      this.#eachOccurrence(terms, (slot, term, weight) => scores[slot]! += weight * place.get(term)!);
    }
    for (let slot = 0; slot < this.size; slot++) {
      const score = scores[slot]!;
      if (score > best.least && this.#passes(slot, filter)) best.offer(slot, score);
    }
  }

  lexicalAt(slot: number): number {
    return this.#scores[slot] ?? 0;
  }

  /** Offers the memories nearest to the query among those that pass. */
  nearest(asker: Float32Array, filter: Filter, best: Best): void {
    // See `#nearestFrom`: a query too must begin where its buffer begins.
    const query = asker.byteOffset === 0 ? asker : asker.slice();
    const wanted = Math.min(best.room, this.alive);
    // Some of what a search finds is removed or does not pass, so it is asked for more than is wanted.
    const asked = Math.ceil(wanted / Math.max(0.001, this.#shareThatPasses(filter)) * 1.2) + 8;
    if (asked > MOST_ASKED) return this.#offerEach(query, filter, best, 0);
    let found = 0;
    const offer = (slot: number) => {
      if (!this.#hasVector[slot] || !this.#passes(slot, filter)) return;
      found++;
      best.offer(slot, this.similarityAt(slot, query)!);
    };
    const from = this.size - this.#inGraph <= TAIL_LIMIT ? this.#inGraph : 0;
    // Never asked for more than it holds: what it would fill its answer up with is none.
    const held = from === 0 ? 0 : Math.min(asked, this.#graph?.size() ?? 0);
    if (held > 0) { for (const key of this.#graph!.search(query, held, 1).keys) offer(Number(key)); }
    this.#nearestFrom(from, query, asked, offer);
    // Fewer than wanted though there may be more: then every slot that passes is looked at.
    if (found < wanted && asked < this.size) {
      best.clear();
      this.#offerEach(query, filter, best, 0);
    }
  }

  /** The nearest of the slots that the graph does not hold, all of them compared. */
  #nearestFrom(from: number, query: Float32Array, asked: number, offer: (slot: number) => void): void {
    const count = this.size - from;
    if (count <= asked) {
      for (let slot = from; slot < this.size; slot++) offer(slot);
      return;
    }
    let largest = 0;
    for (const value of query) largest = Math.max(largest, Math.abs(value));
    if (largest === 0) return;
    const rounded = Int8Array.from(query, (value) => Math.round(value / largest * 127));
    // The library reads from the start of a buffer, whatever the view of it says: what begins later must be copied.
    const until = this.size * this.#dimension;
    const slots = from === 0 ? this.#dense.subarray(0, until) : this.#dense.slice(from * this.#dimension, until);
    for (const key of exactSearch(slots, rounded, this.#dimension, asked, MetricKind.IP, 1).keys) {
      offer(from + Number(key));
    }
  }

  /** Judged by a few slots spread over all. */
  #shareThatPasses(filter: Filter): number {
    const stride = Math.max(1, Math.floor(this.size / SAMPLE));
    let [passing, looked] = [0, 0];
    for (let slot = this.size - 1; slot >= 0; slot -= stride, looked++) if (this.#passes(slot, filter)) passing++;
    return passing / Math.max(1, looked);
  }

  similarityAt(slot: number, query: Float32Array): number | null {
    if (!this.#hasVector[slot]) return null;
    const dense = this.#dense;
    let [a, b, c, d] = [0, 0, 0, 0];
    const dimension = this.#dimension;
    const whole = dimension - dimension % 4;
    let at = slot * dimension;
    for (let i = 0; i < whole; i += 4, at += 4) {
      a += query[i]! * dense[at]!;
      b += query[i + 1]! * dense[at + 1]!;
      c += query[i + 2]! * dense[at + 2]!;
      d += query[i + 3]! * dense[at + 3]!;
    }
    for (let i = whole; i < dimension; i++, at++) a += query[i]! * dense[at]!;
    return (a + b + c + d) * this.#step;
  }

  /** The same without what was removed. Vectors and weights come out as they went in: both are exact at their steps. */
  compacted(): Partition {
    const fresh = new Partition(this.#dimension, this.#graphLimit);
    for (let slot = 0; slot < this.size; slot++) {
      if (!this.#alive[slot]) continue;
      const [from, until] = [this.#offsets[slot]!, this.#offsets[slot + 1]!];
      const at = slot * this.#dimension;
      const expiry = this.#expiries[slot]!;
      fresh.add({
        id: this.#ids[slot]!,
        agent: this.#owners[slot]!,
        type: memoryTypes[this.#types[slot]!]!,
        ...this.standingAt(slot),
        expiresAt: expiry === Infinity ? null : expiry,
        ...(this.#hasVector[slot]
          ? { dense: Float32Array.from(this.#dense.subarray(at, at + this.#dimension), (value) => value * this.#step) }
          : {}),
        sparse: {
          terms: this.#terms.slice(from, until),
          weights: Float32Array.from(this.#weights.subarray(from, until), (weight) => weight / WEIGHT_STEPS),
        },
      });
    }
    return fresh;
  }

  #offerEach(query: Float32Array, filter: Filter, best: Best, from: number): void {
    for (let slot = from; slot < this.size; slot++) {
      if (!this.#hasVector[slot] || !this.#passes(slot, filter)) continue;
      best.offer(slot, this.similarityAt(slot, query)!);
    }
  }

  #passes(slot: number, { type, minConfidence, nowMs, owner }: Filter): boolean {
    return this.#alive[slot] === 1 && this.#expiries[slot]! > nowMs &&
      (type === undefined || memoryTypes[this.#types[slot]!] === type) &&
      // Kept at 32 bits: what is equal at 64 must not fail here. Postgres decides exactly.
      (minConfidence === undefined || this.#confidences[slot]! >= minConfidence - 1e-6) &&
      (owner === undefined || this.#owners[slot] === owner);
  }

  #keepVector(slot: number, vector: Float32Array | undefined): void {
    this.#hasVector[slot] = 0;
    if (!vector || vector.length !== this.#dimension || isZero(vector)) return;
    this.#hasVector[slot] = 1;
    const at = slot * this.#dimension;
    for (let i = 0; i < vector.length; i++) {
      this.#dense[at + i] = Math.max(-127, Math.min(127, Math.round(vector[i]! / this.#step)));
    }
  }

  #keepWords(slot: number, { sparse: { terms, weights } }: Kept): void {
    const from = this.#offsets[slot]!;
    const until = from + terms.length;
    if (until > this.#terms.length) {
      const room = Math.max(until, this.#terms.length * 2);
      this.#terms = enlarged(this.#terms, new Uint32Array(room));
      this.#weights = enlarged(this.#weights, new Uint8Array(room));
    }
    this.#terms.set(terms, from);
    for (let i = 0; i < weights.length; i++) this.#weights[from + i] = Math.round(weights[i]! * WEIGHT_STEPS);
    this.#offsets[slot + 1] = until;
  }

  #makePostings(): void {
    this.#postings = new Map();
    for (let slot = 0; slot < this.size; slot++) if (this.#alive[slot]) this.#post(slot);
  }

  #post(slot: number): void {
    for (let i = this.#offsets[slot]!; i < this.#offsets[slot + 1]!; i++) {
      const term = this.#terms[i]!;
      let postings = this.#postings!.get(term);
      if (!postings) this.#postings!.set(term, postings = { packed: new Uint32Array(2), count: 0 });
      if (postings.count === postings.packed.length) {
        postings.packed = enlarged(postings.packed, new Uint32Array(postings.count * 2));
      }
      postings.packed[postings.count++] = slot << 8 | this.#weights[i]!;
    }
  }

  #eachOccurrence(terms: Uint32Array, found: (slot: number, term: number, weight: number) => void): void {
    const wanted = new Set(terms);
    // Most words of most memories are not asked for; one byte tells so faster than the set does.
    const hint = new Uint8Array(4_096);
    for (const term of terms) hint[term & 4_095] = 1;
    for (let slot = 0; slot < this.size; slot++) {
      if (!this.#alive[slot]) continue;
      const until = this.#offsets[slot + 1]!;
      for (let i = this.#offsets[slot]!; i < until; i++) {
        const term = this.#terms[i]!;
        if (hint[term & 4_095] === 1 && wanted.has(term)) found(slot, term, this.#weights[i]!);
      }
    }
  }

  #grow(): void {
    const capacity = this.#capacity = this.#capacity * 2;
    this.#alive = enlarged(this.#alive, new Uint8Array(capacity));
    this.#types = enlarged(this.#types, new Uint8Array(capacity));
    this.#confidences = enlarged(this.#confidences, new Float32Array(capacity));
    this.#importances = enlarged(this.#importances, new Float32Array(capacity));
    this.#freshness = enlarged(this.#freshness, new Float64Array(capacity));
    this.#expiries = enlarged(this.#expiries, new Float64Array(capacity));
    this.#hasVector = enlarged(this.#hasVector, new Uint8Array(capacity));
    this.#offsets = enlarged(this.#offsets, new Uint32Array(capacity + 1));
    this.#dense = enlarged(this.#dense, new Int8Array(capacity * this.#dimension));
  }
}

/** BM25's weights lie between 0 and 2.2; eight bits hold them finely enough. */
export const HIGHEST_WEIGHT = 2.2;
const WEIGHT_STEPS = 255 / HIGHEST_WEIGHT;

function enlarged<T extends { set(other: T): void }>(from: T, to: T): T {
  to.set(from);
  return to;
}
