/**
 * The index as a service of its own: Qdrant, one collection for each model, tenants apart by a payload field that it
 * partitions by. All Qdrant calls are here.
 */
import { createHash } from "node:crypto";
import { QdrantClient, type Schemas } from "@qdrant/js-client-rest";
import { type Fault, unavailable } from "../../../contracts/errors.ts";
import type { Embedder } from "../embed/embedder.ts";
import type { Candidate, Entry, IndexQuery, MemoryIndex, Reach } from "./port.ts";

export interface QdrantIndex extends MemoryIndex {
  /** Which collection it is. Vectors of two models compare with nothing, so each model has one of its own. */
  readonly name: string;
  exists(): Promise<boolean>;
  /** Makes what is missing of the collection: all of it, or what a process that died had not come to. */
  make(): Promise<void>;
}

type Filter = Schemas["Filter"];
type Condition = Schemas["Condition"];

const MEANING = "meaning";
const WORDS = "words";
const STANDING = ["id", "confidence", "importance", "fresh_at"];
/** A search that waits longer has no time left to go on without the index. */
const SEARCH_MS = 1_500;
/** Rows are locked until it has answered, and whoever changes one of them has five seconds for everything. */
const REQUEST_MS = 3_000;
/** Going through a whole tenant, or making an index over all of them. */
const PATIENT_MS = 60_000;
const UPSERT_AT_ONCE = 200;
/** About 3 MB of JSON; Qdrant refuses a request of more than 32 MB, and takes its time for what is near it. */
const NUMBERS_AT_ONCE = 150_000;
const REMOVE_AT_ONCE = 5_000;
const SCROLL_AT_ONCE = 2_000;
const PORT = 6_333;
const GRAPH = { hnsw_ef: 256, acorn: { enable: true, max_selectivity: 1 } };

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
  const asking = (timeout: number) => {
    const client = new QdrantClient({
      ...addressOf(url),
      // As a header: given as a key, the client would write to the console about networks without TLS.
      ...(apiKey ? { headers: { "api-key": apiKey } } : {}),
      timeout,
      checkCompatibility: false,
    });
    return <T>(ask: (qdrant: QdrantClient) => Promise<T>): Promise<T> =>
      ask(client).catch((error: unknown) => {
        throw inWords(error);
      });
  };
  const [searching, telling, patiently] = [asking(SEARCH_MS), asking(REQUEST_MS), asking(PATIENT_MS)];
  const collection = `sensorium-memories-${slug(embedder.model)}`;
  const exists = async () => (await telling((qdrant) => qdrant.collectionExists(collection))).exists;

  return {
    name: collection,
    exists,

    async make() {
      if (!await exists()) {
        try {
          await patiently((qdrant) =>
            qdrant.createCollection(collection, {
              vectors: { [MEANING]: { size: embedder.dimension, distance: "Dot", on_disk: true } },
              sparse_vectors: { [WORDS]: { modifier: "idf" } },
              // A graph for each tenant and none over all: cost must not grow with other tenants' memories.
              hnsw_config: { payload_m: 16, m: 0 },
            })
          );
        } catch (error) {
          // Another replica was faster.
          if (!await exists()) throw error;
        }
      }
      for (const [field_name, field_schema] of payloadIndexes) {
        await patiently((qdrant) => qdrant.createPayloadIndex(collection, { field_name, field_schema, wait: true }));
      }
    },

    async upsert(tenant, entries) {
      // The condition on the version is one for a whole request, so entries of one version go together.
      for (const [version, same] of Map.groupBy(entries, (entry) => entry.version)) {
        for (const some of portions(same)) {
          await telling((qdrant) =>
            qdrant.upsert(collection, {
              wait: true,
              points: some.map((entry) => pointOf(tenant, entry)),
              update_filter: { must: [{ key: "version", range: { lt: version } }] },
            })
          );
        }
      }
    },

    async remove(tenant, ids) {
      for (let from = 0; from < ids.length; from += REMOVE_AT_ONCE) {
        const points = ids.slice(from, from + REMOVE_AT_ONCE).map((id) => pointId(tenant, id));
        await telling((qdrant) => qdrant.delete(collection, { wait: true, points }));
      }
    },

    async search(tenant, query) {
      const { dense, sparse, count } = query;
      const legs: Leg[] = [];
      // Where a filter passes few of a graph's points, the way between them leads over others (ACORN).
      if (dense) legs.push({ query: [...dense], using: MEANING, params: GRAPH });
      if (sparse) {
        legs.push({
          query: { indices: [...sparse.terms], values: [...sparse.weights] },
          using: WORDS,
          // How rare a word is, is judged by what the reader may see and by nothing else.
          params: { idf: { corpus: seenBy(tenant, query.reach) } },
        });
      }
      if (legs.length === 0) return [];
      const filter = filterOf(tenant, query);
      const searches = legs.map((leg) => ({ ...leg, filter, limit: count, with_payload: STANDING }));
      const found = (await searching((qdrant) => qdrant.queryBatch(collection, { searches })))
        .map(({ points }) => points);
      // A graph that cannot be entered under the filter answers with nothing: its few entries may all be other readers'
      // memories, or removed. Then everything that passes is compared, which is little where there is little.
      if (dense && found[0]!.length < count) {
        const exactly = { ...searches[0]!, params: { exact: true } };
        found[0] = (await searching((qdrant) => qdrant.query(collection, exactly))).points;
      }

      // What one leg proposes the other judges too. One that found fewer than it might has already judged all it can.
      const proposed = new Map(found.flat().map((point) => [point.id, point]));
      const unjudged = legs.map((leg, i) => {
        const judged = new Set(found[i]!.map(({ id }) => id));
        return { leg, i, ids: found[i]!.length < count ? [] : [...proposed.keys()].filter((id) => !judged.has(id)) };
      }).filter(({ ids }) => ids.length > 0);
      if (unjudged.length > 0) {
        const searches = unjudged.map(({ leg, ids }) => ({
          ...leg,
          filter: { must: [inTenant(tenant), { has_id: ids }] },
          limit: ids.length,
        }));
        const judged = await searching((qdrant) => qdrant.queryBatch(collection, { searches }));
        unjudged.forEach(({ i }, at) => found[i]!.push(...judged[at]!.points));
      }
      return candidates([...proposed.values()], dense && found[0]!, sparse && found.at(-1)!);
    },

    async versions(tenant) {
      const held = new Map<string, number>();
      let offset: Schemas["ExtendedPointId"] | undefined;
      do {
        const from = offset === undefined ? {} : { offset };
        const page = await patiently((qdrant) =>
          qdrant.scroll(collection, {
            filter: { must: [inTenant(tenant)] },
            limit: SCROLL_AT_ONCE,
            with_payload: ["id", "version"],
            ...from,
          })
        );
        for (const { payload } of page.points) held.set(String(payload?.id), Number(payload?.version));
        offset = page.next_page_offset as Schemas["ExtendedPointId"] | undefined ?? undefined;
      } while (offset !== undefined);
      return held;
    },

    async drop(tenant) {
      await patiently((qdrant) => qdrant.delete(collection, { wait: true, filter: { must: [inTenant(tenant)] } }));
    },

    async [Symbol.asyncDispose]() {},
  };
}

/**
 * What filters ask for. Graphs are made along the fields that part a tenant's memories into ever smaller sets; along the
 * others, which every tenant shares, they would only cost.
 */
const payloadIndexes: readonly (readonly [string, Schemas["PayloadFieldSchema"]])[] = [
  ["tenant", { type: "keyword", is_tenant: true }],
  ["agent", { type: "keyword" }],
  ["team", { type: "keyword" }],
  ["scope", { type: "keyword", enable_hnsw: false }],
  ["type", { type: "keyword", enable_hnsw: false }],
  ["confidence", { type: "float", enable_hnsw: false }],
  ["expires_at", { type: "float", enable_hnsw: false }],
  ["version", { type: "integer", enable_hnsw: false }],
];

type Leg = Pick<Schemas["QueryRequest"], "query" | "using" | "params">;
type Point = Schemas["ScoredPoint"];

function candidates(
  proposed: readonly Point[],
  byMeaning: readonly Point[] | undefined,
  byWords: readonly Point[] | undefined,
): Candidate[] {
  const scores = (points: readonly Point[] | undefined) =>
    points && new Map(points.map((point) => [point.id, point.score]));
  const [meaning, words] = [scores(byMeaning), scores(byWords)];
  const best = Math.max(0, ...words?.values() ?? []);
  return proposed.map(({ id, payload }) => {
    const similarity = meaning?.get(id);
    const lexical = words && (words.get(id) ?? 0);
    return {
      id: String(payload?.id),
      confidence: Number(payload?.confidence),
      importance: Number(payload?.importance),
      freshAt: Number(payload?.fresh_at),
      similarity: similarity === undefined ? null : Math.min(1, Math.max(0, similarity)),
      lexical: lexical === undefined ? null : best === 0 ? 0 : BEST_WORDS * lexical / best,
    };
  });
}

/** As many entries at once as make a request of reasonable size. */
function* portions(entries: readonly Entry[]): Generator<Entry[]> {
  let some: Entry[] = [];
  let numbers = 0;
  for (const entry of entries) {
    const more = (entry.dense?.length ?? 0) + 2 * entry.sparse.terms.length;
    if (some.length > 0 && (some.length >= UPSERT_AT_ONCE || numbers + more > NUMBERS_AT_ONCE)) {
      yield some;
      some = [];
      numbers = 0;
    }
    some.push(entry);
    numbers += more;
  }
  if (some.length > 0) yield some;
}

/** The client says "fetch failed" or "Bad Request", and keeps to itself what it knows of the reason. */
function inWords(error: unknown): Fault {
  const { name, status, data, cause, message } = error as Error & {
    status?: number;
    data?: { status?: { error?: string } };
    cause?: { code?: string; message?: string };
  };
  const reason = status === undefined
    ? name === "AbortError" || name === "QdrantClientTimeoutError"
      ? "no answer in time"
      : cause?.code ?? cause?.message ?? message
    : `${status} ${data?.status?.error ?? message}`;
  return unavailable(`Qdrant is of no help: ${reason}`, error);
}

/** The client takes the port of a URL for Qdrant's own when it is the scheme's, and leaves out the path. */
export function addressOf(url: string): { url: string; port: number; prefix?: string } {
  const { origin, pathname } = new URL(url);
  const port = /^https?:\/\/[^/?#]*:(\d+)(?:[/?#]|$)/i.exec(url)?.[1];
  const prefix = pathname.replace(/\/+$/, "");
  return { url: origin, port: port ? Number(port) : PORT, ...(prefix ? { prefix } : {}) };
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

const seenBy = (tenant: string, reach: Reach) => ({ must: [inTenant(tenant), { should: reached(reach) }] });

export function filterOf(tenant: string, { reach, type, minConfidence, nowMs }: IndexQuery): Filter {
  return {
    must: [
      ...seenBy(tenant, reach).must,
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
