/** A longer column of numbers that begins with those of a shorter one. */
export function enlarged<T extends { set(other: T): void }>(from: T, to: T): T {
  to.set(from);
  return to;
}
