/**
 * Keeps an index service abreast by telling it: at once after a commit, and again by any replica for what could not be
 * told. A row above its `indexed_version` is the outbox; nothing else is kept, so nothing can disagree with it.
 */
import { setTimeout as pause } from "node:timers/promises";
import type { Log } from "../../../runtime/log.ts";
import type { Changes, IndexRows } from "../store/index-rows.ts";
import type { Keeper } from "./keeper.ts";
import type { QdrantIndex } from "./qdrant.ts";

const SWEEP_MS = 1_000;
const SWEEP_AT_ONCE = 200;
const LONGEST_PAUSE_MS = 30_000;
/** What a search compares by itself while the service is behind; beyond that it is better called away. */
const MISSING_AT_MOST = 500;

export function pusher(deps: {
  readonly index: QdrantIndex;
  readonly rows: Pick<IndexRows, "pushBehind" | "behind" | "forgetIndexed" | "tenants">;
  readonly log: Log;
}): Keeper {
  const { index, rows, log } = deps;
  const stop = new AbortController();
  let isPrepared = false;
  let trouble: string | undefined;

  const push = async (tenant: string, { entries, gone }: Changes): Promise<void> => {
    if (entries.length > 0) await index.upsert(tenant, entries);
    if (gone.length > 0) await index.remove(tenant, gone);
  };

  /** A collection just made knows nothing, whatever the rows say. */
  const prepare = async (): Promise<void> => {
    if (isPrepared) return;
    if (await index.ensure()) await rows.forgetIndexed();
    isPrepared = true;
  };

  const sweeping = (async () => {
    for (let failures = 0; !stop.signal.aborted;) {
      let pauseMs = SWEEP_MS;
      try {
        await prepare();
        if (await rows.pushBehind(push, { limit: SWEEP_AT_ONCE }) === SWEEP_AT_ONCE) pauseMs = 0;
        failures = 0;
        trouble = undefined;
      } catch (error) {
        // Collections are made at first use; one that was removed since is made again.
        isPrepared = false;
        trouble = error instanceof Error ? error.message : String(error);
        pauseMs = Math.min(LONGEST_PAUSE_MS, SWEEP_MS * 2 ** failures++) * (0.5 + Math.random());
        log.warn("memory.index_behind", { error, retry_ms: Math.round(pauseMs) });
      }
      await pause(pauseMs, undefined, { signal: stop.signal }).catch(() => {});
    }
  })();

  return {
    async written(tenant, ids) {
      // An outage is the sweep's to find the end of; requests do not wait for it one by one.
      if (trouble !== undefined || !isPrepared) return;
      await rows.pushBehind(push, { tenant, ids }).catch((error: unknown) => {
        log.warn("memory.index_untold", { memories: ids.length, error });
      });
    },

    async ready(tenant) {
      if (!isPrepared) return { state: "away" };
      const { entries, gone } = await rows.behind(tenant, MISSING_AT_MOST + 1);
      if (entries.length + gone.length > MISSING_AT_MOST) return { state: "away" };
      return { state: "ready", missing: entries, gone: new Set([...gone, ...entries.map(({ id }) => id)]) };
    },

    async repair(tenant, ids, gone) {
      await index.remove(tenant, gone);
      await rows.forgetIndexed(ids);
      await rows.pushBehind(push, { tenant, ids });
    },

    tenants: () => rows.tenants(),

    trouble: () => trouble,

    async [Symbol.asyncDispose]() {
      stop.abort();
      await sweeping;
    },
  };
}
