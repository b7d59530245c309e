/** Agents: register, read, change, stop and start. */
import { notFound } from "../../../contracts/errors.ts";
import { newId } from "../../../contracts/identity.ts";
import type { Call, Handlers } from "../../../contracts/operations.ts";
import type { Agent } from "../../../contracts/registry.ts";
import type { Announcer } from "../announce.ts";
import { agentRoute, gone } from "../routes.ts";
import type { AgentStore } from "../store/agents.ts";
import { stopped } from "../trust.ts";

type AgentOperations =
  | "agents.register"
  | "agents.list"
  | "agents.get"
  | "agents.update"
  | "agents.deactivate"
  | "agents.activate";

/** Undefined when it was given away before, or cannot be had now: `push.secret` makes another. */
export type FirstPushSecret = (
  tenant: string,
  agent: string,
  call: Pick<Call, "requestId" | "seed">,
) => Promise<string | undefined>;

export function agentHandlers(deps: {
  readonly agents: AgentStore;
  readonly announcer: Pick<Announcer, "change">;
  readonly firstPushSecret: FirstPushSecret;
}): Pick<Handlers<"registry">, AgentOperations> {
  const { agents, announcer, firstPushSecret } = deps;

  const setStatus = (tenant: string, id: string, status: Agent["status"]) =>
    announcer.change(async (tx, announce) => {
      const agent = await agents.update(tx, tenant, id, { status });
      if (!agent) throw notFound("agent", id);
      announce(agentRoute(agent));
      announce(status === "inactive" ? stopped(id) : gone(stopped(id)));
    });

  return {
    "agents.register": ({ body }, { caller, seed }) =>
      announcer.change(async (tx, announce) => {
        const agent = await agents.insert(tx, caller.tenant, newId("agent", seed), body);
        announce(agentRoute(agent));
        return agent;
      }),

    "agents.list": ({ query }, { caller }) => agents.list(caller.tenant, query),

    async "agents.get"({ path: { id } }, { caller }) {
      const agent = await agents.find(caller.tenant, id);
      if (!agent) throw notFound("agent", id);
      return agent;
    },

    async "agents.update"({ path: { id }, body }, { caller, requestId, seed }) {
      const agent = await announcer.change(async (tx, announce) => {
        const agent = await agents.update(tx, caller.tenant, id, body);
        if (!agent) throw notFound("agent", id);
        announce(agentRoute(agent));
        return agent;
      });
      if (!body.delivery_endpoint) return agent;
      const push_secret = await firstPushSecret(caller.tenant, id, { requestId, seed });
      return push_secret ? { ...agent, push_secret } : agent;
    },

    async "agents.deactivate"({ path: { id } }, { caller }) {
      await setStatus(caller.tenant, id, "inactive");
      return { status: "inactive" };
    },

    async "agents.activate"({ path: { id } }, { caller }) {
      await setStatus(caller.tenant, id, "active");
      return { status: "active" };
    },
  };
}
