/** The token exchange. */
import { type KeyObject, timingSafeEqual } from "node:crypto";
import { unauthenticated } from "../../../contracts/errors.ts";
import type { Handlers } from "../../../contracts/operations.ts";
import { hashOf } from "../keys.ts";
import type { AgentStore } from "../store/agents.ts";
import type { KeyStore } from "../store/keys.ts";
import type { Tokens } from "../tokens.ts";

export function authHandlers(deps: {
  readonly agents: Pick<AgentStore, "find">;
  readonly keys: Pick<KeyStore, "usable" | "touch">;
  readonly tokens: Pick<Tokens, "issue">;
  readonly hashKey: KeyObject;
}): Pick<Handlers<"registry">, "auth.token"> {
  const { agents, keys, tokens, hashKey } = deps;
  // One answer for every reason: which of them it was helps only a thief.
  const refused = () => unauthenticated("The API key is unknown, expired or revoked, or its agent is inactive");
  return {
    async "auth.token"({ body: { api_key } }) {
      const hash = hashOf(hashKey, api_key);
      const key = await keys.usable(hash);
      if (!key || !timingSafeEqual(hash, key.hash)) throw refused();
      const agent = key.agent_id ? await agents.find(key.tenant_id, key.agent_id) ?? null : null;
      if (key.agent_id && agent?.status !== "active") throw refused();
      const { token, expiresAt } = await tokens.issue({
        sub: key.agent_id ?? key.org_admin_id!,
        tid: key.tenant_id,
        ptype: key.agent_id ? "agent" : "org_admin",
        ...(agent?.team_id ? { team: agent.team_id } : {}),
        scopes: key.scopes,
        key_id: key.id,
        ...(key.expires_at ? { key_exp: Math.floor(Date.parse(key.expires_at) / 1_000) } : {}),
      });
      await keys.touch(key.id);
      return { access_token: token, token_type: "Bearer", expires_at: expiresAt.toISOString(), agent };
    },
  };
}
