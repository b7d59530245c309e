/**
 * Memories that the same readers may see, in columns: one agent's own, one team's, or the institution's. A slot is never
 * used twice; what is removed is marked, and left behind when the partition is next made anew.
 */
import { type MemoryType, memoryTypes } from "../../../contracts/memory.ts";
import type { Best } from "./best.ts";
import { enlarged } from "./columns.ts";
import type { Arena } from "./kernel/kernel.ts";
import { CODES_LIMIT, Meanings } from "./meanings.ts";
import type { Entry, Standing } from "./port.ts";
import { Words } from "./words.ts";

const SAMPLE = 128;

export interface Filter {
  readonly type?: MemoryType;
  readonly minConfidence?: number;
  readonly nowMs: number;
  readonly owner?: string;
}

/** What of an entry is kept here; where it belongs is said by the partition it is in. */
type Kept = Omit<Entry, "version" | "team" | "scope">;

export class Partition {
  readonly #arena: Arena;
  readonly #dimension: number;
  readonly #codesLimit: number;
  readonly #words = new Words();
  readonly #meanings: Meanings;
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

  constructor(arena: Arena, dimension: number, codesLimit = CODES_LIMIT) {
    this.#arena = arena;
    this.#dimension = dimension;
    this.#codesLimit = codesLimit;
    this.#meanings = new Meanings(arena, dimension, codesLimit);
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
    if (this.size === this.#capacity) this.#grow();
    const slot = this.size++;
    this.#ids.push(entry.id);
    this.#owners.push(entry.agent);
    this.#alive[slot] = 1;
    this.#types[slot] = memoryTypes.indexOf(entry.type);
    this.#confidences[slot] = entry.confidence;
    this.#importances[slot] = entry.importance;
    this.#freshness[slot] = entry.freshAt;
    this.#expiries[slot] = entry.expiresAt ?? Infinity;
    this.#meanings.add(entry.dense);
    this.#words.add(entry.sparse);
    return slot;
  }

  remove(slot: number): void {
    if (!this.#alive[slot]) return;
    this.#alive[slot] = 0;
    this.removed++;
  }

  /** In how many memories each term occurs. */
  frequencies(terms: Uint32Array): Uint32Array {
    return this.#words.frequencies(terms, (slot) => this.#alive[slot] === 1);
  }

  /** Offers the memories with one of the terms among those that pass. Then `lexicalAt` knows each slot's score. */
  scoreWords(terms: Uint32Array, importances: Float64Array, filter: Filter, best: Best): void {
    this.#words.score(terms, importances, this.#passing(filter), best);
  }

  lexicalAt(slot: number): number {
    return this.#words.scoreAt(slot);
  }

  /** Offers the memories nearest to the query among those that pass. */
  nearest(query: Float32Array, filter: Filter, best: Best): void {
    const passes = this.#passing(filter);
    this.#meanings.nearest(query, passes, this.#shareOf(passes), best);
  }

  similarityAt(slot: number, query: Float32Array): number | null {
    return this.#meanings.similarityAt(slot, query);
  }

  /** The same without what was removed; it takes this one's place. */
  compacted(): Partition {
    const fresh = new Partition(this.#arena, this.#dimension, this.#codesLimit);
    for (let slot = 0; slot < this.size; slot++) {
      if (!this.#alive[slot]) continue;
      const dense = this.#meanings.at(slot);
      const expiry = this.#expiries[slot]!;
      fresh.add({
        id: this.#ids[slot]!,
        agent: this.#owners[slot]!,
        type: memoryTypes[this.#types[slot]!]!,
        ...this.standingAt(slot),
        expiresAt: expiry === Infinity ? null : expiry,
        ...(dense ? { dense } : {}),
        sparse: this.#words.at(slot),
      });
    }
    this.dispose();
    return fresh;
  }

  /** Gives back the memory that is not this language's own. */
  dispose(): void {
    this.#meanings.dispose();
  }

  #passing({ type, minConfidence, nowMs, owner }: Filter): (slot: number) => boolean {
    const [alive, expiries, types, confidences] = [this.#alive, this.#expiries, this.#types, this.#confidences];
    const current = (slot: number) => alive[slot] === 1 && expiries[slot]! > nowMs;
    if (type === undefined && minConfidence === undefined && owner === undefined) return current;
    const wanted = type === undefined ? -1 : memoryTypes.indexOf(type);
    // Kept at 32 bits: what is equal at 64 must not fail here. Postgres decides exactly.
    const least = (minConfidence ?? -1) - 1e-6;
    return (slot) =>
      current(slot) && (wanted === -1 || types[slot] === wanted) && confidences[slot]! >= least &&
      (owner === undefined || this.#owners[slot] === owner);
  }

  /** What share passes, judged by a few slots spread over all. */
  #shareOf(passes: (slot: number) => boolean): number {
    const stride = Math.max(1, Math.floor(this.size / SAMPLE));
    let [passing, looked] = [0, 0];
    for (let slot = this.size - 1; slot >= 0; slot -= stride, looked++) if (passes(slot)) passing++;
    return passing / Math.max(1, looked);
  }

  #grow(): void {
    const capacity = this.#capacity = this.#capacity * 2;
    this.#alive = enlarged(this.#alive, new Uint8Array(capacity));
    this.#types = enlarged(this.#types, new Uint8Array(capacity));
    this.#confidences = enlarged(this.#confidences, new Float32Array(capacity));
    this.#importances = enlarged(this.#importances, new Float32Array(capacity));
    this.#freshness = enlarged(this.#freshness, new Float64Array(capacity));
    this.#expiries = enlarged(this.#expiries, new Float64Array(capacity));
  }
}
