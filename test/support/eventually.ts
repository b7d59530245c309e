/** Waits for a condition instead of a time. */
export async function eventually<T>(
  check: () => Promise<T | undefined | false> | T | undefined | false,
  what: string,
  limitMs = 15_000,
): Promise<T> {
  for (const until = Date.now() + limitMs;;) {
    const found = await check();
    if (found) return found;
    if (Date.now() > until) throw new Error(`Waited ${limitMs} ms in vain for ${what}`);
    await new Promise((done) => setTimeout(done, 20));
  }
}
