/**
 * What an index of memories must do. It proposes candidates and is never believed: what it proposes is read from
 * Postgres, with the caller's access, before anybody sees it. Every call names its tenant first, and an index never
 * answers for another.
 */
import type { MemoryScope, MemoryType } from "../../../contracts/memory.ts";
import type { SparseVector } from "../lexical.ts";

/** A memory as an index knows it. */
export interface Entry {
  readonly id: string;
  /** Grows with each change; an index keeps the newest it was told. */
  readonly version: number;
  readonly agent: string;
  readonly team: string | null;
  readonly scope: MemoryScope;
  readonly type: MemoryType;
  readonly confidence: number;
  readonly importance: number;
  /** When it was last true or last changed, in milliseconds since 1970. */
  readonly freshAt: number;
  readonly expiresAt: number | null;
  /** Of the current model, of length 1; absent while there is none. */
  readonly dense?: Float32Array;
  readonly sparse: SparseVector;
}

/** Which memories of a tenant a reader may be shown: its own, its team's (or every team's), the institution's. */
export interface Reach {
  readonly agent?: string;
  readonly team?: string;
  readonly everyTeam?: true;
  readonly scopes: readonly MemoryScope[];
}

export interface IndexQuery {
  readonly reach: Reach;
  readonly type?: MemoryType;
  readonly minConfidence?: number;
  readonly nowMs: number;
  /** Each leg is searched when its vector is there. */
  readonly dense?: Float32Array;
  readonly sparse?: SparseVector;
  /** How many candidates each leg contributes at most. */
  readonly count: number;
}

/** What ranking needs to know of a memory beside its relevance. */
export type Standing = Pick<Entry, "confidence" | "importance" | "freshAt">;

export interface Candidate extends Standing {
  readonly id: string;
  /** Both between 0 and 1; null when the leg was not asked, or the memory has nothing to compare. */
  readonly similarity: number | null;
  readonly lexical: number | null;
}

export interface MemoryIndex extends AsyncDisposable {
  /** Told twice, it knows once; told an older version, it keeps the newer. */
  upsert(tenant: string, entries: readonly Entry[]): Promise<void>;
  remove(tenant: string, ids: readonly string[]): Promise<void>;
  /** In no order. */
  search(tenant: string, query: IndexQuery, signal?: AbortSignal): Promise<Candidate[]>;
  /** What it holds of a tenant, for comparing with the truth. */
  versions(tenant: string): Promise<Map<string, number>>;
  /** Forgets a tenant altogether. */
  drop(tenant: string): Promise<void>;
}
