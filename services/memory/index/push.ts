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
/** To ask whether it is back costs nothing, and until then every search is a lesser one. */
const LONGEST_PAUSE_MS = 5_000;
/** A write is answered after that, told or not. */
const PATIENCE_MS = 1_500;

export function pusher(deps: {
  readonly index: QdrantIndex;
  readonly rows: Pick<
    IndexRows,
    "isTold" | "retell" | "pushBehind" | "forgetIndexed" | "tenants"
  >;
  readonly log: Log;
}): Keeper & { readonly looked: Promise<void> } {
  const { index, rows, log } = deps;
  const stop = new AbortController();
  /** Whether the collection is there, whole, and told. Asked again and again: it may be lost at any time. */
  let isPrepared = false;
  let isWhole = false;
  let trouble: string | undefined;
  const { promise: looked, resolve: hasLooked } = Promise.withResolvers<void>();
  let running: Promise<void> = Promise.resolve();
  let next: { ids: string[]; told: Promise<void> } | undefined;

  const push = async (tenant: string, { entries, gone }: Changes): Promise<void> => {
    if (entries.length > 0) await index.upsert(tenant, entries);
    if (gone.length > 0) await index.remove(tenant, gone);
  };

  /** One telling at a time, of all that came meanwhile: a service that hangs takes one connection, not all of them. */
  const tell = (ids: readonly string[]): Promise<void> => {
    if (next) {
      next.ids.push(...ids);
      return next.told;
    }
    const mine = { ids: [...ids], told: Promise.resolve() };
    next = mine;
    return mine.told = running = running.then(async () => {
      next = undefined;
      if (trouble !== undefined) return;
      await rows.pushBehind(index.name, push, { ids: mine.ids });
    }).catch((error: unknown) => {
      trouble ??= error instanceof Error ? error.message : String(error);
      log.warn("memory.index_untold", { memories: mine.ids.length, error });
    });
  };

  const prepare = async (): Promise<void> => {
    const isTold = await rows.isTold(index.name);
    if (isTold === undefined) throw new Error("A replica that started later has another index or model");
    const isThere = await index.exists();
    if (!isTold || !isThere) {
      const isDone = await rows.retell(index.name, { fromNothing: !isThere }, () => index.make());
      if (!isDone) throw new Error("Another replica is making the index");
    } else if (!isWhole) await index.make();
    isWhole = true;
    isPrepared = true;
  };

  const sweeping = (async () => {
    for (let failures = 0; !stop.signal.aborted;) {
      let pauseMs = SWEEP_MS;
      try {
        await prepare().catch((error) => {
          isPrepared = false;
          throw error;
        }).finally(hasLooked);
        if (await rows.pushBehind(index.name, push, { limit: SWEEP_AT_ONCE }) === SWEEP_AT_ONCE) pauseMs = 0;
        failures = 0;
        trouble = undefined;
      } catch (error) {
        trouble = error instanceof Error ? error.message : String(error);
        pauseMs = Math.min(LONGEST_PAUSE_MS, SWEEP_MS * 2 ** failures++) * (0.5 + Math.random());
        log.warn("memory.index_behind", { error, retry_ms: Math.round(pauseMs) });
      }
      await pause(pauseMs, undefined, { signal: stop.signal }).catch(() => {});
    }
  })();

  return {
    /** Settles once it is known whether the service is there. */
    looked,

    async written(_tenant, ids) {
      // An outage is the sweep's to find the end of; requests do not wait for it one by one.
      if (trouble !== undefined || !isPrepared) return;
      const patience = new AbortController();
      const late = pause(PATIENCE_MS, true, { signal: patience.signal }).catch(() => false);
      if (await Promise.race([tell(ids).then(() => false), late])) trouble ??= "No answer in time";
      patience.abort();
    },

    async ready() {
      return isPrepared;
    },

    async repair(tenant, ids, gone) {
      // What differs too: the index may hold a newer version than Postgres, which was put back from a copy.
      await index.remove(tenant, [...ids, ...gone]);
      await rows.forgetIndexed(ids);
      await rows.pushBehind(index.name, push, { ids });
    },

    tenants: () => rows.tenants(),

    trouble: () => trouble,

    async [Symbol.asyncDispose]() {
      stop.abort();
      await Promise.all([sweeping, running]);
    },
  };
}
