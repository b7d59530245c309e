/** The best few of many, kept as a heap whose root is the least of them. */
export class Best {
  readonly room: number;
  readonly slots: Int32Array;
  readonly scores: Float64Array;
  count = 0;
  /** What an offer must exceed: the floor at first, then the least of what is kept. */
  least: number;
  readonly #floor: number;

  constructor(room: number, floor: number) {
    this.room = room;
    this.least = this.#floor = floor;
    this.slots = new Int32Array(room);
    this.scores = new Float64Array(room);
  }

  clear(): void {
    this.count = 0;
    this.least = this.#floor;
  }

  /** The slots of those that score at least so much. */
  from(least: number): number[] {
    const slots: number[] = [];
    for (let i = 0; i < this.count; i++) if (this.scores[i]! >= least) slots.push(this.slots[i]!);
    return slots;
  }

  offer(slot: number, score: number): void {
    if (!(score > this.least) || this.room === 0) return;
    let at: number;
    if (this.count < this.room) {
      at = this.count++;
      while (at > 0) {
        const parent = (at - 1) >> 1;
        if (this.scores[parent]! <= score) break;
        this.#put(at, this.slots[parent]!, this.scores[parent]!);
        at = parent;
      }
    } else {
      at = 0;
      for (let child = 1; child < this.count; child = 2 * at + 1) {
        if (child + 1 < this.count && this.scores[child + 1]! < this.scores[child]!) child++;
        if (this.scores[child]! >= score) break;
        this.#put(at, this.slots[child]!, this.scores[child]!);
        at = child;
      }
    }
    this.#put(at, slot, score);
    if (this.count === this.room) this.least = this.scores[0]!;
  }

  #put(at: number, slot: number, score: number): void {
    this.slots[at] = slot;
    this.scores[at] = score;
  }
}
