/** The first start: a tenant to play with, an org-admin, an agent, and their keys, shown once. */
import { readFile, rename, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { client } from "../contracts/client.ts";
import { Fault } from "../contracts/errors.ts";
import { newId, scopes, ulid } from "../contracts/identity.ts";
import type { Bus } from "../runtime/bus.ts";

export interface Bootstrap {
  readonly base_url: string;
  readonly tenant_id: string;
  readonly tenant_slug: string;
  readonly org_admin_key: string;
  readonly agent_id: string;
  readonly agent_key: string;
}

const SLUG = "demo";
const AGENT_NAME = "demo-agent";

/** Undefined when an earlier start has done it. Dying half-way through is mended by the next start. */
export async function bootstrap(
  dataDir: string,
  baseUrl: string,
  bus: Pick<Bus, "ask">,
): Promise<Bootstrap | undefined> {
  const file = join(dataDir, "bootstrap.json");
  if (await exists(file)) return undefined;
  const { tenantId, key } = await orgAdmin(bus);
  const { access_token } = await client(baseUrl)("auth.token", { body: { api_key: key } });
  const call = client(baseUrl, access_token);
  const { agents } = await call("agents.list", { query: { limit: 200 } });
  const agent = agents.find(({ name }) => name === AGENT_NAME) ??
    await call("agents.register", { body: { name: AGENT_NAME, delivery_mode: "poll", client_type: "other" } });
  const minted = await call("keys.mint", { path: { id: agent.id }, body: { scopes: [...scopes] } });
  const made: Bootstrap = {
    base_url: baseUrl,
    tenant_id: tenantId,
    tenant_slug: SLUG,
    org_admin_key: key,
    agent_id: agent.id,
    agent_key: minted.key,
  };
  await writeFile(`${file}.new`, JSON.stringify(made, null, 2) + "\n", { mode: 0o600 });
  await rename(`${file}.new`, file);
  return made;
}

/** The demo tenant with a key of its org-admin: a new tenant, or a further key where the tenant is there already. */
async function orgAdmin(bus: Pick<Bus, "ask">): Promise<{ tenantId: string; key: string }> {
  const origin = () => ({ caller: { kind: "operator" }, requestId: newId("request"), seed: ulid() }) as const;
  try {
    const made =
      (await bus.ask("operator.tenant_create", { path: {}, query: {}, body: { slug: SLUG, name: "Demo" } }, origin()))
        .read();
    return { tenantId: made.tenant.id, key: made.org_admin.key };
  } catch (error) {
    if (!(error instanceof Fault) || error.code !== "conflict") throw error;
    const { tenants } = (await bus.ask("operator.tenant_list", { path: {}, query: {}, body: {} }, origin())).read();
    const minted = (await bus.ask("operator.admin_key_mint", { path: {}, query: {}, body: { tenant: SLUG } }, origin()))
      .read();
    return { tenantId: tenants.find(({ slug }) => slug === SLUG)!.id, key: minted.key };
  }
}

const exists = (file: string) => readFile(file).then(() => true, () => false);
