/** Agents, keys, interests and channels over HTTP, rule by rule. */
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { Agent, ApiKey, Interest, MintedKey, Token } from "../../contracts/registry.ts";
import { Channel, Feed, Member } from "../../contracts/channels.ts";
import { type TestTenant, type World, world } from "../support/world.ts";

let w: World;
let t: TestTenant;
beforeAll(async () => {
  w = await world({ env: { RATE_LIMIT_TOKEN_PER_MINUTE: "0" } });
  t = await w.tenant();
});
afterAll(() => w?.[Symbol.asyncDispose]());

const rule = (body: { error: { details: { rule: string } } }) => body.error.details.rule;

describe("tokens", () => {
  test("an API key is exchanged for a one-hour token with the agent beside it", async () => {
    const { id, key } = await t.agent();
    const before = Date.now();
    const { status, body } = await w.request("POST", "/auth/token", { body: { api_key: key } });
    expect(status).toBe(200);
    const token = Token.parse(body);
    expect(token.agent?.id).toBe(id);
    const lifetime = Date.parse(token.expires_at) - before;
    expect(lifetime).toBeGreaterThan(3_590_000);
    expect(lifetime).toBeLessThanOrEqual(3_601_000);
  });

  test("an org-admin's token has no agent and holds every scope of its tenant", async () => {
    const { body } = await w.request("POST", "/auth/token", { body: { api_key: t.adminKey } });
    expect(body.agent).toBeNull();
    expect((await w.request("GET", "/channels", { token: body.access_token })).status).toBe(200);
  });

  test("a key that never was, and one of the wrong form, are told apart only by their form", async () => {
    const unknown = await w.request("POST", "/auth/token", { body: { api_key: `ak_live_${"0".repeat(32)}` } });
    expect([unknown.status, unknown.body.error.code]).toEqual([401, "authentication_failed"]);
    const malformed = await w.request("POST", "/auth/token", { body: { api_key: "ak_live_short" } });
    expect([malformed.status, malformed.body.error.details.field]).toEqual([400, "api_key"]);
    expect(JSON.stringify(malformed.body)).not.toContain("ak_live_short");
  });

  test("a token keeps working when the signing key is rotated, and new ones are signed with the new key", async () => {
    const { token, key } = await t.agent();
    const { kid } = await w.operator("operator.signing_key_rotate");
    expect((await w.request("GET", "/agents", { token })).status).toBe(200);
    const jwks = await (await fetch(new URL("/.well-known/jwks.json", w.urls[0]))).json() as {
      keys: { kid: string }[];
    };
    expect(jwks.keys.map((k) => k.kid)).toContain(kid);
    const fresh = await w.token(key);
    expect(JSON.parse(Buffer.from(fresh.split(".")[0]!, "base64url").toString())).toMatchObject({ alg: "EdDSA", kid });
    expect((await w.request("GET", "/agents", { token: fresh })).status).toBe(200);
  });

  test("claims say who, where and what, and end an hour after they began", async () => {
    const agent = await t.agent({ team: "red", scopes: ["send"] });
    const claims = JSON.parse(Buffer.from(agent.token.split(".")[1]!, "base64url").toString());
    expect(claims).toMatchObject({
      iss: "sensorium",
      sub: agent.id,
      tid: t.id,
      ptype: "agent",
      team: "red",
      scopes: ["send"],
    });
    expect(claims.exp).toBe(claims.iat + 3_600);
    expect(claims.key_id).toMatch(/^key_/);
    expect(claims.jti).toBeTruthy();
  });
});

describe("agents", () => {
  test("a registered agent is active and can be read back", async () => {
    const body = { name: "watcher", description: "d", delivery_mode: "sse", client_type: "claude", team_id: "red" };
    const made = await w.request("POST", "/agents", { token: t.adminToken, body });
    expect(made.status).toBe(201);
    expect(Agent.parse(made.body)).toMatchObject({ ...body, status: "active", tenant_id: t.id });
    expect(made.body).not.toHaveProperty("delivery_endpoint");
    expect((await w.request("GET", `/agents/${made.body.id}`, { token: t.adminToken })).body).toEqual(made.body);
  });

  test("a list is paged, newest first, and filtered by status", async () => {
    const mine = await w.tenant();
    const agents = [await mine.agent({ name: "a" }), await mine.agent({ name: "b" }), await mine.agent({ name: "c" })];
    await mine.admin("agents.deactivate", { path: { id: agents[1]!.id } });
    const all = await mine.admin("agents.list", {});
    expect([all.agents.map(({ name }) => name), all.total]).toEqual([["c", "b", "a"], 3]);
    expect((await mine.admin("agents.list", { query: { limit: 1, offset: 1 } })).agents.map(({ name }) => name))
      .toEqual(["b"]);
    expect((await mine.admin("agents.list", { query: { status: "inactive" } })).agents.map(({ name }) => name)).toEqual(
      ["b"],
    );
    expect((await mine.admin("agents.list", { query: { status: "active" } })).total).toBe(2);
  });

  test("an agent changes itself without admin, and nobody else", async () => {
    const [one, two] = [await t.agent({ scopes: ["send"] }), await t.agent({ scopes: ["send"] })];
    const changed = await w.request("PATCH", `/agents/${one.id}`, {
      token: one.token,
      body: { delivery_mode: "push", delivery_endpoint: "https://example.com/in" },
    });
    expect(changed.body).toMatchObject({ delivery_mode: "push", delivery_endpoint: "https://example.com/in" });
    const other = await w.request("PATCH", `/agents/${two.id}`, { token: one.token, body: { name: "x" } });
    expect([other.status, other.body.error.details]).toEqual([403, { required_scope: "admin" }]);
    const cleared = await w.request("PATCH", `/agents/${one.id}`, {
      token: one.token,
      body: { delivery_endpoint: null, name: "n" },
    });
    expect(cleared.body).not.toHaveProperty("delivery_endpoint");
    expect(cleared.body.name).toBe("n");
    expect(Date.parse(cleared.body.updated_at)).toBeGreaterThanOrEqual(Date.parse(cleared.body.created_at));
  });

  test("a deactivated agent's tokens and keys answer 401 until it is active again", async () => {
    const agent = await t.agent();
    const path = { path: { id: agent.id } };
    expect(await t.admin("agents.deactivate", path)).toEqual({ status: "inactive" });
    await expect.poll(async () => (await w.request("GET", "/agents", { token: agent.token })).status).toBe(401);
    expect((await w.request("POST", "/auth/token", { body: { api_key: agent.key } })).status).toBe(401);
    expect(await t.admin("agents.activate", path)).toEqual({ status: "active" });
    expect((await w.request("POST", "/auth/token", { body: { api_key: agent.key } })).status).toBe(200);
    await expect.poll(async () => (await w.request("GET", "/agents", { token: agent.token })).status).toBe(200);
  });
});

describe("keys", () => {
  test("the plaintext is shown once, and a listing has neither it nor its hash", async () => {
    const { id } = await t.agent();
    const minted = await w.request("POST", `/agents/${id}/keys`, { token: t.adminToken, body: { scopes: ["send"] } });
    expect(minted.status).toBe(201);
    const { key, prefix } = MintedKey.parse(minted.body);
    expect(key).toMatch(/^ak_live_[A-Za-z0-9]{32}$/);
    expect(prefix).toBe(key.slice(0, 12));
    const listed = await w.request("GET", `/agents/${id}/keys`, { token: t.adminToken });
    expect(listed.body.keys.length).toBe(2);
    for (const item of listed.body.keys) {
      expect(Object.keys(ApiKey.strict().parse(item)).sort()).toEqual(
        ["created_at", "expires_at", "id", "last_used_at", "prefix", "revoked_at", "scopes"],
      );
    }
    expect(JSON.stringify(listed.body)).not.toContain(key);
    expect(listed.body.keys[1].last_used_at).not.toBeNull();
  });

  test("a key gives no more than its minter holds, unless that is an org-admin", async () => {
    const minter = await t.agent({ scopes: ["admin", "send"] });
    const mint = (scopes: string[]) =>
      w.request("POST", `/agents/${minter.id}/keys`, { token: minter.token, body: { scopes } });
    expect((await mint(["send"])).status).toBe(201);
    const refused = await mint(["send", "memory:read"]);
    expect([refused.status, refused.body.error.details]).toEqual([403, { required_scope: "memory:read" }]);
  });

  test("a revoked key is refused, and so is every token issued from it; its sibling stays", async () => {
    const agent = await t.agent();
    const sibling = await t.admin("keys.mint", { path: { id: agent.id }, body: { scopes: ["send"] } });
    const siblingToken = await w.token(sibling.key);
    const { keys } = await t.admin("keys.list", { path: { id: agent.id } });
    const first = keys.find((key) => key.id !== sibling.id)!;
    const url = `/agents/${agent.id}/keys/${first.id}`;
    expect((await w.request("DELETE", url, { token: t.adminToken })).status).toBe(204);
    expect((await w.request("DELETE", url, { token: t.adminToken })).status).toBe(204);
    await expect.poll(async () => (await w.request("GET", "/agents", { token: agent.token })).status).toBe(401);
    expect((await w.request("POST", "/auth/token", { body: { api_key: agent.key } })).status).toBe(401);
    expect((await w.request("GET", "/agents", { token: siblingToken })).status).toBe(200);
    const listed = await t.admin("keys.list", { path: { id: agent.id } });
    expect(listed.keys.find((key) => key.id === first.id)?.revoked_at).toBeTruthy();
  });

  test("a key ends at its time, and the tokens issued from it end with it", async () => {
    const agent = await t.agent();
    const expires_at = new Date(Date.now() + 1_500).toISOString();
    const { key } = await t.admin("keys.mint", { path: { id: agent.id }, body: { scopes: ["send"], expires_at } });
    const token = await w.token(key);
    expect((await w.request("GET", "/agents", { token })).status).toBe(200);
    await expect.poll(async () => (await w.request("GET", "/agents", { token })).status, { timeout: 10_000 }).toBe(401);
    await expect.poll(async () => (await w.request("POST", "/auth/token", { body: { api_key: key } })).status, {
      timeout: 10_000,
    }).toBe(401);
    const past = await w.request("POST", `/agents/${agent.id}/keys`, {
      token: t.adminToken,
      body: { scopes: ["send"], expires_at },
    });
    expect([past.status, past.body.error.details.field]).toEqual([400, "expires_at"]);
  });

  test("a key is revoked only through the agent it belongs to", async () => {
    const [one, two] = [await t.agent(), await t.agent()];
    const { keys } = await t.admin("keys.list", { path: { id: two.id } });
    const answer = await w.request("DELETE", `/agents/${one.id}/keys/${keys[0]!.id}`, { token: t.adminToken });
    expect([answer.status, answer.body.error.details.resource_type]).toEqual([404, "api_key"]);
  });
});

describe("interests", () => {
  const interest = {
    event_type: "com.example.order.*",
    filter_expression: "data.total > 100",
    priority: 3,
    enrichment_depth: "light",
  };

  test("an agent creates, lists and deletes its own", async () => {
    const agent = await t.agent();
    const url = `/agents/${agent.id}/interests`;
    const made = await w.request("POST", url, { token: agent.token, body: interest });
    expect(made.status).toBe(201);
    expect(Interest.parse(made.body)).toMatchObject({ ...interest, active: true, agent_id: agent.id, tenant_id: t.id });
    expect((await w.request("GET", url, { token: agent.token })).body).toEqual({ interests: [made.body] });
    expect((await w.request("DELETE", `${url}/${made.body.id}`, { token: agent.token })).status).toBe(204);
    expect((await w.request("DELETE", `${url}/${made.body.id}`, { token: agent.token })).status).toBe(404);
    expect((await w.request("GET", url, { token: agent.token })).body).toEqual({ interests: [] });
  });

  test("two alike conflict, and the answer names the one that is there", async () => {
    const agent = await t.agent();
    const url = `/agents/${agent.id}/interests`;
    for (const filter_expression of ["data.a == 1", null]) {
      const body = { ...interest, filter_expression };
      const made = await w.request("POST", url, { token: agent.token, body });
      const again = await w.request("POST", url, { token: agent.token, body: { ...body, priority: 9 } });
      expect([again.status, again.body.error.code]).toEqual([422, "business_rule_violation"]);
      expect(again.body.error.details).toMatchObject({ rule: "interest_conflict", existing_interest_id: made.body.id });
    }
  });

  test.each([
    ["data.total >", 12],
    ["data.total > 1 &&& true", 17],
    ["foo == 1", 0],
    ["data.total + 'x' + 1 ==", 23],
    ["'text'", 0],
    ["[1,2].exists(a, [3].exists(b, b > a))", 16],
  ])("a filter that is no condition is refused with its position: %s", async (filter_expression, position) => {
    const agent = await t.agent();
    const answer = await w.request("POST", `/agents/${agent.id}/interests`, {
      token: agent.token,
      body: { ...interest, filter_expression },
    });
    expect([answer.status, answer.body.error.details.field]).toEqual([400, "filter_expression"]);
    expect(answer.body.error.details.position).toBe(position);
  });

  test("only the agent itself creates; an org-admin lists and deletes for any", async () => {
    const [one, two] = [await t.agent(), await t.agent()];
    const url = `/agents/${one.id}/interests`;
    expect(rule((await w.request("POST", url, { token: two.token, body: interest })).body)).toBe("own_agent_only");
    expect(rule((await w.request("GET", url, { token: two.token })).body)).toBe("own_agent_only");
    expect(rule((await w.request("POST", url, { token: t.adminToken, body: interest })).body)).toBe("agent_required");
    const made = await w.request("POST", url, { token: one.token, body: interest });
    expect((await w.request("GET", url, { token: t.adminToken })).body.interests).toHaveLength(1);
    expect((await w.request("DELETE", `${url}/${made.body.id}`, { token: t.adminToken })).status).toBe(204);
  });
});

describe("channels", () => {
  let count = 0;
  const fresh = (type: string) => ({ name: `channel-${count++}`, type });
  const create = async (token: string, type: string) =>
    (await w.request("POST", "/channels", { token, body: fresh(type) })).body as Channel;
  const member = (id: string, role = "member") => ({ participant_type: "agent", participant_id: id, role });

  test("its creator becomes its owner, and its name is taken", async () => {
    const agent = await t.agent();
    const body = fresh("open");
    const made = await w.request("POST", "/channels", { token: agent.token, body });
    expect(made.status).toBe(201);
    expect(Channel.parse(made.body)).toMatchObject({ ...body, created_by_type: "agent", created_by_id: agent.id });
    const { members } = (await w.request("GET", `/channels/${made.body.id}/members`, { token: agent.token })).body;
    expect(members.map((m: Member) => [Member.parse(m).participant_id, m.role])).toEqual([[agent.id, "owner"]]);
    const again = await w.request("POST", "/channels", { token: agent.token, body });
    expect([again.status, again.body.error.details.existing_resource_id]).toEqual([409, made.body.id]);
    const elsewhere = await w.tenant();
    expect((await w.request("POST", "/channels", { token: elsewhere.adminToken, body })).status).toBe(201);
  });

  test("an open channel is everybody's to read and to join, but not to manage", async () => {
    const [owner, guest, third] = [await t.agent(), await t.agent(), await t.agent()];
    const { id } = await create(owner.token, "open");
    const members = `/channels/${id}/members`;
    expect((await w.request("GET", `/channels/${id}`, { token: guest.token })).status).toBe(200);
    expect(rule((await w.request("POST", members, { token: guest.token, body: member(third.id) })).body)).toBe(
      "channel_role_required",
    );
    expect(rule((await w.request("POST", members, { token: guest.token, body: member(guest.id, "owner") })).body)).toBe(
      "channel_role_required",
    );
    expect((await w.request("POST", members, { token: guest.token, body: member(guest.id) })).status).toBe(201);
    const twice = await w.request("POST", members, { token: guest.token, body: member(guest.id) });
    expect([twice.status, twice.body.error.code]).toEqual([409, "conflict"]);
    const feed = { event_type_glob: "a.*" };
    expect(rule((await w.request("POST", `/channels/${id}/feeds`, { token: guest.token, body: feed })).body)).toBe(
      "channel_role_required",
    );
  });

  test("a private channel is there for its members and org-admins alone", async () => {
    const [owner, insider, outsider] = [await t.agent(), await t.agent(), await t.agent()];
    const channel = await create(owner.token, "private");
    const url = `/channels/${channel.id}`;
    for (const path of [url, `${url}/members`, `${url}/feeds`]) {
      expect((await w.request("GET", path, { token: outsider.token })).status).toBe(404);
      expect((await w.request("GET", path, { token: t.adminToken })).status).toBe(200);
    }
    const listed = async (token: string) =>
      ((await w.request("GET", "/channels?limit=200", { token })).body.channels as Channel[]).some((c) =>
        c.id === channel.id
      );
    expect([await listed(outsider.token), await listed(owner.token), await listed(t.adminToken)]).toEqual([
      false,
      true,
      true,
    ]);
    expect((await w.request("POST", `${url}/members`, { token: outsider.token, body: member(outsider.id) })).status)
      .toBe(404);
    expect((await w.request("POST", `${url}/members`, { token: owner.token, body: member(insider.id) })).status).toBe(
      201,
    );
    expect((await w.request("GET", url, { token: insider.token })).status).toBe(200);
    expect(rule((await w.request("POST", `${url}/members`, { token: insider.token, body: member(outsider.id) })).body))
      .toBe("channel_role_required");
    const name = await w.request("POST", "/channels", {
      token: outsider.token,
      body: { name: channel.name, type: "open" },
    });
    expect([name.status, name.body.error.details.existing_resource_id]).toEqual([409, null]);
  });

  test("a direct channel has two members at most", async () => {
    const [one, two, three] = [await t.agent(), await t.agent(), await t.agent()];
    const { id } = await create(one.token, "direct");
    expect((await w.request("POST", `/channels/${id}/members`, { token: one.token, body: member(two.id) })).status)
      .toBe(201);
    expect(
      rule((await w.request("POST", `/channels/${id}/members`, { token: one.token, body: member(three.id) })).body),
    ).toBe("direct_channel_full");
  });

  test("a member leaves by itself, is removed by those who manage, and the last owner stays", async () => {
    const [owner, admin, plain, stranger] = [await t.agent(), await t.agent(), await t.agent(), await t.agent()];
    const { id } = await create(owner.token, "open");
    const members = `/channels/${id}/members`;
    await w.request("POST", members, { token: owner.token, body: member(admin.id, "admin") });
    await w.request("POST", members, { token: owner.token, body: member(plain.id) });
    const remove = (who: string, token: string) => w.request("DELETE", `${members}/agent/${who}`, { token });
    expect(rule((await remove(owner.id, owner.token)).body)).toBe("last_owner");
    expect(rule((await remove(owner.id, admin.token)).body)).toBe("owner_required");
    expect(rule((await remove(admin.id, plain.token)).body)).toBe("channel_role_required");
    expect((await remove(stranger.id, owner.token)).status).toBe(404);
    expect((await remove(plain.id, plain.token)).status).toBe(204);
    expect((await remove(admin.id, owner.token)).status).toBe(204);
    expect((await remove(admin.id, owner.token)).status).toBe(404);
  });

  test("members must exist in the tenant", async () => {
    const owner = await t.agent();
    const { id } = await create(owner.token, "open");
    const foreign = await (await w.tenant()).agent();
    const add = (participant_type: string, participant_id: string) =>
      w.request("POST", `/channels/${id}/members`, { token: owner.token, body: { participant_type, participant_id } });
    expect((await add("agent", foreign.id)).body.error.details).toMatchObject({
      resource_type: "agent",
      resource_id: foreign.id,
    });
    expect((await add("org_admin", "adm_nobody")).status).toBe(404);
  });

  test("feeds are added, listed and deleted by those who manage the channel", async () => {
    const owner = await t.agent();
    const { id } = await create(owner.token, "open");
    const feeds = `/channels/${id}/feeds`;
    const made = await w.request("POST", feeds, {
      token: owner.token,
      body: { event_type_glob: "com.*", filter_expression: "has(data.a)" },
    });
    expect(made.status).toBe(201);
    expect(Feed.parse(made.body)).toMatchObject({
      channel_id: id,
      event_type_glob: "com.*",
      filter_expression: "has(data.a)",
      active: true,
    });
    const wrong = await w.request("POST", feeds, {
      token: owner.token,
      body: { event_type_glob: "com.*", filter_expression: "(" },
    });
    expect([wrong.status, wrong.body.error.details.field]).toEqual([400, "filter_expression"]);
    expect((await w.request("GET", feeds, { token: owner.token })).body).toEqual({ feeds: [made.body] });
    expect((await w.request("DELETE", `${feeds}/${made.body.id}`, { token: t.adminToken })).status).toBe(204);
    expect((await w.request("DELETE", `${feeds}/${made.body.id}`, { token: owner.token })).status).toBe(404);
  });
});

describe("tenants", () => {
  test("an operator creates and lists them; a slug is taken once", async () => {
    const { tenant } = await w.operator("operator.tenant_create", { slug: "acme", name: "Acme" });
    expect(tenant).toMatchObject({ slug: "acme", name: "Acme" });
    await expect(w.operator("operator.tenant_create", { slug: "acme" })).rejects.toMatchObject({ code: "conflict" });
    expect((await w.operator("operator.tenant_list")).tenants.map(({ slug }) => slug)).toContain("acme");
  });

  test("a further org-admin key works until it is revoked", async () => {
    const mine = await w.tenant();
    const { key, key_id } = await w.operator("operator.admin_key_mint", { tenant: mine.slug });
    const token = await w.token(key);
    expect((await w.request("GET", "/agents", { token })).status).toBe(200);
    await w.operator("operator.admin_key_revoke", { tenant: mine.slug, key_id });
    await expect.poll(async () => (await w.request("GET", "/agents", { token })).status).toBe(401);
    expect((await w.request("GET", "/agents", { token: mine.adminToken })).status).toBe(200);
  });
});
