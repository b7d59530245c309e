/** Searching for callers, and for deliveries that are to be enriched. */
import type { Handlers } from "../../../contracts/operations.ts";
import type { Chores } from "../chores.ts";
import type { Search } from "../search.ts";
import type { Reader } from "../store/access.ts";
import type { RelationshipStore } from "../store/relationships.ts";

/** How many memories an event is given. */
const SHARE = { light: 5, full: 10 } as const;
/** What of an event is looked at: its beginning says what it is about, and a megabyte of it says no more. */
const EVENT_CHARACTERS = 2_000;

export function searchHandlers(deps: {
  readonly search: Search;
  readonly relationships: Pick<RelationshipStore, "from">;
  readonly chores: Pick<Chores, "touched">;
}): Pick<Handlers<"memory">, "memories.search" | "memory.enrich"> {
  const { search, relationships, chores } = deps;
  return {
    async "memories.search"({ body }, { caller, signal }) {
      const answer = await search(caller, body, signal);
      chores.touched(answer.results.map(({ memory }) => memory.id));
      return answer;
    },

    async "memory.enrich"({ body: { tenant, agent, team, queries } }, { signal }) {
      const reader: Reader = { kind: "agent", id: agent, tenant, ...(team === null ? {} : { team }) };
      const results = await Promise.all(queries.map(async ({ key, text, depth }) => {
        const query = text.slice(0, EVENT_CHARACTERS).trim();
        if (query === "") return { key, memories: [], incomplete: false };
        const { results, degraded } = await search(reader, { query, mode: "hybrid", limit: SHARE[depth] }, signal);
        if (depth === "light") {
          return {
            key,
            memories: results.map(({ memory: { id, title, type }, score }) => ({ id, title, type, score })),
            incomplete: degraded,
          };
        }
        const links = Map.groupBy(
          await relationships.from(reader, results.map(({ memory }) => memory.id)),
          (link) => link.source_memory_id,
        );
        return {
          key,
          memories: results.map(({ memory, score }) => ({
            ...memory,
            score,
            relationships: links.get(memory.id) ?? [],
          })),
          incomplete: degraded,
        };
      }));
      return { results };
    },
  };
}
