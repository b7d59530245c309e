/** Walks the whole table of operations: what it promises about every row, every row keeps. */
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { z } from "zod";
import { ErrorEnvelope } from "../../contracts/errors.ts";
import { type Scope, scopes } from "../../contracts/identity.ts";
import { faultsOf, type Operation, services } from "../../contracts/operation.ts";
import { operationNames, operationOf } from "../../contracts/operations.ts";
import { exampleOf } from "../../contracts/validation.ts";
import { type Answer, type TestAgent, type TestTenant, type World, world } from "../support/world.ts";

type Row = Operation & { name: string; http: NonNullable<Operation["http"]> };
const rows: Row[] = operationNames.flatMap((name) => {
  const { http, ...row } = operationOf(name);
  return http ? [{ ...row, name, http }] : [];
});
const guarded = rows.filter((row) => row.access !== "public");

let w: World;
let own: TestTenant;
let foreign: TestTenant;
let everything: TestAgent;
/** Ids that exist, but in another tenant, by the first word of the path and the parameter's name. */
let foreignIds: Record<string, string>;

beforeAll(async () => {
  w = await world({
    services,
    env: { RATE_LIMIT_AGENT_PER_MINUTE: "0", RATE_LIMIT_TENANT_PER_MINUTE: "0", RATE_LIMIT_TOKEN_PER_MINUTE: "0" },
  });
  own = await w.tenant();
  foreign = await w.tenant();
  everything = await own.agent();
  const other = await foreign.agent();
  const interest = await other.call("interests.create", {
    path: { id: other.id },
    body: { event_type: "a.*", priority: 0, enrichment_depth: "none" },
  });
  const channel = await other.call("channels.create", { body: { name: "theirs", type: "open" } });
  const feed = await other.call("feeds.create", { path: { id: channel.id }, body: { event_type_glob: "a.*" } });
  const { keys } = await foreign.admin("keys.list", { path: { id: other.id } });
  foreignIds = {
    "agents.id": other.id,
    "agents.key_id": keys[0]!.id,
    "agents.interest_id": interest.id,
    "channels.id": channel.id,
    "channels.feed_id": feed.id,
    "channels.participant_id": other.id,
    "channels.participant_type": "agent",
  };
});
afterAll(() => w?.[Symbol.asyncDispose]());

const absent = (parameter: string) => parameter === "participant_type" ? "agent" : "zzz_01jd3v8g4w9qk2m7x5t0r6n1ze";
const urlOf = (row: Row, fill: (parameter: string) => string) =>
  row.http[1].replace(/\{(\w+)\}/g, (_, parameter: string) => encodeURIComponent(fill(parameter)));
const bodyOf = (row: Row) => row.body ? exampleOf(row.body) : undefined;

function expectFault(answer: Answer, status: number, code: string) {
  expect(answer.body).toMatchObject({ error: { code } });
  expect(answer.status).toBe(status);
  const { error } = ErrorEnvelope.parse(answer.body);
  expect(answer.headers.get("x-request-id")).toBe(error.request_id);
  return error;
}

describe("without a token", () => {
  test.each(guarded)("$name answers 401", async (row) => {
    const answer = await w.request(row.http[0], urlOf(row, absent), { body: bodyOf(row) });
    expect(expectFault(answer, 401, "authentication_failed").details).toEqual({});
  });

  test.each(guarded)("$name answers 401 to a token of nobody", async (row) => {
    for (const token of ["nonsense", "a.b.c", `${everything.token}x`]) {
      expectFault(
        await w.request(row.http[0], urlOf(row, absent), { body: bodyOf(row), token }),
        401,
        "authentication_failed",
      );
    }
  });
});

describe("without the scope", () => {
  const scoped = guarded.filter(({ access }) => access !== "token");
  test.each(scoped)("$name answers 403 and names it", async (row) => {
    const needed = (typeof row.access === "object" ? row.access.other : row.access) as Scope;
    const poor = await own.agent({ scopes: scopes.filter((scope) => scope !== needed) });
    const answer = await w.request(row.http[0], urlOf(row, absent), { body: bodyOf(row), token: poor.token });
    expect(expectFault(answer, 403, "insufficient_scope").details).toEqual({ required_scope: needed });
  });
});

describe("another tenant's resource", () => {
  const known = guarded.filter((row) => row.path && ["agents", "channels"].includes(firstWord(row)));
  test.each(known)("$name answers exactly as an absent one", async (row) => {
    const ask = (fill: (parameter: string) => string) =>
      w.request(row.http[0], urlOf(row, fill), { body: bodyOf(row), token: own.adminToken });
    const theirs = (parameter: string) => foreignIds[`${firstWord(row)}.${parameter}`] ?? absent(parameter);
    const there = expectFault(await ask(theirs), 404, "not_found");
    const nowhere = expectFault(await ask(absent), 404, "not_found");
    expect(without(there, parametersOf(row).map(theirs))).toEqual(without(nowhere, parametersOf(row).map(absent)));
  });

  const without = (error: { request_id: string }, ids: string[]) =>
    ids.reduce((text, id) => text.replaceAll(id, "ID"), JSON.stringify({ ...error, request_id: "" }));
});

const firstWord = (row: Row) => row.http[1].split("/")[1]!;
const parametersOf = (row: Row) => [...row.http[1].matchAll(/\{(\w+)\}/g)].map(([, name]) => name!);

describe("a request that breaks the schema", () => {
  const violations = guarded.flatMap((row) => [
    ...wrongFields(row.body, "body").map((wrong) => ({ ...row, ...wrong, place: "body" as const })),
    ...wrongFields(row.query, "query").map((wrong) => ({ ...row, ...wrong, place: "query" as const })),
  ]);
  test.each(violations)("$name: $field $why answers 400 and says what would be right", async (row) => {
    const url = urlOf(row, (p) => p === "participant_type" ? "agent" : p === "id" ? everything.id : absent(p));
    const asked = row.place === "query" ? `${url}?${new URLSearchParams({ [row.field]: String(row.value) })}` : url;
    const body = row.place === "body" ? wrongBody(row.body!, row.field, row.value) : bodyOf(row);
    const { details } = expectFault(
      await w.request(row.http[0], asked, { body, token: everything.token }),
      400,
      "validation_failed",
    );
    expect(details).toHaveProperty("value");
    expect(details).toMatchObject({
      field: expect.stringMatching(new RegExp(`^${row.field}`)),
      expected: expect.stringMatching(/\w/),
    });
    if (details.field === row.field) {
      expect(row.schema.safeParse(details.example).success, `${JSON.stringify(details.example)} is no example`).toBe(
        true,
      );
    }
  });
});

interface Wrong {
  field: string;
  why: string;
  value: unknown;
  schema: z.ZodType;
}

/** Values that each field's own schema refuses, found by trying. */
function wrongFields(schema: z.ZodType | undefined, place: "body" | "query"): Wrong[] {
  if (!(schema instanceof z.ZodObject)) return [];
  return Object.entries(schema.shape as Record<string, z.ZodType>).flatMap(([field, inner]) => {
    const tries: [string, unknown][] = place === "query"
      ? [["of another kind", "not-this"], ["below its range", "-1"], ["above its range", "100000000"]]
      : [
        ["missing", undefined],
        ["of another type", { unexpected: true }],
        ["a number", 7],
        ["empty", ""],
        ["an empty list", []],
        ["a list", [{}]],
        ["too long", "x".repeat(40_000)],
        ["negative", -1],
        ["null", null],
      ];
    return tries.filter(([, value]) => !inner.safeParse(value).success).map(([why, value]) => ({
      field,
      why,
      value,
      schema: inner,
    }));
  });
}

const wrongBody = (schema: z.ZodType, field: string, value: unknown) => ({
  ...exampleOf(schema) as object,
  [field]: value,
});

test("every operation with a body refuses what is not JSON, not an object, too deep, or holds NUL", async () => {
  for (const row of guarded.filter((row) => row.body instanceof z.ZodObject)) {
    const url = urlOf(row, (p) => p === "id" ? everything.id : absent(p));
    const send = (body: string, type = "application/json") =>
      w.request(row.http[0], url, { token: everything.token, body, headers: { "content-type": type } });
    for (
      const body of [
        "",
        "{",
        "[]",
        "7",
        '"x"',
        `${"[".repeat(65)}${"]".repeat(65)}`,
        '{"name":"a\\u0000b"}',
        '{"name":"\\ud800"}',
      ]
    ) {
      const answer = await send(body);
      expect(answer.status, `${row.name} to ${body.slice(0, 40)}`).toBe(400);
      expect(answer.body.error.details).toMatchObject({ expected: expect.any(String) });
    }
    expect((await send("{}", "text/plain")).body.error.details.field).toBe("content-type");
  }
});

test("the OpenAPI document names every operation, its answers and its faults", async () => {
  const response = await fetch(`${w.urls[0]}/openapi.json`);
  // deno-lint-ignore no-explicit-any -- a document of every shape
  const document = await response.json() as any;
  expect(response.headers.get("x-request-id")).toBeTruthy();
  expect(document.openapi).toBe("3.1.0");
  for (const row of rows) {
    const described = document.paths[row.http[1]]?.[row.http[0].toLowerCase()];
    expect(described?.operationId).toBe(row.name);
    const statuses = Object.keys(described.responses);
    expect(statuses).toContain(String(row.success));
    expect(described.responses["500"].content["application/json"].schema.properties.error).toBeDefined();
    expect(faultsOf(row).length).toBeGreaterThan(0);
  }
});
