/** What was committed reaches every watcher, whoever died on the way. */
import { Kvm } from "@nats-io/kv";
import postgres from "postgres";
import { expect, test } from "vitest";
import { routeKeys } from "../../contracts/subjects.ts";
import { startGateway, startService } from "../support/processes.ts";
import { eventually } from "../support/eventually.ts";
import { type World, world } from "../support/world.ts";

async function announced(w: World, key: string): Promise<Record<string, unknown> | undefined> {
  const entry = await (await new Kvm(w.bus.nc).open("routes")).get(key);
  return entry?.operation === "PUT" ? entry.json() : undefined;
}

test("a change committed by a registry that died before announcing it is announced by another", async () => {
  await using w = await world();
  const agent = await (await w.tenant()).agent();
  const key = routeKeys.agent(agent.agent.tenant_id, agent.id);
  expect(await announced(w, key)).toMatchObject({ status: "active" });
  // What such a registry leaves behind: the row and its outbox entry, but nothing in the bucket.
  await using sql = Object.assign(postgres(w.env.DATABASE_URL!, { max: 1 }), {
    [Symbol.asyncDispose]: () => sql.end(),
  });
  await sql`update registry.agents set status = 'inactive' where id = ${agent.id}`;
  await sql`insert into registry.outbox (bucket, key, value, created_at)
    values ('routes', ${key}, ${sql.json({ status: "inactive" })}, now() - interval '1 minute')`;
  await eventually(async () => (await announced(w, key))?.status === "inactive", "the sweep");
  await eventually(async () => (await sql`select 1 from registry.outbox`).length === 0, "an empty outbox");
});

test("an announcement that comes late does not undo a newer one", async () => {
  await using w = await world();
  const agent = await (await w.tenant()).agent();
  const key = routeKeys.agent(agent.agent.tenant_id, agent.id);
  await using sql = Object.assign(postgres(w.env.DATABASE_URL!, { max: 1 }), {
    [Symbol.asyncDispose]: () => sql.end(),
  });
  await sql`insert into registry.outbox (version, bucket, key, value, created_at)
    values (0, 'routes', ${key}, ${sql.json({ status: "stale" })}, now() - interval '1 minute')`;
  await eventually(async () => (await sql`select 1 from registry.outbox`).length === 0, "the sweep");
  expect(await announced(w, key)).toMatchObject({ status: "active" });
});

test("a broker that lost everything is told everything again, and a revoked key stays revoked", async () => {
  await using w = await world({ gateways: 0 });
  await using first = await startGateway(w.env);
  const { client } = await import("../../contracts/client.ts");
  const made = await w.operator("operator.tenant_create", { slug: "lost" });
  const { access_token } = await client(first.url)("auth.token", { body: { api_key: made.org_admin.key } });
  const admin = client(first.url, access_token);
  const agent = await admin("agents.register", { body: { name: "a", delivery_mode: "poll", client_type: "other" } });
  const key = await admin("keys.mint", {
    path: { id: agent.id },
    body: { scopes: ["interests:write", "channel:write"] },
  });
  const { access_token: agentToken } = await client(first.url)("auth.token", { body: { api_key: key.key } });
  const call = client(first.url, agentToken);
  const interest = await call("interests.create", {
    path: { id: agent.id },
    body: { event_type: "*", priority: 1, enrichment_depth: "none" },
  });
  const channel = await call("channels.create", { body: { name: "c", type: "open" } });
  const feed = await call("feeds.create", { path: { id: channel.id }, body: { event_type_glob: "*" } });
  await admin("keys.revoke", { path: { id: agent.id, key_id: key.id } });
  await first[Symbol.asyncDispose]();

  const kvm = new Kvm(w.bus.nc);
  for (const bucket of ["routes", "trust"]) await (await kvm.open(bucket)).destroy();
  await using _registry = await startService("registry", w.env);
  const tenant = agent.tenant_id;
  for (
    const lost of [
      routeKeys.agent(tenant, agent.id),
      routeKeys.interest(tenant, agent.id, interest.id),
      routeKeys.member(tenant, channel.id, agent.id),
      routeKeys.feed(tenant, channel.id, feed.id),
    ]
  ) expect(await announced(w, lost), lost).toBeDefined();
  await using second = await startGateway(w.env);
  await expect(client(second.url, access_token)("agents.get", { path: { id: agent.id } })).resolves.toMatchObject({
    id: agent.id,
  });
  await expect(client(second.url, agentToken)("agents.get", { path: { id: agent.id } })).rejects.toMatchObject({
    code: "authentication_failed",
  });
});

test("a broker killed and started again loses no key, no revocation and no remembered answer, and new revocations are seen", async () => {
  await using w = await world();
  const t = await w.tenant();
  const [kept, revoked] = [await t.agent(), await t.agent()];
  const { keys } = await t.admin("keys.list", { path: { id: revoked.id } });
  await t.admin("keys.revoke", { path: { id: revoked.id, key_id: keys[0]!.id } });
  const body = { name: "once", delivery_mode: "poll", client_type: "other" };
  const post = () => w.request("POST", "/agents", { token: t.adminToken, body, headers: { "idempotency-key": "k" } });
  const first = await post();
  await w.broker.kill();
  await w.broker.start();
  const again = await eventually(async () => {
    const answer = await post();
    return answer.status < 500 && answer;
  }, "the services to come back");
  expect(again.body).toEqual(first.body);
  expect((await w.request("GET", "/agents", { token: kept.token })).status).toBe(200);
  expect((await w.request("GET", "/agents", { token: revoked.token })).status).toBe(401);
  const { keys: more } = await t.admin("keys.list", { path: { id: kept.id } });
  await t.admin("keys.revoke", { path: { id: kept.id, key_id: more[0]!.id } });
  await eventually(
    async () => (await w.request("GET", "/agents", { token: kept.token })).status === 401,
    "the watch to go on",
  );
});
