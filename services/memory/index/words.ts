/**
 * The words of a partition's memories. Few are looked through one after another; above a number each word has a list of
 * where it occurs.
 */
import type { SparseVector } from "../lexical.ts";
import type { Best } from "./best.ts";
import { enlarged } from "./columns.ts";

/** Below this, a memory's words are looked through as quickly as lists of them are kept. */
const POSTINGS_LIMIT = 2_000;

/** BM25's weights lie between 0 and 2.2; eight bits hold them finely enough. */
export const HIGHEST_WEIGHT = 2.2;
const WEIGHT_STEPS = 255 / HIGHEST_WEIGHT;

/** Growing list of pairs for one term: slot in the upper 24 bits, weight in the lower 8. */
interface Postings {
  packed: Uint32Array;
  count: number;
}

export class Words {
  #size = 0;
  #terms = new Uint32Array(256);
  #weights = new Uint8Array(256);
  /** Where each slot's words begin; one longer than the slots. */
  #offsets = new Uint32Array(17);
  #postings: Map<number, Postings> | undefined;
  #scores = new Float32Array(16);

  /** Those of the next slot. */
  add({ terms, weights }: SparseVector): void {
    const slot = this.#size++;
    if (slot + 2 > this.#offsets.length) {
      this.#offsets = enlarged(this.#offsets, new Uint32Array(2 * this.#offsets.length));
    }
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
    if (this.#postings) this.#post(slot);
    else if (this.#size > POSTINGS_LIMIT) {
      this.#postings = new Map();
      for (let each = 0; each < this.#size; each++) this.#post(each);
    }
  }

  /** As they came in: weights are exact at their steps. */
  at(slot: number): SparseVector {
    const [from, until] = [this.#offsets[slot]!, this.#offsets[slot + 1]!];
    return {
      terms: this.#terms.slice(from, until),
      weights: Float32Array.from(this.#weights.subarray(from, until), (weight) => weight / WEIGHT_STEPS),
    };
  }

  /** In how many memories each term occurs. Lists still count what was removed, until the partition is made anew. */
  frequencies(terms: Uint32Array, isAlive: (slot: number) => boolean): Uint32Array {
    const found = new Uint32Array(terms.length);
    if (this.#postings) {
      for (let i = 0; i < terms.length; i++) found[i] = this.#postings.get(terms[i]!)?.count ?? 0;
      return found;
    }
    const place = new Map<number, number>();
    terms.forEach((term, i) => place.set(term, i));
    this.#eachOccurrence(terms, (slot, term) => {
      if (isAlive(slot)) found[place.get(term)!]!++;
    });
    return found;
  }

  /** Scores every memory with one of the terms, and offers those that pass. Then `scoreAt` knows each slot's score. */
  score(terms: Uint32Array, importances: Float64Array, passes: (slot: number) => boolean, best: Best): void {
    const size = this.#size;
    if (this.#scores.length < size) this.#scores = new Float32Array(this.#offsets.length);
    else this.#scores.fill(0, 0, size);
    const scores = this.#scores;
    if (this.#postings) {
      for (let i = 0; i < terms.length; i++) {
        const postings = this.#postings.get(terms[i]!);
        if (postings) accumulate(scores, postings, importances[i]! / 255);
      }
    } else {
      const place = new Map<number, number>();
      terms.forEach((term, i) => place.set(term, importances[i]! / 255));
      this.#eachOccurrence(terms, (slot, term, weight) => scores[slot]! += weight * place.get(term)!);
    }
    for (let slot = 0; slot < size; slot++) {
      const score = scores[slot]!;
      if (score > best.least && passes(slot)) best.offer(slot, score);
    }
  }

  scoreAt(slot: number): number {
    return this.#scores[slot] ?? 0;
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
    for (let slot = 0; slot < this.#size; slot++) {
      const until = this.#offsets[slot + 1]!;
      for (let i = this.#offsets[slot]!; i < until; i++) {
        const term = this.#terms[i]!;
        if (hint[term & 4_095] === 1 && wanted.has(term)) found(slot, term, this.#weights[i]!);
      }
    }
  }
}

/** A function of its own, because it is most of what a search by words costs and is compiled best so. */
function accumulate(scores: Float32Array, { packed, count }: Postings, factor: number): void {
  for (let k = 0; k < count; k++) {
    const pair = packed[k]!;
    scores[pair >>> 8]! += (pair & 255) * factor;
  }
}
