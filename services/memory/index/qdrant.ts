/**
 * The index as a service of its own: Qdrant, one collection for each model, tenants apart by a payload field that it
 * partitions by. All Qdrant calls are here.
 */
import { createHash } from "node:crypto";
import { QdrantClient, type Schemas } from "@qdrant/js-client-rest";
import type { Embedder } from "../embed/embedder.ts";
import type { Candidate, Entry, IndexQuery, MemoryIndex, Reach } from "./port.ts";

export interface QdrantIndex extends MemoryIndex {
  /** Makes the collection when it is missing. True when it did: then it knows nothing yet. */
  ensure(): Promise<boolean>;
}

type Filter = Schemas["Filter"];
type Condition = Schemas["Condition"];

const MEANING = "meaning";
const WORDS = "words";
const REQUEST_MS = 5_000;
const UPSERT_AT_ONCE = 200;
const SCROLL_AT_ONCE = 2_000;

/**
 * Qdrant knows how rare a word is, and does not tell. Its best score stands for this much of the most a question could
 * get; it keeps words and meaning in the proportion they have in the embedded index.
 */
const BEST_WORDS = 0.6;

export function qdrantIndex(options: {
  readonly url: string;
  readonly apiKey?: string;
  readonly embedder: Pick<Embedder, "model" | "dimension">;
}): QdrantIndex {
  const { url, apiKey, embedder } = options;
  const client = new QdrantClient({
    url,
    ...(apiKey ? { apiKey } : {}),
    timeout: REQUEST_MS,
    checkCompatibility: false,
  });
  // Vectors of two models compare with nothing, and may differ in length: each model has a collection of its own.
  const collection = `sensorium-memories-${slug(embedder.model)}`;

  return {
    async ensure() {
      if ((await client.collectionExists(collection)).exists) return false;
      try {
        await client.createCollection(collection, {
          vectors: { [MEANING]: { size: embedder.dimension, distance: "Dot", on_disk: true } },
          sparse_vectors: { [WORDS]: { modifier: "idf" } },
          // A graph for each tenant and none over all: cost must not grow with other tenants' memories.
          hnsw_config: { payload_m: 16, m: 0 },
        });
      } catch (error) {
        // Another replica was faster; it is the one that fills the collection.
        if ((await client.collectionExists(collection)).exists) return false;
        throw error;
      }
      const fields: [string, Schemas["PayloadFieldSchema"]][] = [
        ["tenant", { type: "keyword", is_tenant: true }],
        ["agent", "keyword"],
        ["team", "keyword"],
        ["scope", "keyword"],
        ["type", "keyword"],
        ["confidence", "float"],
        ["expires_at", "float"],
        ["version", "integer"],
      ];
      for (const [field_name, field_schema] of fields) {
        await client.createPayloadIndex(collection, { field_name, field_schema, wait: true });
      }
      return true;
    },

    async upsert(tenant, entries) {
      // The condition on the version is one for a whole request, so entries of one version go together.
      for (const [version, same] of Map.groupBy(entries, (entry) => entry.version)) {
        for (let from = 0; from < same.length; from += UPSERT_AT_ONCE) {
          await client.upsert(collection, {
            wait: true,
            points: same.slice(from, from + UPSERT_AT_ONCE).map((entry) => pointOf(tenant, entry)),
            update_filter: { must: [{ key: "version", range: { lt: version } }] },
          });
        }
      }
    },

    async remove(tenant, ids) {
      if (ids.length > 0) await client.delete(collection, { wait: true, points: ids.map((id) => pointId(tenant, id)) });
    },

    async search(tenant, query) {
      const filter = filterOf(tenant, query);
      const search = { filter, limit: query.count, with_payload: ["id", "confidence", "importance", "fresh_at"] };
      const [byMeaning, byWords] = await Promise.all([
        query.dense ? client.query(collection, { ...search, query: [...query.dense], using: MEANING }) : undefined,
        query.sparse
          ? client.query(collection, {
            ...search,
            query: { indices: [...query.sparse.terms], values: [...query.sparse.weights] },
            using: WORDS,
          })
          : undefined,
      ]);
      return merged(byMeaning?.points, byWords?.points);
    },

    async versions(tenant) {
      const held = new Map<string, number>();
      let offset: Schemas["ExtendedPointId"] | undefined;
      do {
        const page = await client.scroll(collection, {
          filter: { must: [inTenant(tenant)] },
          limit: SCROLL_AT_ONCE,
          with_payload: ["id", "version"],
          ...(offset === undefined ? {} : { offset }),
        });
        for (const { payload } of page.points) held.set(String(payload?.id), Number(payload?.version));
        offset = page.next_page_offset as Schemas["ExtendedPointId"] | undefined ?? undefined;
      } while (offset !== undefined);
      return held;
    },

    async drop(tenant) {
      await client.delete(collection, { wait: true, filter: { must: [inTenant(tenant)] } });
    },

    async check() {
      await client.collectionExists(collection);
    },

    async [Symbol.asyncDispose]() {},
  };
}

type Point = { readonly score: number; readonly payload?: Record<string, unknown> | null };

function merged(byMeaning: readonly Point[] | undefined, byWords: readonly Point[] | undefined): Candidate[] {
  const idOf = ({ payload }: Point) => String(payload?.id);
  const payloads = new Map([...byMeaning ?? [], ...byWords ?? []].map((point) => [idOf(point), point.payload]));
  const meaning = byMeaning && new Map(byMeaning.map((point) => [idOf(point), point.score]));
  const words = byWords && new Map(byWords.map((point) => [idOf(point), point.score]));
  const best = Math.max(0, ...words?.values() ?? []);
  return [...payloads.keys()].map((id) => {
    // Not among a leg's candidates: it said less than any that are, and nothing is the honest guess.
    const similarity = meaning ? meaning.get(id) ?? 0 : null;
    const lexical = words ? words.get(id) ?? 0 : null;
    const payload = payloads.get(id);
    return {
      id,
      confidence: Number(payload?.confidence),
      importance: Number(payload?.importance),
      freshAt: Number(payload?.fresh_at),
      similarity: similarity === null ? null : Math.min(1, Math.max(0, similarity)),
      lexical: lexical === null || best === 0 ? lexical : BEST_WORDS * lexical / best,
    };
  });
}

const pointOf = (tenant: string, entry: Entry): Schemas["PointStruct"] => ({
  id: pointId(tenant, entry.id),
  vector: {
    [WORDS]: { indices: [...entry.sparse.terms], values: [...entry.sparse.weights] },
    ...(entry.dense ? { [MEANING]: [...entry.dense] } : {}),
  },
  payload: {
    tenant,
    id: entry.id,
    version: entry.version,
    agent: entry.agent,
    scope: entry.scope,
    type: entry.type,
    confidence: entry.confidence,
    importance: entry.importance,
    fresh_at: entry.freshAt,
    ...(entry.team === null ? {} : { team: entry.team }),
    ...(entry.expiresAt === null ? {} : { expires_at: entry.expiresAt }),
  },
});

const inTenant = (tenant: string): Condition => ({ key: "tenant", match: { value: tenant } });
const has = (key: string, value: string): Condition => ({ key, match: { value } });

export function filterOf(tenant: string, { reach, type, minConfidence, nowMs }: IndexQuery): Filter {
  return {
    must: [
      inTenant(tenant),
      { should: reached(reach) },
      ...(type ? [has("type", type)] : []),
      ...(minConfidence === undefined ? [] : [{ key: "confidence", range: { gte: minConfidence } }]),
    ],
    must_not: [{ key: "expires_at", range: { lte: nowMs } }],
  };
}

/** One of these must hold. Never empty: an empty list would let everything through. */
function reached({ agent, team, everyTeam, scopes }: Reach): Condition[] {
  const ways: Condition[] = [];
  for (const scope of scopes) {
    if (scope === "institutional" || (scope === "team" && everyTeam)) ways.push(has("scope", scope));
    else if (scope === "team" && team !== undefined) ways.push({ must: [has("scope", scope), has("team", team)] });
    if (agent !== undefined) ways.push({ must: [has("scope", scope), has("agent", agent)] });
  }
  return ways.length > 0 ? ways : [has("scope", "none")];
}

/** Qdrant names points by UUIDs; the same memory always has the same. */
function pointId(tenant: string, id: string): string {
  const hex = createHash("sha256").update(`${tenant}\0${id}`).digest("hex");
  return [hex.slice(0, 8), hex.slice(8, 12), hex.slice(12, 16), hex.slice(16, 20), hex.slice(20, 32)].join("-");
}

const slug = (model: string): string => model.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "");
