/**
 * Keeps the index of this process abreast by asking Postgres, before each search, what the tenant's memories have seen
 * since the last time: one probe of an index when nothing has. A write then has nothing to announce, a replica nothing
 * to miss, and a process that dies takes nothing with it. See docs/decisions/memory-index.md.
 */
import type { Log } from "../../../runtime/log.ts";
import type { IndexRows } from "../store/index-rows.ts";
import type { Keeper } from "./keeper.ts";
import type { MemoryIndex } from "./port.ts";

interface Followed {
  /** What of Postgres the index has seen; undefined while it is first read. */
  snapshot: string | undefined;
  running: Promise<void> | undefined;
  /** Begins when the running one ends; shared by all who came meanwhile. */
  next: Promise<void> | undefined;
  usedAt: number;
}

export interface FollowOptions {
  readonly index: MemoryIndex;
  readonly rows: Pick<IndexRows, "follow" | "renumber" | "entries">;
  readonly log: Log;
  /** How long a search waits for a tenant that is being read for the first time. */
  readonly patienceMs: number;
  /** A tenant nobody has searched for so long is forgotten, and read again when somebody does. */
  readonly idleMs: number;
}

export function follower({ index, rows, log, patienceMs, idleMs }: FollowOptions): Keeper {
  const followed = new Map<string, Followed>();
  let trouble: string | undefined;

  const catchUp = async (tenant: string, state: Followed): Promise<void> => {
    try {
      if (state.snapshot === undefined) await rows.renumber(tenant);
      state.snapshot = await rows.follow(tenant, state.snapshot, async ({ entries, gone }) => {
        if (entries.length > 0) await index.upsert(tenant, entries);
        if (gone.length > 0) await index.remove(tenant, gone);
      });
      trouble = undefined;
    } catch (error) {
      trouble = error instanceof Error ? error.message : String(error);
      throw error;
    }
  };

  const start = (tenant: string, state: Followed): Promise<void> => {
    const run: Promise<void> = catchUp(tenant, state).finally(() => {
      if (state.running === run) state.running = undefined;
    });
    return state.running = run;
  };

  /** Settles after a reading of Postgres that began after the call. */
  const current = (tenant: string): Promise<void> => {
    let state = followed.get(tenant);
    if (!state) followed.set(tenant, state = { snapshot: undefined, running: undefined, next: undefined, usedAt: 0 });
    state.usedAt = Date.now();
    const known = state;
    if (!known.running) return start(tenant, known);
    return known.next ??= known.running.catch(() => {}).then(() => {
      known.next = undefined;
      return start(tenant, known);
    });
  };

  const forgetting = setInterval(() => {
    for (const [tenant, { usedAt, running }] of followed) {
      if (running || Date.now() - usedAt < idleMs) continue;
      followed.delete(tenant);
      void index.drop(tenant);
    }
  }, Math.min(60_000, idleMs));
  forgetting.unref();

  return {
    async written() {},

    async ready(tenant) {
      const reading = current(tenant);
      let timer: ReturnType<typeof setTimeout> | undefined;
      const late = new Promise<"late">((resolve) => timer = setTimeout(() => resolve("late"), patienceMs));
      try {
        const first = await Promise.race([reading, late]);
        if (first !== "late") return true;
        reading.catch((error) => log.warn("memory.index_unread", { tenant, error }));
        return false;
      } finally {
        clearTimeout(timer);
      }
    },

    async repair(tenant, ids, gone) {
      await index.remove(tenant, [...ids, ...gone]);
      await index.upsert(tenant, (await rows.entries(tenant, ids)).entries);
    },

    async tenants() {
      return [...followed.keys()];
    },

    trouble: () => trouble,

    async [Symbol.asyncDispose]() {
      clearInterval(forgetting);
      await Promise.allSettled([...followed.values()].flatMap(({ running, next }) => [running, next]));
    },
  };
}
