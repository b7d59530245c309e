/** Memories, how they are searched, and how they are linked. */
import { z } from "zod";
import { HttpUrl, Moment, Page, TeamId } from "./fields.ts";
import { idOf } from "./identity.ts";

export const memoryTypes = ["episodic", "semantic", "procedural", "entity", "reflection", "reasoning"] as const;
export const MemoryType = z.enum(memoryTypes);
export type MemoryType = z.output<typeof MemoryType>;

/** From the narrowest to the widest; a memory only ever moves to the right. */
export const memoryScopes = ["agent", "team", "institutional"] as const;
export const MemoryScope = z.enum(memoryScopes);
export type MemoryScope = z.output<typeof MemoryScope>;

export const MemoryStatus = z.enum(["active", "deleted", "expired"]);

export const MAX_CONTENT_CHARACTERS = 32_768;
/** Characters as people count them: an emoji is one, though it is two units of a JavaScript string. */
const fits = (text: string, characters: number) => text.length <= characters || [...text].length <= characters;

export const Title = z.string().min(1).max(1_000).meta({ examples: ["Invoices are due on the 15th"] });
export const Content = z.string().min(1).refine((text) => fits(text, MAX_CONTENT_CHARACTERS))
  .meta({
    expected: `1 to ${MAX_CONTENT_CHARACTERS} characters`,
    examples: ["The finance team pays every invoice on the 15th of the month."],
  });
const Fraction = z.number().min(0).max(1).meta({ expected: "a number from 0 to 1", examples: [0.5] });
const Metadata = z.record(z.string(), z.unknown()).meta({ expected: "an object", examples: [{ topic: "billing" }] });
const Reference = z.string().min(1).max(512).nullable();
/** Any absolute URI: what a memory derives from need not be on the web. */
const SourceUrl = z.union([HttpUrl, z.url().max(2048)]).nullable()
  .meta({ expected: "an absolute URI", examples: ["https://example.com/invoices/17"] });

export const Memory = z.object({
  id: idOf("memory"),
  tenant_id: idOf("tenant"),
  agent_id: idOf("agent"),
  team_id: TeamId.nullable(),
  project_id: z.string().nullable(),
  type: MemoryType,
  scope: MemoryScope,
  status: MemoryStatus,
  title: z.string(),
  content: z.string(),
  confidence: z.number(),
  importance: z.number(),
  metadata: z.record(z.string(), z.unknown()),
  source_type: z.string().nullable(),
  source_id: z.string().nullable(),
  source_url: z.string().nullable(),
  source_event_id: z.string().nullable(),
  freshness_date: Moment.nullable(),
  expires_at: Moment.nullable(),
  created_at: Moment,
  updated_at: Moment,
  accessed_at: Moment,
}).meta({ id: "Memory" });
export type Memory = z.output<typeof Memory>;

export const MemoryPath = z.object({ id: idOf("memory") });

export const MemoryCreate = z.object({
  team_id: TeamId.nullable().default(null),
  project_id: Reference.default(null),
  type: MemoryType,
  scope: MemoryScope,
  title: Title,
  content: Content,
  confidence: Fraction.default(0.5),
  importance: Fraction.default(0.5),
  metadata: Metadata.default({}),
  source_type: Reference.default(null),
  source_id: Reference.default(null),
  source_url: SourceUrl.default(null),
  source_event_id: Reference.default(null),
  freshness_date: Moment.nullable().default(null),
  expires_at: Moment.nullable().default(null),
}).meta({ examples: [{ type: "semantic", scope: "agent", title: "Invoices", content: "They are due on the 15th." }] });
export type MemoryCreate = z.output<typeof MemoryCreate>;

export const MAX_BATCH = 100;
export const MemoryBatch = z.object({
  memories: z.array(MemoryCreate).min(1).max(MAX_BATCH),
});
export const MemoryBatchMade = z.object({ memories: z.array(Memory), count: z.int() });

export const MemoryChange = z.object({
  title: Title,
  content: Content,
  confidence: Fraction,
  importance: Fraction,
  metadata: Metadata,
  expires_at: Moment.nullable(),
  freshness_date: Moment.nullable(),
}).partial();
export type MemoryChange = z.output<typeof MemoryChange>;

export const MemoryQuery = Page.extend({
  type: MemoryType.optional(),
  scope: MemoryScope.optional(),
  search: z.string().min(1).max(1_000).optional().describe("Part of the title or content, letter by letter"),
  source_event_id: z.string().min(1).max(512).optional().describe("The event a memory derives from"),
});
export type MemoryQuery = z.output<typeof MemoryQuery>;
export const MemoryList = z.object({ memories: z.array(Memory), total: z.int() });

export const MemoryPromotion = z.object({
  scope: z.enum(["team", "institutional"]),
  team_id: TeamId.nullable().optional(),
});

export const SearchMode = z.enum(["hybrid", "lexical", "semantic"]);
export type SearchMode = z.output<typeof SearchMode>;
export const MemorySearch = z.object({
  query: z.string().min(1).max(8_192).regex(/\S/, "text that is not only blanks")
    .meta({ examples: ["When are invoices due?"] }),
  scope: MemoryScope.optional(),
  type: MemoryType.optional(),
  limit: z.int().min(1).max(100).default(10),
  min_confidence: Fraction.optional(),
  mode: SearchMode.default("hybrid").describe("Which signals rank: words, meaning, or both"),
});
export type MemorySearch = z.output<typeof MemorySearch>;

/** The parts of a score: what each signal said, from 0 to 1, before they were weighed together. */
export const Explanation = z.object({
  similarity: z.number().nullable().describe("Nearness in meaning; null when no vector was compared"),
  lexical: z.number().nullable().describe("Agreement in words; null when words were not compared"),
  recency: z.number(),
  confidence: z.number(),
  importance: z.number(),
});
export const SearchResult = z.object({ memory: Memory, score: z.number(), explanation: Explanation })
  .meta({ id: "MemorySearchResult" });
export type SearchResult = z.output<typeof SearchResult>;
export const SearchResults = z.object({
  results: z.array(SearchResult),
  total: z.int(),
  degraded: z.boolean().describe("True when the index was away or behind and words alone were searched"),
});
export type SearchResults = z.output<typeof SearchResults>;

export const RelationshipType = z.enum([
  "caused_by",
  "related_to",
  "contradicts",
  "supports",
  "derived_from",
  "part_of",
]);
export const Relationship = z.object({
  id: idOf("relationship"),
  tenant_id: idOf("tenant"),
  source_memory_id: idOf("memory"),
  target_memory_id: idOf("memory"),
  relationship_type: RelationshipType,
  strength: z.number(),
  metadata: z.record(z.string(), z.unknown()).nullable(),
  created_at: Moment,
}).meta({ id: "MemoryRelationship" });
export type Relationship = z.output<typeof Relationship>;

export const RelationshipCreate = z.object({
  target_memory_id: idOf("memory"),
  relationship_type: RelationshipType,
  strength: Fraction.default(0.5),
  metadata: Metadata.nullable().default(null),
});
export type RelationshipCreate = z.output<typeof RelationshipCreate>;
export const RelationshipPath = MemoryPath.extend({ rel_id: idOf("relationship") });

export const MAX_DEPTH = 3;
export const RelationshipQuery = z.object({
  depth: z.union([z.number(), z.string().regex(/^-?\d{1,9}$/, "a whole number").transform(Number)])
    .pipe(z.number().int()).default(1).transform((depth) => Math.min(MAX_DEPTH, Math.max(1, depth)))
    .meta({ expected: "a whole number; below 1 becomes 1, above 3 becomes 3", examples: [1] }),
});
export const Step = z.object({
  relationship: Relationship,
  memory: Memory,
  depth: z.int(),
  cumulative_strength: z.number().describe("The product of the strengths along the path"),
}).meta({ id: "MemoryRelationshipStep" });
export type Step = z.output<typeof Step>;
export const Steps = z.object({ relationships: z.array(Step), count: z.int() });

/** What delivery asks when it hands out events to an agent that wants them enriched. */
export const EnrichmentRequest = z.object({
  tenant: idOf("tenant"),
  agent: idOf("agent"),
  team: z.string().nullable().default(null),
  queries: z.array(z.object({
    key: z.string().min(1).max(512).describe("Names the query in the answer"),
    text: z.string().max(64_000).describe("What the event says: its type, subject and data as text"),
    depth: z.enum(["light", "full"]),
  })).min(1).max(100),
});
export const LightMemory = z.object({ id: idOf("memory"), title: z.string(), type: MemoryType, score: z.number() });
export const FullMemory = Memory.extend({ score: z.number(), relationships: z.array(Relationship) });
export const Enrichment = z.object({
  results: z.array(z.object({
    key: z.string(),
    memories: z.array(z.union([FullMemory, LightMemory])),
    /** True when less was looked at than there is. */
    incomplete: z.boolean(),
  })),
});

export const IndexProgress = z.object({
  embedder: z.string(),
  index: z.string(),
  memories: z.int(),
  /** Memories whose words and vector are still to be computed anew. */
  remaining: z.int(),
  /** Memories that the index service has not been told of yet. */
  behind: z.int(),
  /** Why the last attempt to catch up failed; null when it did not. */
  trouble: z.string().nullable(),
});
export type IndexProgress = z.output<typeof IndexProgress>;
export const IndexCheck = z.object({
  tenants: z.int(),
  memories: z.int(),
  missing: z.int().describe("In Postgres but not in the index"),
  stale: z.int().describe("In the index in an older form"),
  extra: z.int().describe("In the index, but no longer in Postgres"),
  repaired: z.boolean(),
});
export type IndexCheck = z.output<typeof IndexCheck>;
