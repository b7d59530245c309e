/** The index that needs no other server: in this process's memory, made from Postgres whenever it is missing. */
import { setTimeout as pause } from "node:timers/promises";
import { type Log, silent } from "../../../runtime/log.ts";
import { idf, type SparseVector } from "../lexical.ts";
import { Best } from "./best.ts";
import { buildApart } from "./graph.ts";
import { type Filter, GRAPH_LIMIT, HIGHEST_WEIGHT, Partition } from "./partition.ts";
import type { Candidate, Entry, IndexQuery, MemoryIndex, Reach } from "./port.ts";

interface Place {
  readonly partition: string;
  readonly slot: number;
  readonly version: number;
}

interface Tenant {
  readonly partitions: Map<string, Partition>;
  readonly places: Map<string, Place>;
  /** In which teams' partitions an agent owns memories, or did. */
  readonly teamsOf: Map<string, Set<string>>;
}

/** A part of a tenant that a reader may see: a whole partition, or what it owns there. */
interface Part {
  readonly partition: Partition;
  readonly owner?: string;
}

/** Below this, what is removed is not worth making a partition anew. */
const WASTE_LIMIT = 1_000;
/** About 5 ms of work for the graph, then four times as long for everybody else in this process. */
const TEND_AT_ONCE = 16;
const TEND_PAUSE_MS = 20;
const QUIET_MS = 400;
const LONGEST_WAIT_MS = 10_000;

export function embeddedIndex(
  dimension: number,
  options: { readonly graphLimit?: number; readonly log?: Log } = {},
): MemoryIndex {
  const { graphLimit = GRAPH_LIMIT, log = silent } = options;
  const tenants = new Map<string, Tenant>();
  const stop = new AbortController();
  let tending: Promise<void> | undefined;
  let toldAt = 0;

  const tenantOf = (name: string): Tenant => {
    let tenant = tenants.get(name);
    if (!tenant) tenants.set(name, tenant = { partitions: new Map(), places: new Map(), teamsOf: new Map() });
    return tenant;
  };

  const tend = () => {
    toldAt = Date.now();
    tending ??= (async () => {
      // A tenant that is just being read is better built once, when it is there.
      for (const begun = Date.now(); Date.now() - toldAt < QUIET_MS && Date.now() - begun < LONGEST_WAIT_MS;) {
        await pause(QUIET_MS / 4, undefined, { signal: stop.signal }).catch(() => {});
        if (stop.signal.aborted) return;
      }
      for (let waits = true; waits && !stop.signal.aborted;) {
        waits = false;
        for (const { partitions } of tenants.values()) {
          for (const partition of partitions.values()) {
            if (partition.waiting === 0) continue;
            waits = true;
            if (partition.isFarBehind) {
              const { vectors, adopt } = partition.forGraph();
              const graph = await buildApart(vectors, stop.signal).catch((error: unknown) => {
                if (!stop.signal.aborted) log.warn("memory.graph_not_built", { error });
                return undefined;
              });
              if (graph) {
                adopt(graph);
                continue;
              }
            }
            // Also where no thread can be had: slower, but it gets there.
            partition.tend(TEND_AT_ONCE);
            await pause(TEND_PAUSE_MS, undefined, { signal: stop.signal }).catch(() => {});
            if (stop.signal.aborted) return;
          }
        }
      }
    })().finally(() => tending = undefined);
  };

  const remove = (tenant: Tenant, id: string): void => {
    const place = tenant.places.get(id);
    if (!place) return;
    tenant.partitions.get(place.partition)!.remove(place.slot);
    tenant.places.delete(id);
  };

  return {
    async upsert(name, entries) {
      const tenant = tenantOf(name);
      for (const entry of entries) {
        const known = tenant.places.get(entry.id);
        if (known && known.version >= entry.version) continue;
        remove(tenant, entry.id);
        const key = partitionOf(entry);
        let partition = tenant.partitions.get(key);
        if (!partition) tenant.partitions.set(key, partition = new Partition(dimension, graphLimit));
        tenant.places.set(entry.id, { partition: key, slot: partition.add(entry), version: entry.version });
        if (entry.scope === "team") noteOwner(tenant, entry.agent, key);
        if (partition.waiting > 0) tend();
      }
      for (const [key, partition] of tenant.partitions) {
        if (partition.removed > WASTE_LIMIT && partition.removed > partition.alive) {
          const fresh = partition.compacted();
          tenant.partitions.set(key, fresh);
          for (let slot = 0; slot < fresh.size; slot++) {
            const id = fresh.idAt(slot);
            tenant.places.set(id, { ...tenant.places.get(id)!, slot });
          }
          tend();
        }
      }
    },

    async remove(name, ids) {
      const tenant = tenants.get(name);
      if (tenant) { for (const id of ids) remove(tenant, id); }
    },

    async search(name, query) {
      const tenant = tenants.get(name);
      if (!tenant) return [];
      return searchParts(partsOf(tenant, query.reach), query);
    },

    async versions(name) {
      return new Map([...tenants.get(name)?.places ?? []].map(([id, { version }]) => [id, version]));
    },

    async drop(name) {
      tenants.delete(name);
    },

    async check() {},

    async [Symbol.asyncDispose]() {
      stop.abort();
      await tending;
      tenants.clear();
    },
  };
}

const partitionOf = ({ scope, agent, team }: Entry): string =>
  scope === "agent" ? `a:${agent}` : scope === "team" ? `t:${team}` : "i";

function noteOwner(tenant: Tenant, agent: string, key: string): void {
  let teams = tenant.teamsOf.get(agent);
  if (!teams) tenant.teamsOf.set(agent, teams = new Set());
  teams.add(key);
}

function partsOf(tenant: Tenant, reach: Reach): Part[] {
  const parts: Part[] = [];
  const take = (key: string, owner?: string) => {
    const partition = tenant.partitions.get(key);
    if (partition && partition.alive > 0) parts.push(owner === undefined ? { partition } : { partition, owner });
  };
  if (reach.scopes.includes("agent") && reach.agent !== undefined) take(`a:${reach.agent}`);
  if (reach.scopes.includes("institutional")) take("i");
  if (reach.scopes.includes("team")) {
    const own = reach.team === undefined ? undefined : `t:${reach.team}`;
    if (reach.everyTeam) { for (const key of tenant.partitions.keys()) if (key.startsWith("t:")) take(key); }
    else if (own) take(own);
    // What an agent gave to a team it is not in is still its own.
    if (reach.agent !== undefined) {
      for (const key of tenant.teamsOf.get(reach.agent) ?? []) if (key !== own) take(key, reach.agent);
    }
  }
  return parts;
}

function searchParts(parts: readonly Part[], query: IndexQuery): Candidate[] {
  const { sparse, dense, count } = query;
  const importances = sparse && importancesIn(parts, sparse);
  const highest = importances ? importances.reduce((sum, value) => sum + value, 0) * HIGHEST_WEIGHT : 0;
  const found: { part: Part; slot: number; score: number }[] = [];
  // Each leg keeps its best over all parts together.
  const byWords: typeof found = [];
  const byMeaning: typeof found = [];
  for (const part of parts) {
    const filter: Filter = {
      nowMs: query.nowMs,
      ...(query.type ? { type: query.type } : {}),
      ...(query.minConfidence === undefined ? {} : { minConfidence: query.minConfidence }),
      ...(part.owner === undefined ? {} : { owner: part.owner }),
    };
    const collect = (best: Best, into: typeof found) => {
      for (let i = 0; i < best.count; i++) into.push({ part, slot: best.slots[i]!, score: best.scores[i]! });
    };
    if (importances && highest > 0) {
      // Without a word of the question a memory has nothing to say to it.
      const best = new Best(count, 0);
      part.partition.scoreWords(sparse!.terms, importances, filter, best);
      collect(best, byWords);
    }
    if (dense) {
      // The nearest are the nearest, however far: a question is not answered with nothing while there are memories.
      const best = new Best(count, -Infinity);
      part.partition.nearest(dense, filter, best);
      collect(best, byMeaning);
    }
  }
  for (const leg of [byWords, byMeaning]) {
    found.push(...leg.sort((a, b) => b.score - a.score).slice(0, count));
  }
  const candidates = new Map<string, Candidate>();
  for (const { part: { partition }, slot } of found) {
    const id = partition.idAt(slot);
    if (candidates.has(id)) continue;
    const similarity = dense ? partition.similarityAt(slot, dense) : null;
    candidates.set(id, {
      id,
      ...partition.standingAt(slot),
      similarity: similarity === null ? null : Math.min(1, Math.max(0, similarity)),
      lexical: highest > 0 ? Math.min(1, partition.lexicalAt(slot) * HIGHEST_WEIGHT / highest) : null,
    });
  }
  return [...candidates.values()];
}

/** How much each term of a query says, counted over nothing but what the reader may see. */
function importancesIn(parts: readonly Part[], { terms, weights }: SparseVector): Float64Array {
  const frequencies = new Float64Array(terms.length);
  let all = 0;
  for (const { partition, owner } of parts) {
    if (owner !== undefined) continue;
    all += partition.alive;
    partition.frequencies(terms).forEach((count, i) => frequencies[i]! += count);
  }
  return Float64Array.from(terms, (_, i) => weights[i]! * idf(Math.max(all, frequencies[i]!), frequencies[i]!));
}
