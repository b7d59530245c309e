/** The request side of the bus: one connection, requests with deadlines, and clear faults when nobody answers. */
import type { NatsConnection } from "@nats-io/nats-core";
import { connect } from "@nats-io/transport-node";
import { faultFrom, unavailable } from "../contracts/errors.ts";
import { deadlineOf } from "../contracts/operation.ts";
import { type Input, type OperationName, operationOf, operations, type Output } from "../contracts/operations.ts";
import { subjects } from "../contracts/subjects.ts";
import { faultIn, type Origin, toHeaders } from "./context.ts";
import type { BusEnv } from "./env.ts";
import { type Inbox, NoAnswer, openInbox } from "./inbox.ts";
import { keepCopies } from "./jetstream.ts";
import type { Log } from "./log.ts";
import { measure } from "./measure.ts";
import { inSpan } from "./telemetry.ts";

export interface Bus extends AsyncDisposable {
  readonly nc: NatsConnection;
  /** The answer as the service wrote it. Throws the service's `Fault`, or `service_unavailable` when none came in time. */
  ask<N extends OperationName>(name: N, input: Input<N>, origin: Origin, signal?: AbortSignal): Promise<Answer<N>>;
  /** Tells the service that nobody waits for the answer to the request with this seed any more. It still answers. */
  giveUp(name: OperationName, seed: string): void;
}

export interface Answer<N extends OperationName> {
  readonly bytes: Uint8Array;
  read(): Output<N>;
}

export async function connectBus(
  env: Pick<BusEnv, "NATS_URL"> & Partial<BusEnv> | string,
  name: string,
  log: Log,
): Promise<Bus> {
  const { NATS_URL, NATS_REPLICAS = 1 } = typeof env === "string" ? { NATS_URL: env } : env;
  const address = parseUrl(NATS_URL);
  const nc = await connect({
    ...address,
    name,
    maxReconnectAttempts: -1,
    reconnectTimeWait: 250,
    // A fleet that lost its broker must not come back in one step.
    reconnectJitter: 250,
    timeout: 5_000,
    ignoreClusterUpdates: false,
  });
  keepCopies(nc, NATS_REPLICAS);
  const status = watchStatus(nc, log);
  const inbox = openInbox(nc);
  const giveUp: Bus["giveUp"] = (operation, seed) => {
    if (!nc.isClosed()) nc.publish(subjects.givenUp(operations[operation].service), seed);
  };
  return {
    nc,
    giveUp,
    ask: (operation, input, origin, signal) =>
      inSpan(`${operations[operation].service}/${operation}`, {
        kind: "client",
        attributes: {
          "rpc.system.name": "nats",
          "rpc.method": `${operations[operation].service}/${operation}`,
          "request.id": origin.requestId,
        },
      }, async () => {
        const leave = () => giveUp(operation, origin.seed);
        signal?.addEventListener("abort", leave);
        try {
          return await ask(inbox, operation, input, origin, signal);
        } finally {
          signal?.removeEventListener("abort", leave);
        }
      }),
    async [Symbol.asyncDispose]() {
      await inbox[Symbol.asyncDispose]();
      await nc.close();
      await status;
    },
  };
}

async function ask<N extends OperationName>(
  inbox: Inbox,
  name: N,
  input: Input<N>,
  origin: Origin,
  signal?: AbortSignal,
): Promise<Answer<N>> {
  const deadlineMs = deadlineOf(operationOf(name));
  const request = inbox.request(
    subjects.request(name),
    JSON.stringify(input),
    deadlineMs,
    toHeaders(origin, deadlineMs),
  );
  const msg = await (signal ? Promise.race([request, aborted(signal)]) : request).catch((error: unknown) => {
    throw explain(error, operations[name].service);
  });
  const fault = faultIn(msg);
  if (fault) throw fault;
  return { bytes: msg.data, read: () => msg.data.length === 0 ? undefined as Output<N> : msg.json<Output<N>>() };
}

function explain(error: unknown, service: string) {
  if (!(error instanceof NoAnswer)) return faultFrom(error);
  if (error.why === "nobody") return unavailable(`The ${service} service is away; try again shortly`, error);
  if (error.why === "timeout") return unavailable(`The ${service} service did not answer in time`, error, 2);
  return unavailable("The bus is away; try again shortly", error);
}

const aborted = (signal: AbortSignal): Promise<never> =>
  new Promise((_, reject) => {
    const fail = () => reject(unavailable("The request was given up", signal.reason));
    if (signal.aborted) fail();
    else signal.addEventListener("abort", fail, { once: true });
  });

/** `nats://user:pass@host:port,…` as the client wants it: credentials apart from the servers. */
function parseUrl(url: string) {
  const parts = url.split(",").map((part) => new URL(part.includes("://") ? part : `nats://${part}`));
  const { username, password, protocol } = parts[0]!;
  return {
    servers: parts.map((part) => part.host),
    ...(username && password ? { user: decodeURIComponent(username), pass: decodeURIComponent(password) } : {}),
    ...(username && !password ? { token: decodeURIComponent(username) } : {}),
    ...(protocol === "tls:" ? { tls: {} } : {}),
  };
}

async function watchStatus(nc: NatsConnection, log: Log): Promise<void> {
  for await (const status of nc.status()) {
    if (status.type === "disconnect") measure().busLost.add(1);
    if (status.type === "disconnect" || status.type === "reconnect" || status.type === "error") {
      log.warn(`bus.${status.type}`, "error" in status ? { error: status.error } : {});
    }
  }
}
