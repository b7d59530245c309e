/** Walks over graphs of every shape. */
import fc from "fast-check";
import { expect, test } from "vitest";
import type { Relationship } from "../../contracts/memory.ts";
import { traverse } from "../../services/memory/traverse.ts";

type Link = [source: string, target: string, strength: number];
const graph = (links: readonly Link[]) => async (sources: readonly string[]) =>
  links.filter(([source]) => sources.includes(source)).map(([source, target, strength], i): Relationship => ({
    id: `rel_${i}_${source}${target}`,
    tenant_id: "ten_1",
    source_memory_id: source,
    target_memory_id: target,
    relationship_type: "related_to",
    strength,
    metadata: null,
    created_at: "2030-01-01T00:00:00.000Z",
  }));
const walk = async (links: readonly Link[], depth: number) =>
  (await traverse("a", depth, graph(links))).map(({ relationship, depth, cumulative_strength }) => [
    relationship.target_memory_id,
    depth,
    Number(cumulative_strength.toFixed(6)),
  ]);

test.each<[string, Link[], number, unknown[]]>([
  ["nothing", [], 3, []],
  ["links into the start are not followed", [["b", "a", 1]], 3, []],
  ["a chain ends at the depth", [["a", "b", 0.5], ["b", "c", 0.5], ["c", "d", 0.5], ["d", "e", 0.5]], 3, [
    ["b", 1, 0.5],
    ["c", 2, 0.25],
    ["d", 3, 0.125],
  ]],
  ["a cycle ends by itself", [["a", "b", 1], ["b", "a", 1]], 3, [["b", 1, 1]]],
  ["the strongest of two links counts", [["a", "b", 0.2], ["a", "b", 0.9]], 1, [["b", 1, 0.9]]],
  ["least depth wins over strength", [["a", "b", 0.1], ["a", "c", 1], ["c", "b", 1]], 2, [["c", 1, 1], ["b", 1, 0.1]]],
  ["the strongest path of equal length", [["a", "b", 0.9], ["a", "c", 0.5], ["b", "d", 0.1], ["c", "d", 1]], 2, [
    ["b", 1, 0.9],
    ["c", 1, 0.5],
    ["d", 2, 0.5],
  ]],
  ["strength 0 is still a link", [["a", "b", 0], ["b", "c", 1]], 2, [["b", 1, 0], ["c", 2, 0]]],
])("%s", async (_, links, depth, expected) => expect(await walk(links, depth)).toEqual(expected));

test("in any graph each memory comes once, by depth, and never the start", async () => {
  const name = fc.constantFrom("a", "b", "c", "d", "e", "f", "g");
  const links = fc.array(fc.tuple(name, name, fc.double({ min: 0, max: 1, noNaN: true })), { maxLength: 30 });
  await fc.assert(fc.asyncProperty(links, fc.integer({ min: 1, max: 3 }), async (given, depth) => {
    const steps = await traverse("a", depth, graph(given));
    const targets = steps.map(({ relationship }) => relationship.target_memory_id);
    expect(new Set(targets).size).toBe(targets.length);
    expect(targets).not.toContain("a");
    const depths = steps.map((step) => step.depth);
    expect(depths).toEqual([...depths].sort((a, b) => a - b));
    expect(Math.max(0, ...depths)).toBeLessThanOrEqual(depth);
  }));
});
