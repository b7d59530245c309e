/** Interests: an agent's own, kept apart from those of every other. */
import { notFound, ruleBroken } from "../../../contracts/errors.ts";
import { newId, type TenantCaller } from "../../../contracts/identity.ts";
import type { Handlers } from "../../../contracts/operations.ts";
import { routeKeys } from "../../../contracts/subjects.ts";
import type { Announcer } from "../announce.ts";
import { assertFilter } from "../filters.ts";
import { interestRoute } from "../routes.ts";
import type { AgentStore } from "../store/agents.ts";
import type { InterestStore } from "../store/interests.ts";

export function interestHandlers(deps: {
  readonly agents: Pick<AgentStore, "find">;
  readonly interests: InterestStore;
  readonly announcer: Pick<Announcer, "change">;
}): Pick<Handlers<"registry">, "interests.list" | "interests.create" | "interests.delete"> {
  const { agents, interests, announcer } = deps;

  /** The agent exists, and is the caller or is looked after by an org-admin. */
  const assertOwn = async (caller: TenantCaller, id: string) => {
    if (!await agents.find(caller.tenant, id)) throw notFound("agent", id);
    if (caller.kind === "agent" && caller.id !== id) {
      throw ruleBroken("own_agent_only", "An agent manages its own interests only", { agent_id: id });
    }
  };

  return {
    async "interests.list"({ path: { id } }, { caller }) {
      await assertOwn(caller, id);
      return { interests: await interests.list(caller.tenant, id) };
    },

    async "interests.create"({ path: { id }, body }, { caller, seed }) {
      assertFilter(body.filter_expression);
      await assertOwn(caller, id);
      if (caller.kind !== "agent") throw ruleBroken("agent_required", "Only an agent can have interests");
      return await announcer.change(async (tx, announce) => {
        const made = await interests.insert(tx, caller.tenant, id, newId("interest", seed), body);
        if (!made) {
          const existing = await interests.alike(tx, caller.tenant, id, body);
          throw ruleBroken("interest_conflict", "The agent has an interest with the same type and filter already", {
            existing_interest_id: existing ?? "",
          });
        }
        announce(interestRoute(made));
        return made;
      });
    },

    async "interests.delete"({ path: { id, interest_id } }, { caller }) {
      await assertOwn(caller, id);
      await announcer.change(async (tx, announce) => {
        if (!await interests.delete(tx, caller.tenant, id, interest_id)) throw notFound("interest", interest_id);
        announce({ bucket: "routes", key: routeKeys.interest(caller.tenant, id, interest_id) });
      });
    },
  };
}
