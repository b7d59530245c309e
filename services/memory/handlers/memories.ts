/** Memories: keep, read, change, delete, promote. */
import { invalid, notFound, ruleBroken, unavailable } from "../../../contracts/errors.ts";
import { newId, type TenantCaller } from "../../../contracts/identity.ts";
import { type Memory, type MemoryCreate, memoryScopes } from "../../../contracts/memory.ts";
import type { Handlers } from "../../../contracts/operations.ts";
import type { Chores } from "../chores.ts";
import type { Keeper } from "../index/keeper.ts";
import type { Preparer } from "../prepare.ts";
import { nthSeed } from "../seeds.ts";
import { mayWrite, type Reader } from "../store/access.ts";
import type { MemoryStore } from "../store/memories.ts";

type MemoryOperations =
  | "memories.create"
  | "memories.batch"
  | "memories.list"
  | "memories.get"
  | "memories.update"
  | "memories.delete"
  | "memories.promote";

/** A change is made to what was read; when others were faster it is read and judged again. */
const ATTEMPTS = 5;

export function memoryHandlers(deps: {
  readonly memories: MemoryStore;
  readonly preparer: Preparer;
  readonly keeper: Pick<Keeper, "written">;
  readonly chores: Pick<Chores, "touched">;
}): Pick<Handlers<"memory">, MemoryOperations> {
  const { memories, preparer, keeper, chores } = deps;

  const keep = async (caller: TenantCaller, creates: readonly MemoryCreate[], seed: string, signal: AbortSignal) => {
    const placed = creates.map((create, i) => placedBy(caller, create, creates.length > 1 ? i : undefined));
    assertAgent(caller, "Only an agent keeps memories");
    const prepared = await preparer.prepare(placed, signal);
    const made = await memories.insert(
      caller,
      placed.map((create, i) => ({ id: newId("memory", nthSeed(seed, i)), create, prepared: prepared[i]! })),
    );
    await keeper.written(caller.tenant, made.map(({ id }) => id));
    return made;
  };

  const found = async (reader: Reader, id: string): Promise<Memory> => {
    const memory = await memories.find(reader, id);
    if (!memory) throw notFound("memory", id);
    return memory;
  };

  const writable = async (reader: Reader, id: string): Promise<Memory> => {
    const memory = await found(reader, id);
    if (!mayWrite(reader, memory)) {
      throw ruleBroken("not_owner", "Only the owner of a memory may change it", { memory_id: id });
    }
    return memory;
  };

  return {
    async "memories.create"({ body }, { caller, seed, signal }) {
      const [made] = await keep(caller, [body], seed, signal);
      return made!;
    },

    async "memories.batch"({ body }, { caller, seed, signal }) {
      const made = await keep(caller, body.memories, seed, signal);
      return { memories: made, count: made.length };
    },

    "memories.list": ({ query }, { caller }) => memories.list(caller, query),

    async "memories.get"({ path: { id } }, { caller }) {
      const memory = await found(caller, id);
      chores.touched([id]);
      return memory;
    },

    async "memories.update"({ path: { id }, body }, { caller, signal }) {
      for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
        const before = await writable(caller, id);
        if (Object.values(body).every((value) => value === undefined)) return before;
        const text = { title: body.title ?? before.title, content: body.content ?? before.content };
        const isSame = text.title === before.title && text.content === before.content;
        const [prepared] = isSame ? [] : await preparer.prepare([text], signal);
        const updated = await memories.update(caller, before, body, prepared);
        if (updated) {
          await keeper.written(caller.tenant, [id]);
          return updated;
        }
      }
      throw busy();
    },

    async "memories.delete"({ path: { id } }, { caller }) {
      await writable(caller, id);
      if (!await memories.remove(caller, id)) throw notFound("memory", id);
      await keeper.written(caller.tenant, [id]);
    },

    async "memories.promote"({ path: { id }, body }, { caller, seed }) {
      if (body.scope === "team" && !body.team_id) throw teamMissing("a team_id when the scope is team");
      for (let attempt = 0; attempt < ATTEMPTS; attempt++) {
        const before = await writable(caller, id);
        if (await memories.wasPromotedBy(caller, id, seed)) return before;
        if (!widens(before.scope, body.scope)) {
          throw ruleBroken(
            "scope_only_widens",
            `A memory of scope ${before.scope} cannot be promoted to ${body.scope}`,
            { memory_id: id, scope: before.scope },
          );
        }
        const team = body.scope === "team" ? body.team_id! : before.team_id;
        // From the scope that was judged: another request may have widened it meanwhile.
        const promoted = await memories.promote(caller, id, before.scope, body.scope, team, seed);
        if (promoted) {
          await keeper.written(caller.tenant, [id]);
          return promoted;
        }
      }
      throw busy();
    },
  };
}

const busy = () => unavailable("The memory is being changed by others; try again shortly");

const widens = (from: Memory["scope"], to: Memory["scope"]) => memoryScopes.indexOf(to) > memoryScopes.indexOf(from);

export function assertAgent(caller: TenantCaller, message: string): void {
  if (caller.kind !== "agent") throw ruleBroken("agent_required", message);
}

/** With the team it belongs to: the one named, else the caller's own. */
function placedBy(caller: TenantCaller, create: MemoryCreate, place?: number): MemoryCreate {
  if (create.scope !== "team") return create;
  const team_id = create.team_id ?? caller.team;
  if (!team_id) throw teamMissing("a team_id, because the caller is in no team", place);
  return { ...create, team_id };
}

const teamMissing = (expected: string, place?: number) =>
  invalid({
    field: place === undefined ? "team_id" : `memories[${place}].team_id`,
    value: null,
    expected,
    example: "team-research",
  });
