/** Connectors as an operator registers them. Who reads and how it goes is told by whoever owns one at the moment. */
import type { KeyObject } from "node:crypto";
import { invalid, notFound } from "../../../contracts/errors.ts";
import { newId } from "../../../contracts/identity.ts";
import {
  type AmqpSecrets,
  type AmqpSettings,
  type ConnectorShown,
  ConnectorState,
} from "../../../contracts/ingestion.ts";
import type { Handlers } from "../../../contracts/operations.ts";
import { seal } from "../../../runtime/secret.ts";
import type { Announcer } from "../announce.ts";
import { connectorRoute, gone } from "../routes.ts";
import type { ConnectorRow, ConnectorStore } from "../store/connectors.ts";
import type { TenantStore } from "../store/tenants.ts";
import { namedTenant } from "./named-tenant.ts";

type ConnectorOperations =
  | "operator.connector_create"
  | "operator.connector_list"
  | "operator.connector_show"
  | "operator.connector_pause"
  | "operator.connector_resume"
  | "operator.connector_delete";

export function connectorHandlers(deps: {
  readonly tenants: Pick<TenantStore, "find">;
  readonly connectors: ConnectorStore;
  readonly announcer: Pick<Announcer, "change">;
  readonly connectorKey: KeyObject;
  /** What the owner of a connector last wrote. */
  readonly stateOf: (id: string) => Promise<ConnectorState | undefined>;
  readonly forget: (id: string) => Promise<void>;
}): Pick<Handlers<"registry">, ConnectorOperations> {
  const { tenants, connectors, announcer, connectorKey, stateOf, forget } = deps;

  const tenantOf = async (ref: string) => (await namedTenant(tenants, ref)).id;

  const shown = async ({ secrets_sealed: _, ...row }: ConnectorRow): Promise<ConnectorShown> => {
    const state = await stateOf(row.id) ?? untouched;
    return { ...row, state: row.paused ? { ...state, status: "paused" } : state };
  };

  const setPaused = async (ref: string, id: string, paused: boolean) => {
    const tenant = await tenantOf(ref);
    const row = await announcer.change(async (tx, announce) => {
      const changed = await connectors.setPaused(tx, tenant, id, paused);
      if (!changed) throw notFound("connector", id);
      announce(connectorRoute(changed));
      return changed;
    });
    return await shown(row);
  };

  return {
    async "operator.connector_create"({ body: { tenant: ref, secrets, ...create } }, { seed }) {
      assertCredentials(create.settings, secrets);
      const tenant = await tenantOf(ref);
      const row = await announcer.change(async (tx, announce) => {
        const made = await connectors.insert(tx, tenant, {
          ...create,
          id: newId("connector", seed),
          secrets_sealed: seal(connectorKey, Buffer.from(JSON.stringify(secrets))),
        });
        announce(connectorRoute(made));
        return made;
      });
      return await shown(row);
    },

    async "operator.connector_list"({ body: { tenant: ref } }) {
      const rows = await connectors.list(ref === undefined ? undefined : await tenantOf(ref));
      return { connectors: await Promise.all(rows.map(shown)) };
    },

    async "operator.connector_show"({ body: { tenant: ref, id } }) {
      const row = await connectors.find(await tenantOf(ref), id);
      if (!row) throw notFound("connector", id);
      return await shown(row);
    },

    "operator.connector_pause": ({ body: { tenant, id } }) => setPaused(tenant, id, true),
    "operator.connector_resume": ({ body: { tenant, id } }) => setPaused(tenant, id, false),

    async "operator.connector_delete"({ body: { tenant: ref, id } }) {
      const tenant = await tenantOf(ref);
      const row = await connectors.find(tenant, id);
      if (!row) throw notFound("connector", id);
      await announcer.change(async (tx, announce) => {
        await connectors.delete(tx, tenant, id);
        announce(gone(connectorRoute(row)));
      });
      // Its owner, if it writes once more before it hears of this, clears up after itself.
      await forget(id);
    },
  };
}

const untouched = ConnectorState.parse({});

/** A broker would refuse these later, and less clearly. */
function assertCredentials({ sasl, username, tls }: AmqpSettings, { password, key }: AmqpSecrets): void {
  const missing = sasl === "plain" && !username
    ? "settings.username"
    : sasl === "plain" && password === undefined
    ? "secrets.password"
    : sasl === "external" && !tls?.cert
    ? "settings.tls.cert"
    : tls?.cert && !key
    ? "secrets.key"
    : undefined;
  if (missing) throw invalid({ field: missing, value: null, expected: `a value, with SASL ${sasl}`, example: "…" });
}
