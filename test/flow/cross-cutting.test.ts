/** What holds for every request: ids, sizes, keys, limits, and what happens when a part is away. */
import { connect } from "node:net";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { begin } from "../../runtime/lifecycle.ts";
import { startService } from "../support/processes.ts";
import { eventually } from "../support/eventually.ts";
import { type TestAgent, type TestTenant, type World, world } from "../support/world.ts";

const agentBody = { name: "n", delivery_mode: "poll", client_type: "other" };

describe("one gateway", () => {
  let w: World;
  let t: TestTenant;
  let agent: TestAgent;
  beforeAll(async () => {
    w = await world();
    t = await w.tenant();
    agent = await t.agent();
  });
  afterAll(() => w?.[Symbol.asyncDispose]());

  test("a well-formed request id is kept, any other is replaced", async () => {
    const ask = async (id: string) =>
      (await w.request("GET", "/agents", { token: agent.token, headers: { "x-request-id": id } })).headers.get(
        "x-request-id",
      );
    expect(await ask("my-Request.id_7")).toBe("my-Request.id_7");
    expect(await ask("x".repeat(129))).toMatch(/^req_/);
    expect(await ask("spaces are not")).toMatch(/^req_/);
  });

  test("unknown paths, known paths with another method, and the announced webhook registration answer 404", async () => {
    for (
      const [method, path] of [["GET", "/nothing"], ["PUT", "/agents"], ["DELETE", "/agents"], [
        "POST",
        "/ingest/webhooks",
      ]] as const
    ) {
      const answer = await w.request(method, path, { token: agent.token });
      expect([answer.status, answer.body.error.code]).toEqual([404, "not_found"]);
      expect(answer.headers.get("x-request-id")).toBe(answer.body.error.request_id);
    }
  });

  test("a body over the limit is refused before anything else, declared or chunked", async () => {
    const large = JSON.stringify({ ...agentBody, description: "x".repeat(300_000) });
    const declared = await w.request("POST", "/agents", { body: large });
    expect([declared.status, declared.body.error.code]).toEqual([413, "payload_too_large"]);
    expect(declared.body.error.details).toMatchObject({ actual_size: large.length, max_size: 262_144 });
    const chunked = await fetch(`${w.urls[0]}/agents`, {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: new Blob([large]).stream(),
      duplex: "half",
    } as RequestInit);
    expect(chunked.status).toBe(413);
    expect((await chunked.json() as { error: { code: string } }).error.code).toBe("payload_too_large");
  });

  test("what is not HTTP still gets the envelope", async () => {
    const answer = await new Promise<string>((resolve) => {
      const socket = connect(Number(new URL(w.urls[0]!).port), "127.0.0.1", () => socket.write("NONSENSE\r\n\r\n"));
      let text = "";
      socket.on("data", (data) => text += data).on("close", () => resolve(text));
    });
    expect(answer).toMatch(/^HTTP\/1.1 400/);
    expect(answer).toMatch(/x-request-id: req_/);
    expect(JSON.parse(answer.split("\r\n\r\n")[1]!).error.code).toBe("validation_failed");
  });

  test("unknown fields and parameters are ignored", async () => {
    expect((await w.request("POST", "/agents?x=1", { token: t.adminToken, body: { ...agentBody, unknown: 1 } })).status)
      .toBe(201);
  });

  test("probes answer without a token", async () => {
    const root = new URL("/", w.urls[0]);
    expect(await (await fetch(new URL("livez", root))).json()).toMatchObject({
      status: "ok",
      version: expect.stringMatching(/^\d+\.\d+/),
    });
    expect((await fetch(new URL(".well-known/jwks.json", root))).status).toBe(200);
    expect((await fetch(new URL("metrics", root))).status).toBe(200);
  });

  describe("Idempotency-Key", () => {
    const post = (key: string, body: unknown, token = t.adminToken, path = "/agents") =>
      w.request("POST", path, { token, body, headers: { "idempotency-key": key } });

    test("a hundred requests at once have one effect and a hundred equal answers", async () => {
      const before = (await t.admin("agents.list", {})).total;
      const answers = await Promise.all(Array.from({ length: 100 }, () => post("hundred", agentBody)));
      expect(new Set(answers.map(({ status }) => status))).toEqual(new Set([201]));
      expect(new Set(answers.map(({ body }) => JSON.stringify(body))).size).toBe(1);
      expect(answers.filter(({ headers }) => headers.get("idempotency-replayed") === "true")).toHaveLength(99);
      expect((await t.admin("agents.list", {})).total).toBe(before + 1);
    });

    test("another body is a conflict that names the key and what is there", async () => {
      const first = await post("same", agentBody);
      const other = await post("same", { ...agentBody, name: "other" });
      expect([other.status, other.body.error.code]).toEqual([409, "conflict"]);
      expect(other.body.error.details).toEqual({ idempotency_key: "same", existing_resource_id: first.body.id });
    });

    test("a key belongs to its caller and path", async () => {
      const other = await t.agent();
      const [mine, theirs] = [await post("shared", agentBody), await post("shared", agentBody, other.token)];
      expect(mine.body.id).not.toBe(theirs.body.id);
      expect((await post("shared", { name: "c-shared", type: "open" }, other.token, "/channels")).status).toBe(201);
    });

    test("a refusal by a rule is kept; a malformed request is not", async () => {
      const path = "/agents/agt_absent/activate";
      const [one, two] = [
        await post("absent", undefined, t.adminToken, path),
        await post("absent", undefined, t.adminToken, path),
      ];
      expect([one.status, two.status]).toEqual([404, 404]);
      expect(two.body).toEqual(one.body);
      expect(two.headers.get("idempotency-replayed")).toBe("true");
      expect((await post("mended", { ...agentBody, name: "" })).status).toBe(400);
      expect((await post("mended", agentBody)).status).toBe(201);
    });

    test("a minted key is the same in the repeated answer, and rests sealed", async () => {
      const path = `/agents/${agent.id}/keys`;
      const [one, two] = [
        await post("mint", { scopes: ["send"] }, t.adminToken, path),
        await post("mint", { scopes: ["send"] }, t.adminToken, path),
      ];
      expect(two.body).toEqual(one.body);
      expect((await w.request("POST", "/auth/token", { body: { api_key: one.body.key } })).status).toBe(200);
      const stored = await storedValues(w, "idempotency");
      expect(stored.join("\n")).not.toContain(one.body.key);
      expect(stored.join("\n")).not.toContain(Buffer.from(JSON.stringify(one.body)).toString("base64").slice(200, 260));
    });

    test("a key of 256 characters is refused", async () => {
      expect((await post("k".repeat(255), agentBody)).status).toBe(201);
      const long = await post("k".repeat(256), agentBody);
      expect([long.status, long.body.error.details.field]).toEqual([400, "Idempotency-Key"]);
    });
  });
});

test("a service that is away is a 503 with Retry-After, and the request succeeds once it is back", async () => {
  await using w = await world({ replicas: 0 });
  const ask = () => w.request("POST", "/auth/token", { body: { api_key: `ak_live_${"0".repeat(32)}` } });
  const away = await ask();
  expect([away.status, away.body.error.code]).toEqual([503, "service_unavailable"]);
  expect(Number(away.headers.get("retry-after"))).toBeGreaterThan(0);
  expect((await fetch(new URL("/readyz", w.urls[0]))).status).toBe(503);
  await using _registry = await startService("registry", w.env);
  await eventually(async () => (await ask()).status === 401, "the registry to answer");
});

test("a request past its deadline is a 503, not a hang", async () => {
  await using w = await world({ replicas: 0 });
  // Takes every request and answers none.
  const silent = w.bus.nc.subscribe("rpc.registry.>", { queue: "registry", callback: () => {} });
  await w.bus.nc.flush();
  const answer = await w.request("POST", "/auth/token", { body: { api_key: `ak_live_${"0".repeat(32)}` } });
  expect([answer.status, answer.body.error.code]).toEqual([503, "service_unavailable"]);
  expect(answer.headers.get("retry-after")).toBeTruthy();
  silent.unsubscribe();
}, 20_000);

test("a handler that crashes is a 500 envelope that says nothing of why", async () => {
  await using w = await world({ replicas: 0 });
  const { serve } = await import("../../runtime/serve.ts");
  const { silent } = await import("../../runtime/log.ts");
  await using _crashing = await begin(async (app) => {
    const boom = () => Promise.reject(new Error("secret of the house"));
    app.use(
      await serve({
        nc: w.bus.nc,
        service: "registry",
        handlers: { "auth.token": boom } as never,
        checks: {},
        log: silent,
      }),
    );
  });
  const answer = await w.request("POST", "/auth/token", { body: { api_key: `ak_live_${"0".repeat(32)}` } });
  expect([answer.status, answer.body.error.code]).toEqual([500, "internal_error"]);
  expect(JSON.stringify(answer.body)).not.toContain("secret of the house");
});

describe("two gateways and two registries", () => {
  test("a key revoked through one gateway is refused by the other", async () => {
    await using w = await world({ gateways: 2, replicas: 2 });
    const t = await w.tenant();
    for (let round = 0; round < 5; round++) {
      const agent = await t.agent();
      for (const gateway of [0, 1]) {
        expect((await w.request("GET", "/agents", { token: agent.token }, gateway)).status).toBe(200);
      }
      const { keys } = await t.admin("keys.list", { path: { id: agent.id } });
      await w.request("DELETE", `/agents/${agent.id}/keys/${keys[0]!.id}`, { token: t.adminToken }, 0);
      await eventually(
        async () => (await w.request("GET", "/agents", { token: agent.token }, 1)).status === 401,
        "the revocation",
      );
    }
  });

  test("a limit of 100 a minute admits 100 across both, and says when to come back", async () => {
    await using w = await world({ gateways: 2, env: { RATE_LIMIT_AGENT_PER_MINUTE: "100" } });
    const agent = await (await w.tenant()).agent();
    const statuses: number[] = [];
    const seconds = 3;
    for (let i = 0; i < seconds; i++) {
      const answers = await Promise.all(
        Array.from({ length: 80 }, (_, n) => w.request("GET", "/agents", { token: agent.token }, n % 2)),
      );
      statuses.push(...answers.map(({ status }) => status));
      const refused = answers.find(({ status }) => status === 429);
      if (refused) {
        expect(refused.body.error.details).toMatchObject({ limit: 100, window_seconds: 60 });
        expect(refused.headers.get("retry-after")).toBe(String(refused.body.error.details.retry_after_seconds));
        expect(refused.headers.get("x-ratelimit-limit")).toBe("100");
        expect(refused.headers.get("x-ratelimit-remaining")).toBe("0");
      }
    }
    expect(statuses.filter((status) => status === 429).length).toBeGreaterThan(0);
    expect(statuses.filter((status) => status === 200)).toHaveLength(100);
    const other = await (await w.tenant()).agent();
    expect((await w.request("GET", "/agents", { token: other.token }, 1)).status).toBe(200);
  });

  test("a tenant's limit holds across its agents, and the token exchange has one for each address", async () => {
    await using w = await world({
      gateways: 2,
      env: { RATE_LIMIT_TENANT_PER_MINUTE: "40", RATE_LIMIT_TOKEN_PER_MINUTE: "12" },
    });
    const t = await w.tenant();
    const agents = [await t.agent(), await t.agent()];
    const answers = await Promise.all(
      Array.from({ length: 60 }, (_, n) => w.request("GET", "/agents", { token: agents[n % 2]!.token }, n % 2)),
    );
    const admitted = answers.filter(({ status }) => status === 200).length;
    expect(admitted).toBeLessThanOrEqual(40);
    expect(admitted).toBeGreaterThan(25); // set-up used some of the forty
    const exchanges = await Promise.all(
      Array.from({ length: 30 }, (_, n) => w.request("POST", "/auth/token", { body: { api_key: t.adminKey } }, n % 2)),
    );
    expect(exchanges.filter(({ status }) => status === 200).length).toBeLessThanOrEqual(12);
    expect(exchanges.some(({ status }) => status === 429)).toBe(true);
  });

  test("an Idempotency-Key has one effect across both", async () => {
    await using w = await world({ gateways: 2, replicas: 2 });
    const t = await w.tenant();
    const answers = await Promise.all(
      Array.from(
        { length: 40 },
        (_, n) =>
          w.request(
            "POST",
            "/agents",
            { token: t.adminToken, body: agentBody, headers: { "idempotency-key": "k" } },
            n % 2,
          ),
      ),
    );
    expect(new Set(answers.map(({ status, body }) => `${status} ${body.id}`)).size).toBe(1);
    expect((await t.admin("agents.list", {})).total).toBe(1);
  });
});

/** Everything a bucket holds, as text. */
async function storedValues(w: World, bucket: string): Promise<string[]> {
  const { Kvm } = await import("@nats-io/kv");
  const kv = await new Kvm(w.bus.nc).open(bucket);
  const values: string[] = [];
  for await (const key of await kv.keys()) values.push((await kv.get(key))!.string());
  return values;
}
