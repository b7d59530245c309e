/** The indexes under the one suite; and what Qdrant is asked for, where there is none to ask. */
import { describe, expect, test } from "vitest";
import { ulid } from "../../contracts/identity.ts";
import { embeddedIndex } from "../../services/memory/index/embedded.ts";
import { filterOf, qdrantIndex } from "../../services/memory/index/qdrant.ts";
import { conformance, DIMENSION, words } from "./memory-index-conformance.ts";

conformance("embedded", async () => embeddedIndex(DIMENSION));
conformance("embedded, its graph from 500 memories on,", async () => embeddedIndex(DIMENSION, { graphLimit: 500 }));

const url = process.env.QDRANT_URL;
if (url) {
  conformance("qdrant", async () => {
    const index = qdrantIndex({ url, embedder: { model: `test-${ulid()}`, dimension: DIMENSION } });
    await index.ensure();
    return index;
  });
} else {
  describe("the qdrant index", () => {
    test.skip("was not tried: set QDRANT_URL to a Qdrant server to run the same suite against it", () => {});
  });
}

describe("what Qdrant is asked", () => {
  test("names the tenant first, and always a way to be seen", () => {
    const filter = filterOf(
      "ten_1",
      words("x", { reach: { agent: "a", team: "t", scopes: ["agent", "team"] }, type: "entity" }),
    );
    expect(filter.must).toEqual([
      { key: "tenant", match: { value: "ten_1" } },
      {
        should: [
          { must: [{ key: "scope", match: { value: "agent" } }, { key: "agent", match: { value: "a" } }] },
          { must: [{ key: "scope", match: { value: "team" } }, { key: "team", match: { value: "t" } }] },
          { must: [{ key: "scope", match: { value: "team" } }, { key: "agent", match: { value: "a" } }] },
        ],
      },
      { key: "type", match: { value: "entity" } },
    ]);
    const blind = filterOf("ten_1", words("x", { reach: { scopes: [] } }));
    expect(blind.must).toContainEqual({ should: [{ key: "scope", match: { value: "none" } }] });
  });
});
