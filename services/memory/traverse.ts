/** Walking the links out of a memory, breadth first. */
import type { Relationship } from "../../contracts/memory.ts";

export interface Reached {
  /** The link by which the memory was reached. */
  readonly relationship: Relationship;
  readonly depth: number;
  /** The product of the strengths along the path. */
  readonly cumulative_strength: number;
}

/** However dense the links: what one answer can carry. */
const MAX_REACHED = 1_000;

/**
 * Each memory once, at its least depth, over the strongest path of that length. `linksFrom` answers only links to
 * memories that may be seen, so an unseen one is neither shown nor walked through. The start is never reached again.
 */
export async function traverse(
  start: string,
  depth: number,
  linksFrom: (sources: readonly string[]) => Promise<readonly Relationship[]>,
): Promise<Reached[]> {
  const strengths = new Map([[start, 1]]);
  const reached: Reached[] = [];
  let frontier = [start];
  for (let level = 1; level <= depth && frontier.length > 0 && reached.length < MAX_REACHED; level++) {
    const best = new Map<string, Reached>();
    for (const relationship of await linksFrom(frontier)) {
      const { source_memory_id: source, target_memory_id: target } = relationship;
      if (strengths.has(target)) continue;
      const cumulative_strength = strengths.get(source)! * relationship.strength;
      const known = best.get(target);
      if (!known || cumulative_strength > known.cumulative_strength) {
        best.set(target, { relationship, depth: level, cumulative_strength });
      }
    }
    const found = [...best.values()].sort((a, b) =>
      b.cumulative_strength - a.cumulative_strength || (a.relationship.id < b.relationship.id ? -1 : 1)
    );
    for (const one of found) strengths.set(one.relationship.target_memory_id, one.cumulative_strength);
    reached.push(...found);
    frontier = found.map(({ relationship }) => relationship.target_memory_id);
  }
  return reached.slice(0, MAX_REACHED);
}
