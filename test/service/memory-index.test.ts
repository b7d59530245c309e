/** The indexes under the one suite; and what Qdrant is asked for, where there is none to ask. */
import { afterAll, describe, expect, test } from "vitest";
import { ulid } from "../../contracts/identity.ts";
import { embeddedIndex } from "../../services/memory/index/embedded.ts";
import { addressOf, filterOf, qdrantIndex } from "../../services/memory/index/qdrant.ts";
import { type Qdrant, qdrant, qdrantProgram } from "../support/qdrant.ts";
import { conformance, DIMENSION, words } from "./memory-index-conformance.ts";

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
