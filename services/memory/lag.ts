/** How far search is behind what was kept: told every now and then, for all tenants together. */
import type { Log } from "../../runtime/log.ts";
import { measure } from "../../runtime/measure.ts";
import { recipeOf } from "./prepare.ts";
import type { IndexRows } from "./store/index-rows.ts";

const EVERY_MS = 15_000;

export function watchLag(deps: {
  readonly rows: Pick<IndexRows, "countUnprepared" | "countBehind">;
  readonly model: string;
  readonly generation: () => number;
  /** Whether there is an index service that has to be told. */
  readonly outbox: boolean;
  readonly log: Log;
}): AsyncDisposable {
  const { rows, model, generation, outbox, log } = deps;
  const look = async () => {
    const [unprepared, unindexed] = await Promise.all([
      rows.countUnprepared(recipeOf(model, generation())),
      outbox ? rows.countBehind() : 0,
    ]);
    measure().memoriesUnprepared.record(unprepared);
    measure().memoriesUnindexed.record(unindexed);
  };
  let looking = look().catch(() => {});
  const timer = setInterval(() => {
    looking = looking.then(look).catch((error: unknown) => log.warn("memory.lag_unknown", { error }));
  }, EVERY_MS);
  return {
    async [Symbol.asyncDispose]() {
      clearInterval(timer);
      await looking;
    },
  };
}
