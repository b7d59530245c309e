/**
 * Prepares, in the background, what was prepared by another recipe than today's or could not be prepared at all: after a
 * change of model, a reindex, or an embedder that was away. Search stays useful meanwhile: words are always there, and a
 * vector of another model simply takes no part.
 */
import { setTimeout as pause } from "node:timers/promises";
import type { Log } from "../../runtime/log.ts";
import { LEXICON } from "./lexical.ts";
import { type Preparer, recipeOf } from "./prepare.ts";
import type { IndexRows } from "./store/index-rows.ts";

const AT_ONCE = 64;
const IDLE_MS = 1_000;
const LONGEST_PAUSE_MS = 60_000;

export interface Renewal extends AsyncDisposable {
  /** Why the last attempt failed; undefined when it did not. */
  trouble(): string | undefined;
  readonly generation: number;
}

export function startRenewal(deps: {
  readonly rows: IndexRows;
  readonly preparer: Preparer;
  readonly model: string;
  readonly generation: number;
  readonly log: Log;
}): Renewal {
  const { rows, preparer, model, log } = deps;
  const stop = new AbortController();
  let generation = deps.generation;
  let trouble: string | undefined;

  const renew = async (): Promise<number> => {
    const now = await rows.recipe();
    // Another replica runs a newer configuration: two models must not overwrite each other in turn.
    if (now.model !== model || now.lexicon !== LEXICON) return 0;
    generation = now.generation;
    return await rows.alone("renew", async () => {
      const texts = await rows.unprepared(recipeOf(model, generation), AT_ONCE);
      if (texts.length === 0) return 0;
      const prepared = await preparer.prepareFully(texts, stop.signal);
      await rows.keepPrepared(texts.map((text, i) => ({ ...text, prepared: prepared[i]! })));
      return texts.length;
    }) ?? 0;
  };

  const work = (async () => {
    for (let failures = 0; !stop.signal.aborted;) {
      let pauseMs = IDLE_MS;
      try {
        if (await renew() > 0) pauseMs = 5;
        failures = 0;
        trouble = undefined;
      } catch (error) {
        if (stop.signal.aborted) break;
        trouble = error instanceof Error ? error.message : String(error);
        pauseMs = Math.min(LONGEST_PAUSE_MS, IDLE_MS * 2 ** failures++) * (0.5 + Math.random());
        log.warn("memory.renewal_failed", { error, retry_ms: Math.round(pauseMs) });
      }
      await pause(pauseMs, undefined, { signal: stop.signal }).catch(() => {});
    }
  })();

  return {
    trouble: () => trouble,
    get generation() {
      return generation;
    },
    async [Symbol.asyncDispose]() {
      stop.abort();
      await work;
    },
  };
}
