/** Waiting, with an end to it. */

/** A wait that ends early when its signal says so. */
export const pause = (ms: number, signal: AbortSignal): Promise<void> =>
  new Promise((resolve) => {
    if (signal.aborted) return resolve();
    const done = () => {
      clearTimeout(timer);
      signal.removeEventListener("abort", done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    signal.addEventListener("abort", done);
  });

/**
 * Work that is given up after a time, or when its caller gives up. Unlike a signal with a timeout of its own, nothing is
 * left behind to fire after the work is done.
 */
export async function within<T>(
  ms: number,
  signal: AbortSignal | undefined,
  work: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const patience = new AbortController();
  const giveUp = () => patience.abort(signal?.reason);
  const timer = setTimeout(() => patience.abort(new Error(`Not done within ${ms} ms`)), ms);
  if (signal?.aborted) giveUp();
  signal?.addEventListener("abort", giveUp);
  try {
    return await work(patience.signal);
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", giveUp);
  }
}
