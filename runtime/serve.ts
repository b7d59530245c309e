/** The answering side of the bus: every request is parsed, handled, answered and logged once, whatever happens. */
import type { Msg, NatsConnection } from "@nats-io/nats-core";
import { faultFrom, unavailable } from "../contracts/errors.ts";
import type { Caller } from "../contracts/identity.ts";
import { type ServiceName } from "../contracts/operation.ts";
import { type Call, type Handlers, type Input, type OperationName, operationOf } from "../contracts/operations.ts";
import { operationIn, subjects } from "../contracts/subjects.ts";
import { parse } from "../contracts/validation.ts";
import { type Abandonable, faultReply, fromHeaders } from "./context.ts";
import { checkAll, type Checks } from "./health.ts";
import type { Log } from "./log.ts";
import { measure } from "./measure.ts";
import { outageOr } from "./outage.ts";
import { currentTraceId, inSpan } from "./telemetry.ts";

type AnyHandler = (input: unknown, call: Call) => Promise<unknown>;

/** Settles once the broker knows of it: from then on a request finds someone. */
export async function serve<S extends ServiceName>(options: {
  readonly nc: NatsConnection;
  readonly service: S;
  readonly handlers: Handlers<S>;
  readonly checks: Checks;
  readonly log: Log;
}): Promise<AsyncDisposable & { readonly checks: Checks }> {
  const { nc, service, checks, log } = options;
  const handlers = options.handlers as unknown as Record<string, AnyHandler>;
  const inHand = new Set<Promise<void>>();
  // drain() ends a subscription but does not know of work begun for it; this set does.
  const take = (work: Promise<void>) => {
    const kept: Promise<void> = work.finally(() => inHand.delete(kept));
    inHand.add(kept);
  };
  const requests = nc.subscribe(subjects.requestsOf(service), {
    queue: service,
    callback: (error, msg) => {
      if (error) return log.error("serve.subscription_failed", { error });
      const name = operationIn(msg.subject);
      take(answer(name, handlers[name], msg, abandonable, log));
    },
  });
  const abandonable: Abandonable = new Map();
  const givenUp = nc.subscribe(subjects.givenUp(service), {
    callback: (error, msg) => error ? undefined : abandonable.get(msg.string())?.abort(),
  });
  const health = nc.subscribe(subjects.health(service), {
    queue: service,
    callback: (error, msg) => {
      if (!error) take(checkAll(checks).then((report) => void msg.respond(JSON.stringify(report))));
    },
  });
  await nc.flush();
  return {
    checks,
    async [Symbol.asyncDispose]() {
      await Promise.all([requests.drain(), health.drain()]);
      await Promise.all(inHand);
      givenUp.unsubscribe();
      await nc.flush();
    },
  };
}

async function answer(
  name: string,
  handle: AnyHandler | undefined,
  msg: Msg,
  abandonable: Abandonable,
  log: Log,
): Promise<void> {
  const startedAt = performance.now();
  const line: Record<string, unknown> = { operation: name, outcome: "ok" };
  try {
    const { call, read } = fromHeaders(msg.headers, abandonable);
    Object.assign(line, { request_id: call.requestId }, tenantOf(call.caller));
    const method = msg.subject.slice("rpc.".length).replace(".", "/");
    await inSpan(
      method,
      { kind: "server", attributes: { "rpc.system.name": "nats", "rpc.method": method }, from: read },
      async () => {
        line.trace_id = currentTraceId();
        if (!handle) throw unavailable(`This replica does not know ${name} yet`);
        const output = await handle(readInput(name as OperationName, msg.json()), call)
          .finally(() => abandonable.delete(call.seed));
        msg.respond(output === undefined ? new Uint8Array() : JSON.stringify(output));
      },
    );
  } catch (thrown) {
    const fault = faultFrom(outageOr(thrown));
    Object.assign(line, { outcome: fault.code, error: fault.code === "internal_error" ? fault.cause : undefined });
    const { headers, body } = faultReply(fault);
    msg.respond(body, { headers });
  }
  const seconds = (performance.now() - startedAt) / 1_000;
  const labels = { operation: name, outcome: String(line.outcome) };
  measure().calls.add(1, labels);
  measure().callSeconds.record(seconds, { operation: name });
  log[line.outcome === "internal_error" ? "error" : "debug"]("call.answered", {
    ...line,
    ms: Math.round(seconds * 1e4) / 10,
  });
}

/** The same reading as the gateway's, because an older or newer gateway may have sent it. */
export function readInput<N extends OperationName>(
  name: N,
  sent: { path?: unknown; query?: unknown; body?: unknown },
): Input<N> {
  const { path, query, body } = operationOf(name);
  return {
    path: path ? parse(path, sent.path ?? {}) : {},
    query: query ? parse(query, sent.query ?? {}) : {},
    body: body ? parse(body, sent.body) : {},
  } as Input<N>;
}

const tenantOf = (caller: Caller) =>
  "tenant" in caller ? { tenant: caller.tenant, caller: caller.id } : { caller: caller.kind };
