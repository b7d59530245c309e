/** The index of memories: made anew, watched, compared with the memories. */
import { setTimeout as pause } from "node:timers/promises";
import { type Command, Option } from "commander";
import type { IndexProgress } from "../../contracts/memory.ts";
import { example, type Operator } from "../operator.ts";

const LOOK_EVERY_MS = 1_000;

export function reindexCommands(program: Command, { ask, print, say, fail }: Operator): void {
  program.command("reindex")
    .description("compute words and vectors of all memories anew; search goes on meanwhile")
    .argument("[what]", "memories, which is all there is to index", "memories")
    .addOption(new Option("--status", "only say how far it is").conflicts(["check", "repair"]))
    .addOption(new Option("--check", "only compare the index with the memories").conflicts("repair"))
    .option("--repair", "compare, and bring the index to what the memories are")
    .option("--no-wait", "do not wait until it is done")
    .addHelpText("after", example("reindex memories", "reindex --status", "reindex --check", "reindex --repair"))
    .action(async (what: string, options: { status?: true; check?: true; repair?: true; wait: boolean }) => {
      if (what !== "memories") throw new Error(`There is no index of ${what}: only memories have one`);
      if (options.check || options.repair) {
        const found = await ask("operator.memory_index_check", { repair: options.repair === true });
        const { tenants, memories, missing, stale, extra, repaired } = found;
        const verdict = missing + stale + extra === 0 ? "in agreement" : repaired ? "repaired" : "different";
        print(
          found,
          `${memories} memories of ${tenants} tenants in the index: ${verdict} (${missing} missing, ${stale} stale, ${extra} too many)`,
        );
        if (verdict === "different") fail();
        return;
      }
      let progress = await ask(options.status ? "operator.memory_index" : "operator.memory_reindex", {});
      while (!options.status && options.wait && progress.remaining + progress.behind > 0) {
        say(line(progress));
        await pause(LOOK_EVERY_MS);
        progress = await ask("operator.memory_index", {});
      }
      print(progress, line(progress));
    });
}

const line = ({ memories, remaining, behind, embedder, index, trouble }: IndexProgress): string =>
  `${memories - remaining} of ${memories} memories prepared by ${embedder}` +
  (index === "embedded" ? "" : `, ${behind} not yet told to ${index}`) +
  (trouble === null ? "" : `; trouble: ${trouble}`);
