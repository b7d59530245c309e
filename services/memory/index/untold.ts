/** Qdrant and what it has not been told yet as one: whatever was kept is found, told or not. */
import type { IndexRows } from "../store/index-rows.ts";
import { embeddedIndex } from "./embedded.ts";
import type { MemoryIndex } from "./port.ts";
import type { QdrantIndex } from "./qdrant.ts";

/** What a search reads and compares by itself; a service that is further behind is better called away. */
const UNTOLD_AT_MOST = 500;

export function withUntold(
  index: QdrantIndex,
  rows: Pick<IndexRows, "behind" | "versionsBehind">,
  dimension: number,
): MemoryIndex {
  const aside = embeddedIndex(dimension);
  let searches = 0;

  return {
    ...index,
    async search(tenant, query, signal) {
      // Before the service is asked: what it is told after this reading is found by both, and before it by the service.
      const untold = await rows.behind(index.name, tenant, UNTOLD_AT_MOST + 1);
      if (!untold) throw new Error("What the index knows is not known");
      const { entries, gone } = untold;
      if (entries.length + gone.length > UNTOLD_AT_MOST) throw new Error("The index is far behind");
      const found = await index.search(tenant, query, signal);
      if (entries.length + gone.length === 0) return found;
      const superseded = new Set([...gone, ...entries.map(({ id }) => id)]);
      const name = String(searches++);
      await aside.upsert(name, entries);
      const beside = await aside.search(name, query);
      await aside.drop(name);
      return [...found.filter(({ id }) => !superseded.has(id)), ...beside];
    },

    async versions(tenant) {
      const untold = await rows.versionsBehind(tenant);
      const held = await index.versions(tenant);
      for (const { id, version } of untold) {
        if (version === null) held.delete(id);
        else held.set(id, version);
      }
      return held;
    },
  };
}
