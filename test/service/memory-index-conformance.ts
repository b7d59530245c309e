/** What every index of memories must do, whatever it is made of. */
import { describe, expect, test } from "vitest";
import { memoryScopes } from "../../contracts/memory.ts";
import { ulid } from "../../contracts/identity.ts";
import type { Candidate, Entry, IndexQuery, MemoryIndex, Reach } from "../../services/memory/index/port.ts";
import { queryTerms, sparseOf } from "../../services/memory/lexical.ts";

export const DIMENSION = 64;

/** A direction of its own for each number; neighbours in number are near in direction. */
export function direction(n: number, dimension = DIMENSION): Float32Array {
  const vector = Float32Array.from({ length: dimension }, (_, i) => Math.cos(n * 0.37 * (i + 1)) + 0.1 * i);
  const length = Math.hypot(...vector);
  return vector.map((value) => value / length);
}

export function entry(id: string, text: string, more: Partial<Entry> = {}): Entry {
  return {
    id,
    version: 1,
    agent: "agt_me",
    team: null,
    scope: "institutional",
    type: "semantic",
    confidence: 0.5,
    importance: 0.5,
    freshAt: 1_700_000_000_000,
    expiresAt: null,
    sparse: sparseOf("", text),
    ...more,
  };
}

const everything: Reach = { agent: "agt_me", team: "red", scopes: memoryScopes };
export const words = (text: string, more: Partial<IndexQuery> = {}): IndexQuery => ({
  reach: everything,
  nowMs: 1_800_000_000_000,
  sparse: queryTerms(text),
  count: 100,
  ...more,
});
const meaning = (dense: Float32Array, more: Partial<IndexQuery> = {}): IndexQuery => ({
  reach: everything,
  nowMs: 1_800_000_000_000,
  dense,
  count: 100,
  ...more,
});
const ids = (candidates: readonly Candidate[]) => candidates.map(({ id }) => id).sort();

export function conformance(name: string, open: () => Promise<MemoryIndex>): void {
  describe(`the ${name} index`, () => {
    const fresh = async () => ({ index: await open(), tenant: `ten_${ulid()}` });

    test("finds what it was told by its words and by its meaning", async () => {
      const { index, tenant } = await fresh();
      await using _ = index;
      await index.upsert(tenant, [
        entry("m1", "the invoice is due", { dense: direction(1) }),
        entry("m2", "the parrot speaks", { dense: direction(50) }),
      ]);
      expect(ids(await index.search(tenant, words("invoices")))).toEqual(["m1"]);
      const near = await index.search(tenant, meaning(direction(50)));
      expect(near.sort((a, b) => b.similarity! - a.similarity!)[0]!.id).toBe("m2");
      for (const { similarity, lexical } of near) {
        expect(lexical).toBeNull();
        expect(similarity).toBeGreaterThanOrEqual(0);
        expect(similarity).toBeLessThanOrEqual(1);
      }
    });

    test("tells what ranking needs", async () => {
      const { index, tenant } = await fresh();
      await using _ = index;
      await index.upsert(tenant, [
        entry("m1", "walrus", { confidence: 0.25, importance: 0.75, freshAt: 1_750_000_000_000 }),
      ]);
      const [found] = await index.search(tenant, words("walrus"));
      expect(found).toMatchObject({ id: "m1", confidence: 0.25, importance: 0.75, freshAt: 1_750_000_000_000 });
      expect(found!.lexical).toBeGreaterThan(0);
      expect(found!.lexical).toBeLessThanOrEqual(1);
    });

    test("never answers for another tenant", async () => {
      const { index, tenant } = await fresh();
      await using _ = index;
      const foreign = `ten_${ulid()}`;
      await index.upsert(tenant, [entry("m1", "secret walrus", { dense: direction(1) })]);
      await index.upsert(foreign, [entry("m1", "other walrus", { dense: direction(2) }), entry("m2", "their walrus")]);
      expect(ids(await index.search(tenant, { ...words("walrus"), dense: direction(1) }))).toEqual(["m1"]);
      expect([...(await index.versions(tenant)).keys()]).toEqual(["m1"]);
      await index.remove(foreign, ["m1"]);
      await index.drop(foreign);
      expect(ids(await index.search(foreign, words("walrus")))).toEqual([]);
      expect(ids(await index.search(tenant, words("secret")))).toEqual(["m1"]);
      expect(ids(await index.search(`ten_${ulid()}`, words("walrus")))).toEqual([]);
    });

    test("told twice it knows once, and an older version never replaces a newer", async () => {
      const { index, tenant } = await fresh();
      await using _ = index;
      const newer = entry("m1", "zebra", { version: 3 });
      await index.upsert(tenant, [newer]);
      await index.upsert(tenant, [newer]);
      await index.upsert(tenant, [entry("m1", "walrus", { version: 2 })]);
      expect(ids(await index.search(tenant, words("zebra")))).toEqual(["m1"]);
      expect(ids(await index.search(tenant, words("walrus")))).toEqual([]);
      expect(await index.versions(tenant)).toEqual(new Map([["m1", 3]]));
    });

    test("a change is found by what it says now, and in the scope it has now", async () => {
      const { index, tenant } = await fresh();
      await using _ = index;
      await index.upsert(tenant, [entry("m1", "walrus", { scope: "agent", agent: "agt_you" })]);
      expect(ids(await index.search(tenant, words("walrus")))).toEqual([]);
      await index.upsert(tenant, [entry("m1", "zebra", { agent: "agt_you", version: 2 })]);
      expect(ids(await index.search(tenant, words("walrus")))).toEqual([]);
      expect(ids(await index.search(tenant, words("zebra")))).toEqual(["m1"]);
    });

    test("what was removed is gone, and may come back", async () => {
      const { index, tenant } = await fresh();
      await using _ = index;
      await index.upsert(tenant, [entry("m1", "walrus", { dense: direction(1) }), entry("m2", "walrus")]);
      await index.remove(tenant, ["m1", "never-there"]);
      expect(ids(await index.search(tenant, { ...words("walrus"), dense: direction(1) }))).toEqual(["m2"]);
      expect([...(await index.versions(tenant)).keys()]).toEqual(["m2"]);
      await index.upsert(tenant, [entry("m1", "walrus", { version: 5 })]);
      expect(ids(await index.search(tenant, words("walrus")))).toEqual(["m1", "m2"]);
    });

    test("shows a reader its own, its team's and the institution's, and no more", async () => {
      const { index, tenant } = await fresh();
      await using _ = index;
      const all: Entry[] = [];
      for (const agent of ["agt_me", "agt_you"]) {
        all.push(entry(`private ${agent}`, "walrus", { agent, scope: "agent" }));
        for (const team of ["red", "blue"]) {
          all.push(entry(`${team} ${agent}`, "walrus", { agent, team, scope: "team" }));
        }
        all.push(entry(`open ${agent}`, "walrus", { agent }));
      }
      await index.upsert(tenant, all);
      const seen = async (reach: Reach) => ids(await index.search(tenant, words("walrus", { reach })));
      const open_ = ["open agt_me", "open agt_you"];
      expect(await seen(everything)).toEqual([
        "blue agt_me",
        ...open_,
        "private agt_me",
        "red agt_me",
        "red agt_you",
      ]);
      expect(await seen({ agent: "agt_none", scopes: memoryScopes })).toEqual(open_);
      expect(await seen({ everyTeam: true, scopes: memoryScopes })).toEqual([
        "blue agt_me",
        "blue agt_you",
        ...open_,
        "red agt_me",
        "red agt_you",
      ]);
      expect(await seen({ ...everything, scopes: ["agent"] })).toEqual(["private agt_me"]);
      expect(await seen({ ...everything, scopes: ["team"] })).toEqual(["blue agt_me", "red agt_me", "red agt_you"]);
      expect(await seen({ ...everything, scopes: ["institutional"] })).toEqual(open_);
      expect(await seen({ everyTeam: true, scopes: ["agent"] })).toEqual([]);
      expect(await seen({ ...everything, scopes: [] })).toEqual([]);
    });

    test("filters by type, confidence and expiry", async () => {
      const { index, tenant } = await fresh();
      await using _ = index;
      await index.upsert(tenant, [
        entry("plain", "walrus", { dense: direction(1) }),
        entry("episode", "walrus", { type: "episodic", dense: direction(1) }),
        entry("sure", "walrus", { confidence: 0.9, dense: direction(1) }),
        entry("over", "walrus", { expiresAt: 1_799_999_999_999, dense: direction(1) }),
        entry("lasting", "walrus", { expiresAt: 1_800_000_000_001, dense: direction(1) }),
      ]);
      for (const leg of [words("walrus"), meaning(direction(1))]) {
        expect(ids(await index.search(tenant, leg))).toEqual(["episode", "lasting", "plain", "sure"]);
        expect(ids(await index.search(tenant, { ...leg, type: "episodic" }))).toEqual(["episode"]);
        expect(ids(await index.search(tenant, { ...leg, minConfidence: 0.9 }))).toEqual(["sure"]);
        expect(ids(await index.search(tenant, { ...leg, minConfidence: 0.95 }))).toEqual([]);
      }
    });

    test("a memory without a vector is found by its words", async () => {
      const { index, tenant } = await fresh();
      await using _ = index;
      await index.upsert(tenant, [entry("bare", "walrus"), entry("full", "zebra", { dense: direction(1) })]);
      expect(ids(await index.search(tenant, { ...words("walrus"), dense: direction(1) }))).toEqual(["bare", "full"]);
      expect(ids(await index.search(tenant, meaning(direction(1))))).toEqual(["full"]);
    });

    test("what is proposed for its words is judged by its meaning too, and the other way round", async () => {
      const { index, tenant } = await fresh();
      await using _ = index;
      const long = Array.from({ length: 400 }, (_, i) => `filler${i}x`).join(" ");
      // A cosine of about 0.6 with the question, where those that are near have more than 0.9.
      const far = new Float32Array(DIMENSION).fill(Math.sqrt(1 / 8), DIMENSION - 8);
      await index.upsert(tenant, [
        ...Array.from(
          { length: 6 },
          (_, i) => entry(`near${i}`, `unrelated u${i}x`, { dense: direction(1.2 + i / 50) }),
        ),
        ...Array.from({ length: 6 }, (_, i) => entry(`said${i}`, "walrus", { dense: far })),
        entry("both", `walrus ${long}`, { dense: direction(1) }),
        entry("bare", "walrus walrus"),
      ]);
      const query = { ...words("walrus"), dense: direction(1), count: 4 };
      const found = new Map((await index.search(tenant, query)).map((one) => [one.id, one]));
      const said = [...found.values()].find(({ id }) => id.startsWith("said"))!;
      const cosine = far.reduce((sum, value, i) => sum + value * direction(1)[i]!, 0);
      expect(said.similarity).toBeCloseTo(cosine, 1);
      expect(found.get("both")!.lexical).toBeGreaterThan(0);
      expect(found.get("both")!.lexical).toBeLessThan(said.lexical!);
      expect([...found.values()].find(({ id }) => id.startsWith("near"))!.lexical).toBe(0);
      expect(found.get("bare")).toMatchObject({ similarity: null });
    });

    test("how rare a word is, is judged by what the reader may see", async () => {
      const { index, tenant } = await fresh();
      await using _ = index;
      const many = (prefix: string, text: string, more: Partial<Entry> = {}) =>
        Array.from({ length: 60 }, (_, i) => entry(`${prefix}${i}`, text, more));
      await index.upsert(`ten_${ulid()}`, [...many("a", "walrus"), ...many("b", "walrus")]);
      await index.upsert(tenant, [
        ...many("secret", "walrus", { scope: "agent", agent: "agt_you" }),
        ...many("common", "zebra"),
        entry("rare", "walrus"),
      ]);
      const found = new Map((await index.search(tenant, words("walrus zebra"))).map((one) => [one.id, one.lexical!]));
      expect(found.get("rare")! / found.get("common0")!).toBeGreaterThan(2);
    });

    test("many of the longest memories are told at once", async () => {
      const { index, tenant } = await fresh();
      await using _ = index;
      // As many different words as the longest content has: letters of a script that is read in pairs.
      const longest = (seed: number) => {
        let at = seed;
        return Array.from({ length: 32_000 }, () => {
          at = (Math.imul(at, 1_103_515_245) + 12_345) >>> 0;
          return String.fromCodePoint(0x4e00 + (at >>> 8) % 20_000);
        }).join("");
      };
      const entries = Array.from({ length: 30 }, (_, n) => entry(`m${n}`, longest(n)));
      await index.upsert(tenant, entries);
      expect((await index.versions(tenant)).size).toBe(entries.length);
    }, 120_000);

    test("thousands, changed and removed again and again, are still exactly what was told last", async () => {
      const { index, tenant } = await fresh();
      await using _ = index;
      const count = 3_000;
      const told = new Map<string, number>();
      for (let round = 1; round <= 3; round++) {
        const batch: Entry[] = [];
        for (let i = 0; i < count; i++) {
          if ((i + round) % 3 === 0) continue;
          batch.push(entry(`m${i}`, `number n${i}x round r${round}x`, { version: round, dense: direction(i) }));
          told.set(`m${i}`, round);
        }
        await index.upsert(tenant, batch);
        const gone = [...Array(count).keys()].filter((i) => i % 7 === round).map((i) => `m${i}`);
        await index.remove(tenant, gone);
        for (const id of gone) told.delete(id);
      }
      expect(await index.versions(tenant)).toEqual(told);
      for (const [id, version] of [...told].filter((_, i) => i % 97 === 0)) {
        const found = await index.search(tenant, words(`n${id.slice(1)}x`));
        expect(found.map((one) => one.id)).toEqual([id]);
        const inRound = await index.search(tenant, words(`r${version}x n${id.slice(1)}x`));
        expect(inRound.sort((a, b) => b.lexical! - a.lexical!)[0]!.id).toBe(id);
      }
    }, 120_000);

    test("the nearest of thousands are found, also while a filter lets few pass", async () => {
      const { index, tenant } = await fresh();
      await using _ = index;
      const count = 6_000;
      const vectors = Array.from({ length: count }, (_, i) => direction(i));
      await index.upsert(
        tenant,
        vectors.map((dense, i) =>
          entry(`m${i}`, `n${i}x`, { dense, type: i % 100 === 0 ? "entity" : "semantic", confidence: (i % 10) / 10 })
        ),
      );
      const nearestOf = (query: Float32Array, passes: (i: number) => boolean) =>
        vectors.map((vector, i) => ({ i, score: vector.reduce((sum, value, k) => sum + value * query[k]!, 0) }))
          .filter(({ i }) => passes(i)).sort((a, b) => b.score - a.score).slice(0, 10);
      let shared = 0;
      for (let q = 0; q < 20; q++) {
        const query = direction(q * 71 + 0.5);
        for (
          const [more, passes] of [
            [{}, () => true],
            [{ type: "entity" }, (i: number) => i % 100 === 0],
            [{ minConfidence: 0.9 }, (i: number) => i % 10 === 9],
          ] as const
        ) {
          const found = (await index.search(tenant, meaning(query, more))).sort((a, b) => b.similarity! - a.similarity!)
            .slice(0, 10);
          // By score, not by id: at the edge of the ten, equals are as good as each other.
          const worst = nearestOf(query, passes)[9]!.score;
          shared += found.filter(({ similarity }) => similarity! >= Math.max(0, worst) - 0.005).length / 10;
        }
      }
      expect(shared / 60).toBeGreaterThanOrEqual(0.98);
    }, 120_000);
  });
}
