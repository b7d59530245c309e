/** What a memory service does now and then: note what was read, and let go of what has expired. */
import type { Log } from "../../runtime/log.ts";
import type { MemoryStore } from "./store/memories.ts";

const TOUCH_EVERY_MS = 5_000;
/** `accessed_at` may lag by this much: a memory read a thousand times a minute is written once. */
const TOUCH_AGE_SECONDS = 60;
const TOUCHED_AT_MOST = 10_000;
const EXPIRE_EVERY_MS = 5_000;
const EXPIRE_AT_ONCE = 500;

export interface Chores extends AsyncDisposable {
  /** A memory was read. What is noted is lost with the process: it is a hint, not a ledger. */
  touched(ids: readonly string[]): void;
}

export function startChores(memories: Pick<MemoryStore, "touch" | "expire">, log: Log): Chores {
  const touched = new Set<string>();
  const flush = async () => {
    if (touched.size === 0) return;
    const ids = [...touched];
    touched.clear();
    await memories.touch(ids, TOUCH_AGE_SECONDS);
  };
  const expire = async () => {
    while (await memories.expire(EXPIRE_AT_ONCE) === EXPIRE_AT_ONCE);
  };
  const inHand = new Set<Promise<void>>();
  const every = (ms: number, chore: () => Promise<void>, name: string) =>
    setInterval(() => {
      const work: Promise<void> = chore().catch((error) => log.warn(`memory.${name}_failed`, { error }))
        .finally(() => inHand.delete(work));
      inHand.add(work);
    }, ms);
  const timers = [every(TOUCH_EVERY_MS, flush, "touch"), every(EXPIRE_EVERY_MS, expire, "expire")];
  return {
    touched(ids) {
      if (touched.size < TOUCHED_AT_MOST) { for (const id of ids) touched.add(id); }
    },
    async [Symbol.asyncDispose]() {
      timers.forEach(clearInterval);
      await Promise.all(inHand);
      await flush().catch((error) => log.warn("memory.touch_failed", { error }));
    },
  };
}
