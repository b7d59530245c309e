/** What an operator asks about the index: how far it is, make it anew, compare it with the truth. */
import type { IndexProgress } from "../../../contracts/memory.ts";
import type { Handlers } from "../../../contracts/operations.ts";
import { checkIndex } from "../drift.ts";
import type { Keeper } from "../index/keeper.ts";
import type { MemoryIndex } from "../index/port.ts";
import { recipeOf } from "../prepare.ts";
import type { IndexRows } from "../store/index-rows.ts";

type OperatorOperations = "operator.memory_reindex" | "operator.memory_index" | "operator.memory_index_check";

export function operatorHandlers(deps: {
  readonly rows: IndexRows;
  readonly index: MemoryIndex;
  readonly keeper: Keeper;
  readonly kind: "embedded" | "qdrant";
  readonly model: string;
  readonly trouble: () => string | undefined;
}): Pick<Handlers<"memory">, OperatorOperations> {
  const { rows, index, keeper, kind, model, trouble } = deps;

  const progress = async (generation: number): Promise<IndexProgress> => {
    const [memories, remaining, behind] = await Promise.all([
      rows.countActive(),
      rows.countUnprepared(recipeOf(model, generation)),
      kind === "qdrant" ? rows.countBehind() : 0,
    ]);
    return { embedder: model, index: kind, memories, remaining, behind, trouble: trouble() ?? null };
  };

  return {
    "operator.memory_reindex": async () => progress(await rows.nextGeneration()),
    "operator.memory_index": async () => progress((await rows.recipe()).generation),
    "operator.memory_index_check": ({ body: { repair } }) => checkIndex({ rows, index, keeper }, repair),
  };
}
