/** Compares an index with Postgres, and brings it back where it differs. */
import type { IndexCheck } from "../../contracts/memory.ts";
import type { Keeper } from "./index/keeper.ts";
import type { MemoryIndex } from "./index/port.ts";
import type { IndexRows } from "./store/index-rows.ts";

export async function checkIndex(
  deps: {
    readonly rows: Pick<IndexRows, "versions">;
    readonly index: Pick<MemoryIndex, "versions">;
    readonly keeper: Pick<Keeper, "ready" | "repair" | "tenants">;
  },
  repair: boolean,
): Promise<IndexCheck> {
  const { rows, index, keeper } = deps;
  const tenants = await keeper.tenants();
  const sum = { tenants: tenants.length, memories: 0, missing: 0, stale: 0, extra: 0, repaired: false };
  for (const tenant of tenants) {
    await keeper.ready(tenant);
    // The index first: what is written between the two readings is then newer in Postgres, and looked at once more.
    const held = await index.versions(tenant);
    const truth = await rows.versions(tenant);
    const wrong: { ids: string[]; gone: string[] } = { ids: [], gone: [] };
    sum.memories += truth.size;
    for (const [id, version] of truth) {
      const known = held.get(id);
      if (known === version) continue;
      if (known === undefined) sum.missing++;
      else sum.stale++;
      wrong.ids.push(id);
    }
    for (const id of held.keys()) {
      if (truth.has(id)) continue;
      sum.extra++;
      wrong.gone.push(id);
    }
    if (repair && wrong.ids.length + wrong.gone.length > 0) {
      await keeper.repair(tenant, wrong.ids, wrong.gone);
      sum.repaired = true;
    }
  }
  return sum;
}
