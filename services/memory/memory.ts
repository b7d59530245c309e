/** The memory service: what agents keep, who may read it, how it is found and how it hangs together. */
import type { Handlers } from "../../contracts/operations.ts";
import { memoryHandlers } from "./handlers/memories.ts";
import { operatorHandlers } from "./handlers/operator.ts";
import { relationshipHandlers } from "./handlers/relationships.ts";
import { searchHandlers } from "./handlers/search.ts";

export type MemoryDeps =
  & Parameters<typeof memoryHandlers>[0]
  & Parameters<typeof searchHandlers>[0]
  & Parameters<typeof relationshipHandlers>[0]
  & Parameters<typeof operatorHandlers>[0];

export const memory = (deps: MemoryDeps): Handlers<"memory"> => ({
  ...memoryHandlers(deps),
  ...searchHandlers(deps),
  ...relationshipHandlers(deps),
  ...operatorHandlers(deps),
});
