/** The table as HTTP: every request is named, measured, authenticated, authorized, limited, read, passed on and answered. */
import { type Context, Hono } from "hono";
import { Fault, faultFrom, invalid, notFound } from "../contracts/errors.ts";
import { newId, type TenantCaller, ulid } from "../contracts/identity.ts";
import { isKeyedMethod, maxBodyOf, type Operation } from "../contracts/operation.ts";
import { type Input, type OperationName, operationNames, operationOf } from "../contracts/operations.ts";
import { shown } from "../contracts/validation.ts";
import type { Bus } from "../runtime/bus.ts";
import { envelopeOf, EVENT_TYPES, isBinaryMode } from "../runtime/cloudevents.ts";
import { assertText, mediaTypeOf, parseJson } from "../runtime/json.ts";
import type { Log } from "../runtime/log.ts";
import { measure } from "../runtime/measure.ts";
import { readInput } from "../runtime/serve.ts";
import { currentTraceId, inSpan, markFailed } from "../runtime/telemetry.ts";
import type { Authenticator } from "./authenticate.ts";
import { authorize } from "./authorize.ts";
import { assertContentType, readBody } from "./body.ts";
import { faultReply, type Reply, safeHeader } from "./envelope.ts";
import type { Idempotency } from "./idempotency.ts";
import { type Limit, limitHeaders, type RateLimiter } from "./rate-limit.ts";
import type { Sent } from "./sent.ts";
import { openStream, streamHeaders } from "./stream.ts";

export interface GatewayDeps {
  readonly bus: Pick<Bus, "ask" | "giveUp">;
  readonly authenticator: Pick<Authenticator, "authenticate">;
  readonly limiter: RateLimiter;
  readonly limits: { readonly agent: number; readonly tenant: number; readonly address: number };
  readonly idempotency: Idempotency;
  readonly sent: Sent;
  readonly addressOf: (c: Context) => string;
  /** Aborts when the process begins to stop: streams end then. */
  readonly stopping: AbortSignal;
  readonly log: Log;
}

/** What is known about a request while it is answered. */
export interface Exchange {
  readonly requestId: string;
  /** Fields of the one log line. */
  readonly line: Record<string, unknown>;
  /** Headers that the answer carries whatever it is. */
  readonly headers: Record<string, string>;
}

export function gateway(deps: GatewayDeps): Hono {
  const app = new Hono();
  for (const name of operationNames) {
    const operation = operationOf(name);
    if (!operation.http) continue;
    const [method, path] = operation.http;
    const route = `/v1${path.replace(/\{(\w+)\}/g, ":$1")}`;
    app.on(method, route, (c) => {
      const chosen = chosenBy(c, name, operation);
      return exchange(
        deps,
        c,
        chosen.name,
        `${method} /v1${path}`,
        (x) =>
          operation.stream
            ? answerStream(deps, c, chosen.name, { ...operation, stream: operation.stream }, x)
            : answer(deps, c, chosen.name, chosen.operation, x),
      );
    });
  }
  app.notFound((c) =>
    exchange(
      deps,
      c,
      "unknown",
      c.req.method,
      () => Promise.reject(notFound("path", `${c.req.method} ${shown(c.req.path)}`)),
    )
  );
  return app;
}

/** Order matters, and is the contract's: size, token, scope, rate, shape; then the service looks for existence and rules. */
async function answer(
  deps: GatewayDeps,
  c: Context,
  name: OperationName,
  operation: Operation,
  x: Exchange,
): Promise<Reply> {
  const bytes = hasBody(c) ? await readBody(c, maxBodyOf(operation)) : new Uint8Array();
  if (operation.access === "public") {
    await admit(deps, x, [{
      key: `address.${safeKey(deps.addressOf(c))}`,
      perMinute: deps.limits.address,
      label: "address",
    }]);
    const input = readRequest(c, name, operation, bytes);
    return await ask(deps, name, operation, input, {
      caller: { kind: "anonymous" },
      requestId: x.requestId,
      seed: ulid(),
    });
  }
  const caller = await admitCaller(deps, c, operation, x);
  const input = readRequest(c, name, operation, bytes);
  const origin = { caller, requestId: x.requestId };
  const idempotencyKey = isKeyedMethod(c.req.method) ? readIdempotencyKey(c) : undefined;
  if (idempotencyKey === undefined) {
    const signal = operation.waits?.(input.query) ? c.req.raw.signal : undefined;
    return await ask(deps, name, operation, input, { ...origin, seed: ulid() }, signal);
  }
  const keyed = { idempotencyKey, caller, method: c.req.method, path: c.req.path, body: bytes, operation };
  const { reply, replayed } = await deps.idempotency.once(
    keyed,
    // A fault is an answer too, and is kept like one.
    (seed) =>
      ask(deps, name, operation, input, { ...origin, seed }).catch((thrown) =>
        faultReply(logged(x, thrown), x.requestId)
      ),
  );
  return replayed ? { ...reply, headers: { ...reply.headers, "idempotency-replayed": "true" } } : reply;
}

/** Token, scope, rate: whoever gets past is a caller the operation is meant for. */
async function admitCaller(deps: GatewayDeps, c: Context, operation: Operation, x: Exchange): Promise<TenantCaller> {
  const caller = await deps.authenticator.authenticate(c.req.header("authorization"));
  Object.assign(x.line, { tenant: caller.tenant, caller: caller.id });
  authorize(operation.access, caller, c.req.param("id"));
  await admit(deps, x, [
    ...(caller.kind === "agent"
      ? [{ key: `agent.${caller.id}`, perMinute: deps.limits.agent, label: "agent" } as const]
      : []),
    { key: `tenant.${caller.tenant}`, perMinute: deps.limits.tenant, label: "tenant" },
  ]);
  return caller;
}

/** The first round decides whether there is a stream at all; a fault in it is an answer like any other. */
async function answerStream(
  deps: GatewayDeps,
  c: Context,
  name: OperationName,
  operation: Operation & Required<Pick<Operation, "stream">>,
  x: Exchange,
): Promise<Reply> {
  const caller = await admitCaller(deps, c, operation, x);
  const input = readRequest(c, name, operation, new Uint8Array());
  const stream = await openStream({
    bus: deps.bus,
    sent: deps.sent,
    input: input as Input<"delivery.stream">,
    event: operation.stream.event,
    origin: { caller, requestId: x.requestId },
    lastEventId: c.req.header("last-event-id"),
    isStillAllowed: () => deps.authenticator.authenticate(c.req.header("authorization")).then(() => true, () => false),
    stopping: deps.stopping,
  });
  return { status: operation.success, body: undefined, stream, headers: streamHeaders };
}

async function ask(
  deps: GatewayDeps,
  name: OperationName,
  operation: Operation,
  input: Input<OperationName>,
  origin: Parameters<Bus["ask"]>[2],
  signal?: AbortSignal,
): Promise<Reply> {
  const { bytes, read } = await deps.bus.ask(name, input as never, origin, signal);
  return { status: operation.statusOf?.(read()) ?? operation.success, body: operation.output ? bytes : undefined };
}

export async function admit({ limiter }: Pick<GatewayDeps, "limiter">, x: Exchange, limits: Limit[]): Promise<void> {
  try {
    const standing = await limiter.admit(limits);
    if (standing) Object.assign(x.headers, limitHeaders(standing));
  } catch (thrown) {
    if (thrown instanceof Fault && thrown.code === "rate_limited") {
      const { limit, retry_after_seconds } = (thrown as Fault<"rate_limited">).details;
      Object.assign(x.headers, limitHeaders({ limit, remaining: 0, resetSeconds: retry_after_seconds }));
    }
    throw thrown;
  }
}

/** A list of events has a content type of its own, and with it an operation of its own at the same address. */
function chosenBy(
  c: Context,
  name: OperationName,
  operation: Operation,
): { name: OperationName; operation: Operation } {
  if (!operation.batch || mediaTypeOf(c.req.header("content-type")) !== operation.batch.contentType) {
    return { name, operation };
  }
  const batch = operation.batch.operation as OperationName;
  return { name: batch, operation: operationOf(batch) };
}

function readRequest(c: Context, name: OperationName, operation: Operation, bytes: Uint8Array): Input<OperationName> {
  const path = c.req.param() as Record<string, string>;
  const query = c.req.query();
  assertText(path, "");
  assertText(query, "");
  return readInput(name, { path, query, ...(operation.body ? { body: readContent(c, operation, bytes) } : {}) });
}

function readContent(c: Context, operation: Operation, bytes: Uint8Array): unknown {
  if (operation.cloudEvent && isBinaryMode((name) => c.req.header(name))) return envelopeOf(c.req.header(), bytes);
  // A list was chosen by its content type already; see `chosenBy`.
  if (operation.http) {
    assertContentType(c.req.header("content-type"), operation.cloudEvent ? EVENT_TYPES : ["application/json"]);
  }
  return parseJson(bytes);
}

function readIdempotencyKey(c: Context): string | undefined {
  const key = c.req.header("idempotency-key");
  if (key === undefined || (key.length >= 1 && key.length <= 255)) return key;
  throw invalid({
    field: "Idempotency-Key",
    value: shown(key),
    expected: "1 to 255 characters",
    example: "order-4711",
  });
}

/** Everything around the answer: its name, its span, its one log line, its headers; and a fault becomes the envelope. */
export async function exchange(
  deps: Pick<GatewayDeps, "log">,
  c: Context,
  operation: string,
  route: string,
  work: (x: Exchange) => Promise<Reply>,
): Promise<Response> {
  const startedAt = performance.now();
  const x: Exchange = { requestId: requestIdOf(c.req.header("x-request-id")), line: { operation }, headers: {} };
  const attributes = {
    "http.request.method": c.req.method,
    "http.route": route.slice(route.indexOf(" ") + 1),
    "url.path": c.req.path,
    "request.id": x.requestId,
  };
  const reply = await inSpan(route, { kind: "server", attributes, from: (key) => c.req.header(key) }, async (span) => {
    x.line.trace_id = currentTraceId();
    const reply = await work(x).catch((thrown) => {
      markFailed(span, faultFrom(thrown));
      return faultReply(logged(x, thrown), x.requestId);
    });
    span.setAttribute("http.response.status_code", reply.status);
    return reply;
  });
  const seconds = (performance.now() - startedAt) / 1_000;
  measure().requests.add(1, { operation, status: reply.status });
  measure().requestSeconds.record(seconds, { operation });
  deps.log[reply.status >= 500 ? "error" : "info"]("request.answered", {
    request_id: x.requestId,
    method: c.req.method,
    status: reply.status,
    ms: Math.round(seconds * 1e4) / 10,
    ...x.line,
  });
  return respond(c, reply, { "x-request-id": x.requestId, ...x.headers, ...reply.headers });
}

function respond(c: Context, { status, body, stream }: Reply, headers: Record<string, string>): Response {
  for (const [name, value] of Object.entries(headers)) c.header(name, safeHeader(value));
  if (stream) return c.body(stream, status as 200);
  if (!body) return c.body(null, status as 204);
  c.header("content-type", "application/json");
  return c.body(body as Uint8Array<ArrayBuffer>, status as 200);
}

/** Our own failures are explained in the log, never to the caller. */
function logged(x: Exchange, thrown: unknown): Fault {
  const fault = faultFrom(thrown);
  x.line.code = fault.code;
  if (fault.code === "internal_error" || fault.code === "service_unavailable") {
    x.line.error = fault.cause ?? fault.message;
  }
  return fault;
}

const requestIdOf = (given: string | undefined): string =>
  given !== undefined && /^[A-Za-z0-9._-]{1,128}$/.test(given) ? given : newId("request");

const hasBody = (c: Context) => c.req.method !== "GET" && c.req.method !== "HEAD";

/** An address as a key of the bucket, which knows letters, digits and a few signs. */
export const safeKey = (address: string) => address.replace(/[^A-Za-z0-9-]/g, "_") || "unknown";
