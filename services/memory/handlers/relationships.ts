/** Links between memories. */
import { notFound, ruleBroken, taken } from "../../../contracts/errors.ts";
import { newId } from "../../../contracts/identity.ts";
import type { Memory } from "../../../contracts/memory.ts";
import type { Handlers } from "../../../contracts/operations.ts";
import type { Reader } from "../store/access.ts";
import type { MemoryStore } from "../store/memories.ts";
import type { RelationshipStore } from "../store/relationships.ts";
import { traverse } from "../traverse.ts";
import { assertAgent } from "./memories.ts";

type RelationshipOperations = "relationships.create" | "relationships.list" | "relationships.delete";

export function relationshipHandlers(deps: {
  readonly memories: Pick<MemoryStore, "find" | "read">;
  readonly relationships: RelationshipStore;
}): Pick<Handlers<"memory">, RelationshipOperations> {
  const { memories, relationships } = deps;

  const found = async (reader: Reader, id: string): Promise<Memory> => {
    const memory = await memories.find(reader, id);
    if (!memory) throw notFound("memory", id);
    return memory;
  };

  return {
    async "relationships.create"({ path: { id }, body }, { caller, seed }) {
      await found(caller, id);
      await found(caller, body.target_memory_id);
      assertAgent(caller, "Only an agent links memories");
      if (body.target_memory_id === id) {
        throw ruleBroken("self_relationship", "A memory cannot be linked to itself", { memory_id: id });
      }
      const made = newId("relationship", seed);
      const there = await relationships.insert(caller.tenant, caller.id, made, id, body);
      if (there.id !== made) throw taken("These memories are linked in this way already", there.id);
      return there;
    },

    async "relationships.list"({ path: { id }, query: { depth } }, { caller }) {
      await found(caller, id);
      assertAgent(caller, "Only an agent walks the links of memories");
      const reached = await traverse(id, depth, (sources) => relationships.from(caller, sources));
      const targets = reached.map(({ relationship }) => relationship.target_memory_id);
      const read = new Map((await memories.read(caller, targets)).memories.map((memory) => [memory.id, memory]));
      const steps = reached.flatMap((step) => {
        const memory = read.get(step.relationship.target_memory_id);
        return memory ? [{ ...step, memory }] : [];
      });
      return { relationships: steps, count: steps.length };
    },

    async "relationships.delete"({ path: { id, rel_id } }, { caller }) {
      const source = await found(caller, id);
      const link = await relationships.find(caller.tenant, id, rel_id);
      if (!link) throw notFound("relationship", rel_id);
      assertAgent(caller, "Only an agent unlinks memories");
      if (source.agent_id !== caller.id && link.created_by !== caller.id) {
        throw ruleBroken("not_owner", "Only who made a link, or owns the memory it starts from, may remove it", {
          relationship_id: rel_id,
        });
      }
      if (!await relationships.remove(caller.tenant, id, rel_id)) throw notFound("relationship", rel_id);
    },
  };
}
