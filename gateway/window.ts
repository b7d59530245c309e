/** The arithmetic of a sliding window in one-second buckets. Pure, so that its promise can be tested at any speed. */

export const WINDOW_SECONDS = 60;

/** Second → how many were admitted in it. */
export type Counts = Map<number, number>;

/** Drops what no longer counts. A bucket counts whole until all of it is older than the window. */
export function prune(counts: Counts, second: number): Counts {
  for (const at of counts.keys()) if (at < second - WINDOW_SECONDS || counts.get(at) === 0) counts.delete(at);
  return counts;
}

export function total(counts: Counts): number {
  let sum = 0;
  for (const count of counts.values()) sum += count;
  return sum;
}

/**
 * How many of `wanted` may be admitted in `second`. Near the limit a lease is no larger than those who wait for it:
 * what one gateway holds unused is refused to another.
 */
export function grantIn(counts: Counts, second: number, limit: number, wanted: number, waiting: number): number {
  const free = limit - total(prune(counts, second));
  return Math.max(0, Math.min(free, free < limit / 4 ? waiting : wanted));
}

/** Seconds until the oldest admitted requests leave the window. */
export function resetAfter(counts: Counts, second: number): number {
  const oldest = Math.min(...counts.keys());
  return Number.isFinite(oldest) ? Math.max(1, oldest + WINDOW_SECONDS + 1 - second) : WINDOW_SECONDS;
}
