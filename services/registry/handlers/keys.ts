/** API keys of agents: mint, list, revoke. */
import type { KeyObject } from "node:crypto";
import { Fault, invalid, notFound } from "../../../contracts/errors.ts";
import { holds, newId } from "../../../contracts/identity.ts";
import type { Handlers } from "../../../contracts/operations.ts";
import type { Announcer } from "../announce.ts";
import { freshKey } from "../keys.ts";
import type { AgentStore } from "../store/agents.ts";
import type { KeyStore } from "../store/keys.ts";
import { revocation } from "../trust.ts";

export function keyHandlers(deps: {
  readonly agents: Pick<AgentStore, "find">;
  readonly keys: KeyStore;
  readonly announcer: Pick<Announcer, "change">;
  readonly hashKey: KeyObject;
}): Pick<Handlers<"registry">, "keys.list" | "keys.mint" | "keys.revoke"> {
  const { agents, keys, announcer, hashKey } = deps;
  const assertAgent = async (tenant: string, id: string) => {
    if (!await agents.find(tenant, id)) throw notFound("agent", id);
  };
  return {
    async "keys.list"({ path: { id } }, { caller }) {
      await assertAgent(caller.tenant, id);
      return { keys: await keys.list(caller.tenant, id) };
    },

    async "keys.mint"({ path: { id }, body: { scopes, expires_at } }, { caller, seed }) {
      if (expires_at && Date.parse(expires_at) <= Date.now()) {
        const example = new Date(Date.now() + 30 * 86_400_000).toISOString();
        throw invalid({ field: "expires_at", value: expires_at, expected: "a time in the future", example });
      }
      await assertAgent(caller.tenant, id);
      const missing = scopes.find((scope) => !holds(caller, scope));
      if (missing) {
        throw new Fault("insufficient_scope", `A key cannot be given ${missing} by a caller without it`, {
          required_scope: missing,
        });
      }
      const { plaintext, prefix, hash } = freshKey(hashKey);
      const minted = await announcer.change((tx) =>
        keys.insert(tx, caller.tenant, { kind: "agent", id }, {
          id: newId("api_key", seed),
          prefix,
          hash,
          scopes,
          expires_at,
        })
      );
      const { last_used_at: _, revoked_at: __, ...shown } = minted;
      return { ...shown, key: plaintext };
    },

    "keys.revoke": ({ path: { id, key_id } }, { caller }) =>
      announcer.change(async (tx, announce) => {
        if (!await keys.revoke(tx, caller.tenant, { agent: id }, key_id)) throw notFound("api_key", key_id);
        announce(revocation(key_id));
      }),
  };
}
