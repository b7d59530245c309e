/** Webhooks from the sender's request to the delivery an agent polls. */
import { createHash, createHmac } from "node:crypto";
import postgres from "postgres";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import type { WebhookRoutes } from "../../contracts/ingestion.ts";
import type { Input } from "../../contracts/operations.ts";
import { buckets as streams } from "../../contracts/streams.ts";
import { webhookKey } from "../../contracts/subjects.ts";
import { openBucket } from "../../runtime/buckets.ts";
import { startTelemetry, type Telemetry, TelemetryEnv } from "../../runtime/telemetry.ts";
import { startService } from "../support/processes.ts";
import { eventually } from "../support/eventually.ts";
import { type TestAgent, type TestTenant, type World, world } from "../support/world.ts";

const services = ["registry", "delivery", "fanout", "ingest"] as const;

let w: World;
let tenant: TestTenant;
let agent: TestAgent;

let telemetry: Telemetry;

beforeAll(async () => {
  telemetry = await startTelemetry("test", TelemetryEnv.parse({}));
  w = await world({ services, env: { RATE_LIMIT_WEBHOOK_PER_MINUTE: "0" } });
  tenant = await w.tenant();
  agent = await tenant.agent();
  await interest(agent, "*");
});
afterAll(async () => {
  await w?.[Symbol.asyncDispose]();
  await telemetry?.[Symbol.asyncDispose]();
});

const interest = (of: TestAgent, event_type: string) =>
  of.call("interests.create", { path: { id: of.id }, body: { event_type, priority: 0, enrichment_depth: "none" } });

const mapping = { entity: "order", action: "/action", id: "/id", entity_id: "/order/number" };
type Create = Partial<Input<"operator.webhook_create">["body"]>;

async function register(options: Create & { of?: TestTenant } = {}) {
  const { of = tenant, ...rest } = options;
  const { webhook, secret } = await w.operator("operator.webhook_create", {
    tenant: of.slug,
    source: "shop",
    preset: "custom",
    mapping: rest.preset && rest.preset !== "custom" ? null : mapping,
    ...rest,
  });
  return { ...webhook, secret: secret ?? rest.secret! };
}

async function post(body: string | Uint8Array, headers: Record<string, string>, slug = tenant.slug) {
  const response = await fetch(`${w.urls[0]!.replace("/v1", "")}/w/${slug}`, {
    method: "POST",
    headers: { "content-type": "application/json", ...headers },
    body: body as string,
  });
  const text = await response.text();
  return {
    status: response.status,
    headers: response.headers,
    // deno-lint-ignore no-explicit-any -- tests look into answers of every shape
    body: JSON.parse(text) as any,
  };
}

const hex = (secret: string, text: string | Uint8Array) => createHmac("sha256", secret).update(text).digest("hex");
const signed = (secret: string, text: string | Uint8Array) => ({ "x-service-signature": hex(secret, text) });
const send = (secret: string, body: unknown, slug?: string) => {
  const text = JSON.stringify(body);
  return post(text, signed(secret, text), slug);
};

/** Polls and acknowledges until this event is there. */
async function delivered(eventId: string, to = agent) {
  return await eventually(async () => {
    const { deliveries } = await to.call("delivery.poll", { query: { limit: 100, wait: 1 } });
    if (deliveries.length > 0) await to.call("delivery.ack", { body: { delivery_ids: deliveries.map((d) => d.id) } });
    return deliveries.find((delivery) => delivery.event_id === eventId);
  }, `the delivery of ${eventId}`);
}

let count = 0;
const order = (more: Record<string, unknown> = {}) => ({
  action: "paid",
  id: `order-event-${++count}`,
  order: { number: 4711, total: 120 },
  ...more,
});

describe("a signed request", () => {
  test("is answered 202 and delivered with the normalized data", async () => {
    const { secret } = await register();
    const body = order();
    const answer = await send(secret, body);
    expect(answer).toMatchObject({ status: 202, body: { event_id: body.id, status: "accepted" } });
    expect(answer.headers.get("x-request-id")).toBeTruthy();
    const { payload } = await delivered(body.id);
    expect(payload).toMatchObject({
      type: "com.shop.order.paid",
      id: body.id,
      source: "shop",
      subject: "order/4711",
      data: { source: "shop", entity: "order", entity_id: "4711", action: "paid", body },
    });
    expect((payload.data as { occurred_at: string }).occurred_at).toBe(payload.time);
  });

  test("verifies with the prefix sha256= too", async () => {
    const { secret } = await register();
    const text = JSON.stringify(order());
    expect((await post(text, { "x-service-signature": `sha256=${hex(secret, text)}` })).status).toBe(202);
  });

  test("that is sent again is answered 200 and delivered once", async () => {
    const { secret } = await register();
    const body = order();
    await send(secret, body);
    expect(await send(secret, body)).toMatchObject({ status: 200, body: { event_id: body.id, status: "duplicate" } });
    await delivered(body.id);
    const after = order();
    await send(secret, after);
    await delivered(after.id);
    const { events } = await agent.call("delivery.recent", { path: { id: agent.id }, query: { limit: 100 } });
    expect(events.filter(({ event_id }) => event_id === body.id)).toHaveLength(1);
  });

  test("without an id is named by the hash of its bytes", async () => {
    const { secret } = await register();
    const text = JSON.stringify({ action: "counted", n: ++count });
    const id = createHash("sha256").update(text).digest("hex");
    expect((await post(text, signed(secret, text))).body).toEqual({ event_id: id, status: "accepted" });
    expect((await post(text, signed(secret, text))).body).toEqual({ event_id: id, status: "duplicate" });
  });

  test("is told by its secret which of several webhooks is meant", async () => {
    const [a, b] = [await register({ source: "first" }), await register({ source: "second" })];
    for (const { source, secret } of [a, b]) {
      const body = order();
      await send(secret, body);
      expect((await delivered(body.id)).payload.type).toBe(`com.${source}.order.paid`);
    }
  });

  test("is taken by an ingest that started after the webhook was made", async () => {
    const { secret } = await register();
    await using _second = await startService("ingest", w.env);
    const answers = await Promise.all(Array.from({ length: 20 }, () => send(secret, order())));
    expect(answers.map(({ status }) => status)).toEqual(Array(20).fill(202));
  });
});

test("an announcement that nobody can read keeps no other tenant's webhooks from being taken", async () => {
  const announced = await openBucket(w.bus.nc, streams.webhooks);
  await announced.put(webhookKey("unreadable"), "{}");
  const { secret } = await register();
  await using _second = await startService("ingest", w.env);
  const answers = await Promise.all(Array.from({ length: 20 }, () => send(secret, order())));
  expect(new Set(answers.map(({ status }) => status))).toEqual(new Set([202]));
  const text = JSON.stringify(order());
  expect((await post(text, signed(secret, text), "unreadable")).status).toBe(401);
  await announced.purge(webhookKey("unreadable"));
});

describe("a request that no secret verifies", () => {
  const expectRefused = (answer: Awaited<ReturnType<typeof post>>) => {
    expect(answer.status).toBe(401);
    const { request_id, ...error } = answer.body.error;
    expect(request_id).toBe(answer.headers.get("x-request-id"));
    expect(error).toEqual({
      code: "authentication_failed",
      message: "The signature of the request does not verify",
      details: {},
    });
  };

  test("tampered with, re-encoded, unsigned, or of another tenant, is 401 and leaves no trace", async () => {
    const { secret } = await register();
    const stranger = await w.tenant();
    const foreign = await register({ of: stranger });
    const body = order();
    const text = JSON.stringify(body);
    expectRefused(await post(text.replace("120", "121"), signed(secret, text)));
    expectRefused(await post(JSON.stringify(body, null, 1), signed(secret, text)));
    expectRefused(await post(`${text}\n`, signed(secret, text)));
    expectRefused(await post(text, {}));
    expectRefused(await post(text, { "x-service-signature": "not hex at all" }));
    expectRefused(await post(text, { "x-hub-signature-256": `sha256=${hex(secret, text)}` }));
    expectRefused(await post(text, signed(foreign.secret, text)));
    expectRefused(await post(text, signed(secret, text), stranger.slug));
    expectRefused(await post("not json", signed("whsec_wrong", "not json")));
    // The pipeline is in order: had one of them gone in, it would be there before this one.
    await send(secret, order({ id: "after-the-refused" }));
    await delivered("after-the-refused");
    const { events } = await agent.call("delivery.recent", { path: { id: agent.id }, query: { limit: 100 } });
    expect(events.map(({ event_id }) => event_id)).not.toContain(body.id);
    expect(await tenant.admin("delivery.dead_letters", { query: {} })).toMatchObject({ total: 0 });
  });

  test("for a tenant that does not exist is answered in exactly the same words", async () => {
    const text = JSON.stringify(order());
    for (const slug of ["no-such-tenant", "UPPER", "a.b", "complete", "a%2fb", "x".repeat(200)]) {
      expectRefused(await post(text, signed("whsec_whatever", text), slug));
    }
  });
});

describe("a request that verifies but cannot be taken", () => {
  test("is 400 invalid_event when the mapping cannot be filled, and says what is missing", async () => {
    const { secret } = await register();
    const answer = await send(secret, { id: "x", order: {} });
    expect(answer.status).toBe(400);
    expect(answer.body.error).toMatchObject({
      code: "invalid_event",
      details: { field: "action", expected: "text at /action" },
    });
  });

  test("is 400 when it is no JSON, whatever it says it is", async () => {
    const { secret } = await register();
    for (const text of ["", "action=paid", "{", Buffer.from([0x7b, 0xff, 0x7d])]) {
      const answer = await post(text, signed(secret, text));
      expect(answer.body.error, String(text)).toMatchObject({ code: "invalid_event", details: { field: "body" } });
    }
    const text = JSON.stringify(order());
    const answer = await post(text, { ...signed(secret, text), "content-type": "text/plain" });
    expect(answer.body.error).toMatchObject({ code: "validation_failed", details: { field: "content-type" } });
  });

  test("is 413 above a megabyte, declared or not", async () => {
    const { secret } = await register();
    const text = JSON.stringify(order({ padding: "x".repeat(1024 * 1024) }));
    const answer = await post(text, signed(secret, text));
    expect(answer.status).toBe(413);
    expect(answer.body.error).toMatchObject({
      code: "payload_too_large",
      details: { actual_size: text.length, max_size: 1024 * 1024 },
    });
    const chunked = await fetch(`${w.urls[0]!.replace("/v1", "")}/w/${tenant.slug}`, {
      method: "POST",
      headers: { "content-type": "application/json", ...signed(secret, text) },
      body: new Blob([text]).stream(),
      duplex: "half",
    } as RequestInit);
    expect(chunked.status).toBe(413);
    const large = JSON.stringify(order({ padding: "x".repeat(1024 * 1024 - 200) }));
    expect((await post(large, signed(secret, large))).status).toBe(202);
  });

  test("GET, and a path without a tenant, are not found", async () => {
    const base = w.urls[0]!.replace("/v1", "");
    for (const [method, path] of [["GET", `/w/${tenant.slug}`], ["POST", "/w/"], ["POST", "/v1/ingest/webhooks"]]) {
      const response = await fetch(base + path, { method });
      expect(response.status).toBe(404);
      expect(await response.json()).toMatchObject({ error: { code: "not_found" } });
    }
  });
});

describe("a secret", () => {
  test("that is rotated stays valid for the overlap, beside the new one", async () => {
    const { id, secret } = await register();
    const rotated = await w.operator("operator.webhook_rotate", { tenant: tenant.slug, id, overlap_seconds: 3_600 });
    expect(rotated.secret).toMatch(/^whsec_[A-Za-z0-9]{43}$/);
    expect(rotated.webhook.secrets.map(({ expires_at }) => expires_at === null)).toEqual([true, false]);
    for (const each of [secret, rotated.secret!]) expect((await send(each, order())).status).toBe(202);
  });

  test("that is rotated without an overlap is worth nothing from then on", async () => {
    const { id, secret } = await register();
    const rotated = await w.operator("operator.webhook_rotate", { tenant: tenant.id, id, overlap_seconds: 0 });
    expect((await send(rotated.secret!, order())).status).toBe(202);
    expect((await send(secret, order())).status).toBe(401);
  });

  test("whose overlap has ended is worth nothing", async () => {
    const { id, secret } = await register();
    await w.operator("operator.webhook_rotate", { tenant: tenant.slug, id, overlap_seconds: 1 });
    await eventually(async () => (await send(secret, order())).status === 401, "the end of the overlap");
  });

  test("of a webhook that was deleted is worth nothing", async () => {
    const { id, secret } = await register();
    expect((await send(secret, order())).status).toBe(202);
    await w.operator("operator.webhook_delete", { tenant: tenant.slug, id });
    await eventually(async () => (await send(secret, order())).status === 401, "the end of the webhook");
    await expect(w.operator("operator.webhook_show", { tenant: tenant.slug, id })).rejects.toMatchObject({
      code: "not_found",
    });
  });

  test("is shown once, and rests sealed wherever it is kept", async () => {
    const { id, secret } = await register();
    const listed = await w.operator("operator.webhook_list", { tenant: tenant.slug });
    const shown = await w.operator("operator.webhook_show", { tenant: tenant.slug, id });
    expect(JSON.stringify([listed, shown])).not.toContain(secret);
    const sql = postgres(w.env.DATABASE_URL!, { max: 1 });
    const rows = await sql`select encode(sealed, 'escape') as text from registry.webhook_secrets`;
    await sql.end();
    expect(rows.length).toBeGreaterThan(0);
    expect(JSON.stringify(rows)).not.toContain(secret.slice(6));
  });
});

describe("a webhook of another tenant", () => {
  test("is not found by its id", async () => {
    const { id } = await register({ of: await w.tenant() });
    for (const name of ["webhook_show", "webhook_delete", "webhook_rotate", "webhook_sample"] as const) {
      await expect(w.operator(`operator.${name}`, { tenant: tenant.slug, id } as never)).rejects.toMatchObject({
        code: "not_found",
      });
    }
  });

  test("cannot be made without a mapping, or with one beside a preset", async () => {
    await expect(register({ mapping: null })).rejects.toMatchObject({ code: "validation_failed" });
    await expect(register({ preset: "github", mapping })).rejects.toMatchObject({ code: "validation_failed" });
  });
});

describe("senders with schemes of their own", () => {
  test("GitHub", async () => {
    const { secret } = await register({ source: "github", preset: "github" });
    const text = JSON.stringify({ action: "opened", issue: { number: 1 }, repository: { full_name: "a/b" } });
    const headers = {
      "x-github-event": "issues",
      "x-github-delivery": "72d3162e-cc78-11e3-81ab-4c9367dc0958",
      "x-hub-signature-256": `sha256=${hex(secret, text)}`,
    };
    expect((await post(text, headers)).body.event_id).toBe("72d3162e-cc78-11e3-81ab-4c9367dc0958");
    expect((await post(text, headers)).status).toBe(200);
    expect((await post(`${text} `, headers)).status).toBe(401);
    const { payload } = await delivered("72d3162e-cc78-11e3-81ab-4c9367dc0958");
    expect(payload).toMatchObject({ type: "com.github.issues.opened", subject: "issues/a/b#1" });
  });

  test("Stripe, with the secret that Stripe chose, and not what was recorded ten minutes ago", async () => {
    const secret = "whsec_chosen_by_stripe_0123456789";
    await register({ source: "stripe", preset: "stripe", secret });
    const text = JSON.stringify({ id: "evt_1", type: "invoice.paid", data: { object: { id: "in_1" } } });
    const at = (seconds: number) => ({ "stripe-signature": `t=${seconds},v1=${hex(secret, `${seconds}.${text}`)}` });
    const now = Math.floor(Date.now() / 1_000);
    expect((await post(text, at(now))).status).toBe(202);
    expect((await post(text, at(now - 600))).status).toBe(401);
    expect((await delivered("evt_1")).payload.type).toBe("com.stripe.invoice.paid");
  });

  test("Slack, and its challenge", async () => {
    const secret = "8f742231b10e8888abcd99yyyzzz85a5";
    await register({ source: "slack", preset: "slack", secret });
    const now = Math.floor(Date.now() / 1_000);
    const slack = (text: string, seconds = now) =>
      post(text, {
        "x-slack-request-timestamp": String(seconds),
        "x-slack-signature": `v0=${hex(secret, `v0:${seconds}:${text}`)}`,
      });
    const challenge = JSON.stringify({ type: "url_verification", challenge: "3eZbrw1aBm2rZgRNFdxV2595E9CY" });
    expect(await slack(challenge)).toMatchObject({ status: 200, body: { challenge: "3eZbrw1aBm2rZgRNFdxV2595E9CY" } });
    expect((await slack(challenge, now - 600)).status).toBe(401);
    expect((await post(challenge, {})).status).toBe(401);
    const text = JSON.stringify({
      type: "event_callback",
      event_id: "Ev1",
      event: { type: "app_mention", user: "U1" },
    });
    expect((await slack(text)).body).toEqual({ event_id: "Ev1", status: "accepted" });
    expect((await delivered("Ev1")).payload.type).toBe("com.slack.app_mention.received");
  });

  describe("Slack's forms", () => {
    const secret = "1f742231b10e8888abcd99yyyzzz85a5";
    const form = { "content-type": "application/x-www-form-urlencoded" };
    const signature = (text: string) => {
      const seconds = Math.floor(Date.now() / 1_000);
      return {
        "x-slack-request-timestamp": String(seconds),
        "x-slack-signature": `v0=${hex(secret, `v0:${seconds}:${text}`)}`,
      };
    };
    const slack = async (text: string, headers: Record<string, string> = signature(text)) => {
      const response = await fetch(`${w.urls[0]!.replace("/v1", "")}/w/${tenant.slug}`, {
        method: "POST",
        headers: { ...form, ...headers },
        body: text,
      });
      return [response.status, await response.text()] as const;
    };
    const idOf = (text: string) => createHash("sha256").update(text).digest("hex");
    beforeAll(() => register({ source: "slack", preset: "slack", secret }));

    test("a slash command arrives as its fields, and Slack has nothing to show for it", async () => {
      const text = "command=%2Fweather&text=94070+%C3%A4&user_id=U1&channel_id=C1&trigger_id=13345";
      expect(await slack(text)).toEqual([200, ""]);
      expect((await delivered(idOf(text))).payload).toMatchObject({
        type: "com.slack.slash_command.weather",
        data: { entity_id: "C1", body: { command: "/weather", text: "94070 ä", user_id: "U1" } },
      });
      expect(await slack(text)).toEqual([200, ""]);
    });

    test("what a person did arrives as the JSON in its payload", async () => {
      const payload = { type: "block_actions", user: { id: "U1" }, channel: { id: "C9" }, actions: [{ value: "yes" }] };
      const text = `payload=${encodeURIComponent(JSON.stringify(payload))}`;
      expect(await slack(text)).toEqual([200, ""]);
      expect((await delivered(idOf(text))).payload).toMatchObject({
        type: "com.slack.block_actions.received",
        data: { entity_id: "C9", body: payload },
      });
    });

    test("the signature is that of the bytes, not of what they mean", async () => {
      const text = "command=%2Fweather&text=hello+there";
      expect((await slack("command=%2Fweather&text=hello%20there", signature(text)))[0]).toBe(401);
      expect((await slack(text, {}))[0]).toBe(401);
      expect((await slack("command=%2Fweather&text=%zz"))[0]).toBe(400);
    });
  });

  test("GitHub's forms, and those of anybody with a mapping", async () => {
    const { secret } = await register({ source: "github", preset: "github" });
    const payload = { action: "opened", issue: { number: 2 }, repository: { full_name: "a/b" } };
    const text = `payload=${encodeURIComponent(JSON.stringify(payload))}`;
    const form = { "content-type": "application/x-www-form-urlencoded" };
    const headers = { ...form, "x-github-event": "issues", "x-github-delivery": "form-1" };
    expect(await post(text, { ...headers, "x-hub-signature-256": `sha256=${hex(secret, text)}` })).toMatchObject({
      status: 202,
      body: { event_id: "form-1", status: "accepted" },
    });
    expect((await delivered("form-1")).payload).toMatchObject({
      type: "com.github.issues.opened",
      data: { body: payload },
    });
    const own = await register();
    const fields = "action=paid&id=form-2&item=a&item=b";
    expect((await post(fields, { ...form, ...signed(own.secret, fields) })).body.event_id).toBe("form-2");
    expect((await delivered("form-2")).payload.data).toMatchObject({
      body: { action: "paid", id: "form-2", item: ["a", "b"] },
    });
  });

  test("CloudEvents, structured and binary", async () => {
    const { secret } = await register({ source: "events", preset: "cloudevents" });
    const event = { specversion: "1.0", id: "ce-1", type: "com.acme.thing.made", source: "/acme", data: { n: 1 } };
    const text = JSON.stringify(event);
    const structured = { ...signed(secret, text), "content-type": "application/cloudevents+json" };
    expect((await post(text, structured)).status).toBe(202);
    expect((await delivered("ce-1")).payload).toMatchObject({ type: event.type, source: "/acme", data: { n: 1 } });
    const binary = {
      ...signed(secret, '{"n":2}'),
      "ce-specversion": "1.0",
      "ce-id": "ce-2",
      "ce-type": "com.acme.thing.made",
      "ce-source": "/acme",
    };
    expect((await post('{"n":2}', binary)).status).toBe(202);
    expect((await delivered("ce-2")).payload.data).toEqual({ n: 2 });
    expect((await post("{}", signed(secret, "{}"))).body.error.code).toBe("invalid_event");
  });
});

test("what came in and what was refused is counted", async () => {
  const { secret } = await register({ source: "counted" });
  const body = order();
  await send(secret, body);
  await send(secret, body);
  await send(secret, {});
  await send("whsec_wrong_and_never_right", body);
  const text = await telemetry.exposition() + await w.exposition();
  const counted = (outcome: string) =>
    new RegExp(`^webhook_requests_total\\{[^}]*source="counted"[^}]*outcome="${outcome}"[^}]*\\} 1$`, "m");
  for (const outcome of ["accepted", "duplicate", "invalid_event"]) expect(text).toMatch(counted(outcome));
  expect(text).toMatch(/^webhook_requests_total\{outcome="bad_signature"\} \d+$/m);
});

test("the sample of an operator is a request that is taken", async () => {
  for (const preset of ["custom", "github", "stripe", "slack", "cloudevents"] as const) {
    const { id } = await register({ source: `try-${preset}`, preset });
    const sample = await w.operator("operator.webhook_sample", { tenant: tenant.slug, id });
    expect(sample.path).toBe(`/w/${tenant.slug}`);
    expect((await post(sample.body, sample.headers)).status, preset).toBe(202);
  }
});

test("webhooks and connectors are announced again when the buckets have lost them", async () => {
  const { id } = await register();
  const buckets = await Promise.all([streams.webhooks, streams.connectors].map((b) => openBucket(w.bus.nc, b)));
  for (const bucket of buckets) await bucket.destroy();
  await using _registry = await startService("registry", w.env);
  const entry = await (await openBucket(w.bus.nc, streams.webhooks)).get(webhookKey(tenant.slug));
  expect(entry?.json<WebhookRoutes>().webhooks.map((webhook) => webhook.id)).toContain(id);
  // An ingest that knew the lost bucket is not confused by the numbers of the new one.
  const { secret } = await register();
  expect((await send(secret, order())).status).toBe(202);
});

test("too many requests from one address are told to wait", async () => {
  await using limited = await world({ services: ["registry", "ingest"], env: { RATE_LIMIT_WEBHOOK_PER_MINUTE: "3" } });
  const url = `${limited.urls[0]!.replace("/v1", "")}/w/anyone`;
  const statuses: number[] = [];
  for (let i = 0; i < 5; i++) {
    const response = await fetch(url, { method: "POST", body: "{}" });
    statuses.push(response.status);
    if (response.status === 429) expect(Number(response.headers.get("retry-after"))).toBeGreaterThan(0);
  }
  expect(statuses).toEqual([401, 401, 401, 429, 429]);
});
