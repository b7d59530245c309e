/** The index that needs no other server: in this process's memory, made from Postgres whenever it is missing. */
import { idf, type SparseVector } from "../lexical.ts";
import { Best } from "./best.ts";
import { Arena } from "./kernel/kernel.ts";
import { type Filter, Partition } from "./partition.ts";
import type { Candidate, Entry, IndexQuery, MemoryIndex, Reach } from "./port.ts";
import { HIGHEST_WEIGHT } from "./words.ts";

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

export function embeddedIndex(dimension: number, options: { readonly codesLimit?: number } = {}): MemoryIndex {
  const arena = new Arena();
  const tenants = new Map<string, Tenant>();

  const tenantOf = (name: string): Tenant => {
    let tenant = tenants.get(name);
    if (!tenant) tenants.set(name, tenant = { partitions: new Map(), places: new Map(), teamsOf: new Map() });
    return tenant;
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
        if (!partition) tenant.partitions.set(key, partition = new Partition(arena, dimension, options.codesLimit));
        tenant.places.set(entry.id, { partition: key, slot: partition.add(entry), version: entry.version });
        if (entry.scope === "team") noteOwner(tenant, entry.agent, key);
      }
      for (const [key, partition] of tenant.partitions) {
        if (partition.removed > WASTE_LIMIT && partition.removed > partition.alive) {
          const fresh = partition.compacted();
          tenant.partitions.set(key, fresh);
          for (let slot = 0; slot < fresh.size; slot++) {
            const id = fresh.idAt(slot);
            tenant.places.set(id, { ...tenant.places.get(id)!, slot });
          }
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
      for (const partition of tenants.get(name)?.partitions.values() ?? []) partition.dispose();
      tenants.delete(name);
    },

    async [Symbol.asyncDispose]() {
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
  const wordsOf: Best[] = [];
  const meaningsOf: Best[] = [];
  for (const { partition, owner } of parts) {
    const filter: Filter = {
      nowMs: query.nowMs,
      ...(query.type ? { type: query.type } : {}),
      ...(query.minConfidence === undefined ? {} : { minConfidence: query.minConfidence }),
      ...(owner === undefined ? {} : { owner }),
    };
    // Without a word of the question a memory has nothing to say to it.
    const words = new Best(count, 0);
    if (importances && highest > 0) partition.scoreWords(sparse!.terms, importances, filter, words);
    wordsOf.push(words);
    // The nearest are the nearest, however far: a question is not answered with nothing while there are memories.
    const meanings = new Best(count, -Infinity);
    if (dense) partition.nearest(dense, filter, meanings);
    meaningsOf.push(meanings);
  }

  // Each leg keeps its best over all parts together.
  const [leastWords, leastMeaning] = [leastOf(wordsOf, count), leastOf(meaningsOf, count)];
  return parts.flatMap(({ partition }, i) => {
    const slots = new Set([...wordsOf[i]!.from(leastWords), ...meaningsOf[i]!.from(leastMeaning)]);
    return Array.from(slots, (slot): Candidate => {
      const similarity = dense ? partition.similarityAt(slot, dense) : null;
      return {
        id: partition.idAt(slot),
        ...partition.standingAt(slot),
        similarity: similarity === null ? null : Math.min(1, Math.max(0, similarity)),
        lexical: highest > 0 ? Math.min(1, partition.lexicalAt(slot) * HIGHEST_WEIGHT / highest) : null,
      };
    });
  });
}

/** What a score must reach to be among the best `count` of all parts. */
function leastOf(bests: readonly Best[], count: number): number {
  const all = bests.reduce((sum, best) => sum + best.count, 0);
  if (all <= count) return -Infinity;
  const scores = new Float64Array(all);
  bests.reduce((at, best) => {
    scores.set(best.scores.subarray(0, best.count), at);
    return at + best.count;
  }, 0);
  return scores.sort()[all - count]!;
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
