import fc from "fast-check";
import { describe, expect, test } from "vitest";
import type { FilterScope } from "../../runtime/cel.ts";
import { filters } from "../../services/fanout/filter.ts";
import { compileGlob, lettersOf } from "../../services/fanout/glob.ts";
import { globIndex, tenantRoutes } from "../../services/fanout/match.ts";

const event = (type: string, data: unknown = null): FilterScope => ({
  data,
  type,
  source: "test",
  subject: null,
  id: "1",
  time: null,
});
const interest = (event_type: string, more = {}) => ({
  event_type,
  filter_expression: null,
  priority: 0,
  enrichment_depth: "none" as const,
  ...more,
});
const feed = (event_type_glob: string, filter_expression: string | null = null) => ({
  event_type_glob,
  filter_expression,
});

describe("who receives an event", () => {
  const tenant = () => {
    const routes = tenantRoutes(filters());
    for (const agent of ["a", "b"]) routes.setAgent(agent, true);
    return routes;
  };
  const agentsOf = (routes: ReturnType<typeof tenant>, type: string, target?: string) =>
    routes.recipients(event(type), 0, target).recipients.map(({ agent }) => agent).sort();

  test("an agent gets one delivery that names all its reasons, the highest priority and the deepest enrichment", () => {
    const routes = tenant();
    routes.setInterest("a", "i1", interest("x.*", { priority: 3, enrichment_depth: "none" }));
    routes.setInterest("a", "i2", interest("x.y", { priority: 1, enrichment_depth: "full" }));
    routes.setInterest("a", "i3", interest("*", { priority: 0, enrichment_depth: "light" }));
    routes.addMember("c", "a");
    routes.setFeed("c", "f", feed("x.?"));
    const { recipients } = routes.recipients(event("x.y"), 0);
    expect(recipients).toHaveLength(1);
    expect(recipients[0]).toMatchObject({ agent: "a", priority: 3, enrichment: "full" });
    expect(recipients[0]!.matched).toHaveLength(4);
  });
  test("an inactive or unknown agent gets nothing, and all again once it is active", () => {
    const routes = tenant();
    routes.setInterest("a", "i1", interest("*"));
    routes.setInterest("stranger", "i2", interest("*"));
    routes.setAgent("a", false);
    expect(agentsOf(routes, "x")).toEqual([]);
    routes.setAgent("a", true);
    expect(agentsOf(routes, "x")).toEqual(["a"]);
  });
  test("a feed serves whoever is a member at the moment, also those who came after it", () => {
    const routes = tenant();
    routes.setFeed("c", "f", feed("*"));
    expect(agentsOf(routes, "x")).toEqual([]);
    routes.addMember("c", "a");
    routes.addMember("c", "b");
    expect(agentsOf(routes, "x")).toEqual(["a", "b"]);
    routes.removeMember("c", "a");
    expect(agentsOf(routes, "x")).toEqual(["b"]);
    routes.removeFeed("f");
    expect(agentsOf(routes, "x")).toEqual([]);
  });
  test("a target receives the event though nothing matches, unless it is inactive", () => {
    const routes = tenant();
    expect(routes.recipients(event("x"), 0, "a").recipients).toEqual([
      { agent: "a", matched: [], priority: 0, enrichment: "none" },
    ]);
    routes.setInterest("a", "i1", interest("x"));
    expect(routes.recipients(event("x"), 0, "a").recipients[0]!.matched).toEqual([{ interest_id: "i1" }]);
    routes.setAgent("a", false);
    expect(agentsOf(routes, "x", "a")).toEqual([]);
  });
  test("a filter decides on the data; one that fails on an event is no match and is counted", () => {
    const routes = tenant();
    routes.setInterest("a", "i1", interest("*", { filter_expression: "data.total > 10" }));
    routes.setInterest("b", "i2", interest("*", { filter_expression: "not even CEL (" }));
    expect(routes.recipients(event("x", { total: 11 }), 0)).toMatchObject({
      recipients: [{ agent: "a" }],
      filterErrors: 1,
    });
    expect(routes.recipients(event("x", { total: 9 }), 0)).toMatchObject({ recipients: [], filterErrors: 1 });
    expect(routes.recipients(event("x", {}), 0)).toMatchObject({ recipients: [], filterErrors: 2 });
  });
  test("a changed interest no longer matches what it matched before", () => {
    const routes = tenant();
    routes.setInterest("a", "i1", interest("x.*"));
    routes.setInterest("a", "i1", interest("y.*"));
    expect(agentsOf(routes, "x.1")).toEqual([]);
    expect(agentsOf(routes, "y.1")).toEqual(["a"]);
    routes.removeInterest("i1");
    expect(agentsOf(routes, "y.1")).toEqual([]);
  });
  test("an interest or feed that went after an event was stored still matches it, and nothing later", () => {
    const routes = tenant();
    const now = Date.now();
    routes.setInterest("a", "i1", interest("x"));
    routes.addMember("c", "b");
    routes.setFeed("c", "f", feed("x"));
    routes.removeInterest("i1", now);
    routes.removeFeed("f", now);
    const at = (storedAtMs: number) =>
      routes.recipients(event("x"), storedAtMs).recipients.map(({ agent }) => agent).sort();
    expect(at(now - 1)).toEqual(["a", "b"]);
    expect(at(now)).toEqual([]);
    expect(at(now + 1)).toEqual([]);
    expect(routes.recipient(event("x"), "a").matched).toEqual([]);
  });
  test("a removed interest is forgotten in the end", () => {
    const routes = tenant();
    const longAgo = Date.now() - 3_600_000;
    routes.setInterest("a", "i1", interest("x"));
    routes.removeInterest("i1", longAgo);
    expect(routes.recipients(event("x"), longAgo - 1).recipients).toEqual([]);
  });
  test("a replay is matched for its agent alone, active or not", () => {
    const routes = tenant();
    routes.setInterest("a", "i1", interest("x", { priority: 4 }));
    routes.setInterest("b", "i2", interest("x"));
    routes.setAgent("a", false);
    expect(routes.recipient(event("x"), "a")).toMatchObject({ matched: [{ interest_id: "i1" }], priority: 4 });
    expect(routes.recipient(event("z"), "a")).toMatchObject({ matched: [], priority: 0 });
  });
});

test("equal filters are compiled once and asked once per event", () => {
  let compiled = 0;
  let asked = 0;
  const shared = filters(() => {
    compiled++;
    return () => {
      asked++;
      return "match";
    };
  });
  const one = shared.take("same");
  const two = shared.take("same");
  const first = event("x");
  expect([one.verdict(first), two.verdict(first), one.verdict(event("x"))]).toEqual(["match", "match", "match"]);
  expect({ compiled, asked }).toEqual({ compiled: 1, asked: 2 });
});

test("the index finds exactly what a scan of all globs finds, through any history of changes", () => {
  const globs = fc.string({ unit: fc.constantFrom("a", "b", ".", "*", "?"), minLength: 1, maxLength: 6 });
  const changes = fc.array(fc.record({ id: fc.nat(9), glob: fc.option(globs, { nil: undefined }) }), { maxLength: 40 });
  const types = fc.array(fc.string({ unit: fc.constantFrom("a", "b", "."), maxLength: 8 }), { maxLength: 5 });
  fc.assert(
    fc.property(changes, types, (changes, types) => {
      const index = globIndex<number>();
      const kept = new Map<number, ReturnType<typeof compileGlob>>();
      for (const { id, glob } of changes) {
        const before = kept.get(id);
        if (before) index.remove(before, id);
        kept.delete(id);
        if (glob === undefined) continue;
        kept.set(id, compileGlob(glob));
        index.add(kept.get(id)!, id);
      }
      for (const type of types) {
        const scanned = [...kept].filter(([, glob]) => glob.matches(lettersOf(type))).map(([id]) => id);
        expect([...index.matching(type)].sort()).toEqual(scanned.sort());
      }
    }),
    { numRuns: 2_000 },
  );
});
