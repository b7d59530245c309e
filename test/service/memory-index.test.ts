/** The indexes under the one suite; and what Qdrant is asked for, where there is none to ask. */
import { QdrantClient } from "@qdrant/js-client-rest";
import { afterAll, describe, expect, test } from "vitest";
import { ulid } from "../../contracts/identity.ts";
import { embeddedIndex } from "../../services/memory/index/embedded.ts";
import { addressOf, filterOf, qdrantIndex } from "../../services/memory/index/qdrant.ts";
import { eventually } from "../support/eventually.ts";
import { type Qdrant, qdrant, qdrantProgram } from "../support/qdrant.ts";
import { conformance, DIMENSION, direction, entry, words } from "./memory-index-conformance.ts";

conformance("embedded", async () => embeddedIndex(DIMENSION));
conformance(
  "embedded, comparing codes from 500 memories on,",
  async () => embeddedIndex(DIMENSION, { codesLimit: 500 }),
);

if (process.env.QDRANT_URL || qdrantProgram) {
  let own: Promise<Qdrant> | undefined;
  afterAll(async () => (await own)?.[Symbol.asyncDispose]());
  conformance("qdrant", async () => {
    const url = process.env.QDRANT_URL ?? (await (own ??= qdrant())).url;
    const { QDRANT_API_KEY: apiKey } = process.env;
    const embedder = { model: `test-${ulid()}`, dimension: DIMENSION };
    const index = qdrantIndex({ url, ...(apiKey ? { apiKey } : {}), embedder });
    await index.make();
    return index;
  });

  test("a graph of Qdrant's that begins at others' memories hides nobody's own", async () => {
    const url = process.env.QDRANT_URL ?? (await (own ??= qdrant())).url;
    const { QDRANT_API_KEY: apiKey } = process.env;
    const index = qdrantIndex({
      url,
      ...(apiKey ? { apiKey } : {}),
      embedder: { model: `test-${ulid()}`, dimension: DIMENSION },
    });
    await index.make();
    const client = new QdrantClient({ url, ...(apiKey ? { apiKey } : {}), checkCompatibility: false });
    // From 40 memories of 64 numbers on, rather than from 40,000.
    await client.updateCollection(index.name, {
      hnsw_config: { full_scan_threshold: 10 },
      optimizers_config: { indexing_threshold: 100, default_segment_number: 1 },
    });
    const [tenant, agents, count] = [`ten_${ulid()}`, 40, 3_000];
    await index.upsert(
      tenant,
      Array.from(
        { length: count },
        (_, i) => entry(`m${i}`, "", { agent: `agt_${i % agents}`, scope: "agent", dense: direction(i) }),
      ),
    );
    await eventually(
      async () => {
        const { status, indexed_vectors_count } = await client.getCollection(index.name);
        return status === "green" && indexed_vectors_count! >= count;
      },
      "the graph",
      120_000,
    );
    for (let n = 0; n < agents; n++) {
      const found = await index.search(tenant, {
        reach: { agent: `agt_${n}`, scopes: ["agent"] },
        nowMs: 1_800_000_000_000,
        dense: direction(n),
        count: 100,
      });
      expect(found).toHaveLength(count / agents);
    }
  }, 180_000);
} else {
  describe("the qdrant index", () => {
    test.skip("was not tried: set QDRANT_URL or QDRANT_BIN to run the same suite against Qdrant", () => {});
  });
}

describe("where Qdrant is asked", () => {
  test.each([
    ["http://qdrant", { url: "http://qdrant", port: 6333 }],
    ["http://127.0.0.1:7000/", { url: "http://127.0.0.1:7000", port: 7000 }],
    ["https://qdrant.example:443", { url: "https://qdrant.example", port: 443 }],
    ["https://example.org:8443/qdrant/", { url: "https://example.org:8443", port: 8443, prefix: "/qdrant" }],
    ["http://[::1]", { url: "http://[::1]", port: 6333 }],
  ])("%s", (url, address) => expect(addressOf(url)).toEqual(address));
});

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
