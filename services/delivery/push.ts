/**
 * Push: what is queued for an agent in push mode is posted to its endpoint. A courier for each such agent takes leases
 * like any poller, so replicas share the work, nothing is pushed twice at a time, and an agent may poll as well.
 */
import type { KeyObject } from "node:crypto";
import type { KV } from "@nats-io/kv";
import type { NatsConnection } from "@nats-io/nats-core";
import type { DeliveryContext } from "../../contracts/deliveries.ts";
import { ulid } from "../../contracts/identity.ts";
import { PushState } from "../../contracts/pipeline.ts";
import { AgentRoute } from "../../contracts/routes.ts";
import { buckets } from "../../contracts/streams.ts";
import { parseRouteKey, pushKey } from "../../contracts/subjects.ts";
import { eachAlone, isLive, lostRace, openBucket, watchBucket } from "../../runtime/buckets.ts";
import type { Log } from "../../runtime/log.ts";
import { measure } from "../../runtime/measure.ts";
import { processing } from "../../runtime/messaging.ts";
import { pause } from "../../runtime/pause.ts";
import { injectTrace, inSpan, markFailed } from "../../runtime/telemetry.ts";
import type { AgentRef, DeliveryIds } from "./delivery-id.ts";
import type { Endpoint } from "./endpoint.ts";
import type { Enrich } from "./enrich.ts";
import type { Events } from "./events.ts";
import { secretOf, secretsOf, signatureHeaders } from "./push-signature.ts";
import type { Lease, Queue } from "./queue.ts";

export interface PushOptions {
  readonly nc: NatsConnection;
  readonly queue: Queue;
  readonly events: Events;
  readonly ids: DeliveryIds;
  readonly endpoint: Endpoint;
  readonly enrich: Enrich;
  /** What the agents' secrets are derived from. */
  readonly secretKey: KeyObject;
  readonly visibilityMs: number;
  readonly maxAttempts: number;
  readonly backoffMs: number;
  readonly log: Log;
}

export interface Push extends AsyncDisposable {
  /** The agent's first secret, unless it has been given to another request. */
  firstSecret(owner: AgentRef, by: string): Promise<string | undefined>;
  /** A new secret for the agent; the same one again for the same request. */
  rotate(owner: AgentRef, by: string): Promise<string>;
}

interface Target {
  readonly url: string;
  /** Of the agent: some memories are its team's. */
  readonly team: string | undefined;
}

/** To one endpoint, from one replica. */
const CONCURRENCY = 4;
const MAX_TIMEOUT_MS = 15_000;
const MAX_BACKOFF_MS = 3_600_000;
/** An endpoint that failed so often in a row is left alone for a while, longer each time: its deliveries keep their attempts. */
const PATIENCE = 5;
const REST_MS = 10_000;
const MAX_REST_MS = 600_000;
const WAIT_MS = 20_000;

export async function startPush(options: PushOptions): Promise<Push> {
  const { nc, secretKey, log } = options;
  const states = new Map<string, PushState>();
  const targets = new Map<string, Target>();
  const couriers = new Map<string, Courier>();
  const kv = await openBucket(nc, buckets.push);

  /** Each agent with somewhere to push to has a courier, and nobody else. */
  const settle = (key: string, owner: AgentRef) => {
    const target = targets.get(key)?.url;
    const wanted = target === states.get(key)?.gone ? undefined : target;
    const running = couriers.get(key);
    if (running?.url === wanted) return;
    running?.stop();
    couriers.delete(key);
    if (wanted === undefined) return;
    const stopGone = () =>
      change(kv, key, (state) => ({ ...state, gone: wanted }))
        .then(() => log.info("push.gone", { tenant: owner.tenant, agent: owner.agent }))
        .catch((error) => log.warn("push.gone_not_stored", { error }));
    const secrets = () => secretsOf(secretKey, owner, states.get(key), Date.now());
    const team = () => targets.get(key)?.team;
    couriers.set(key, courier({ ...options, owner, url: wanted, team, secrets, stopGone }));
  };

  /** An agent that has named another endpoint, or none, may come back to the one that was gone. */
  const forgetGone = async (key: string) => {
    if (states.get(key)?.gone === undefined) return;
    await change(kv, key, (state) => ({ ...state, gone: undefined }))
      .catch((error) => log.warn("push.gone_not_forgotten", { error }));
  };

  const watchedStates = watchBucket({
    nc,
    bucket: buckets.push,
    apply: eachAlone((entry) => {
      const { key } = entry;
      const [tenant = "", agent = ""] = key.split(".");
      if (isLive(entry)) states.set(key, PushState.parse(entry.json()));
      else states.delete(key);
      settle(key, { tenant, agent });
    }, log),
    log,
  });
  // A courier that began before its agent's state is known would sign with a secret of long ago.
  await watchedStates.ready;
  const watchedAgents = watchBucket({
    nc,
    bucket: buckets.routes,
    key: "agent.>",
    apply: eachAlone((entry) => {
      const route = parseRouteKey(entry.key);
      if (route?.kind !== "agent") return;
      const key = pushKey(route.tenant, route.agent);
      const agent = isLive(entry) ? AgentRoute.parse(entry.json()) : undefined;
      if (agent?.status === "active" && agent.delivery_mode === "push" && agent.delivery_endpoint) {
        targets.set(key, { url: agent.delivery_endpoint, team: agent.team_id ?? undefined });
      } else targets.delete(key);
      settle(key, { tenant: route.tenant, agent: route.agent });
      if (agent && states.get(key)?.gone !== agent.delivery_endpoint) void forgetGone(key);
    }, log),
    log,
  });

  return {
    async firstSecret(owner, by) {
      const state = await change(kv, pushKey(owner.tenant, owner.agent), (state) => state ?? { by });
      return state.by === by ? secretOf(secretKey, owner, state.secret) : undefined;
    },
    async rotate(owner, by) {
      const { secret } = await change(kv, pushKey(owner.tenant, owner.agent), (state) =>
        state?.by === by ? state : {
          ...state,
          // The first one has never been shown, so it is not too late for it.
          secret: state ? state.secret + 1 : 1,
          rotated_at: new Date().toISOString(),
          by,
        });
      return secretOf(secretKey, owner, secret);
    },
    async [Symbol.asyncDispose]() {
      await Promise.all([watchedStates, watchedAgents].map((watch) => watch[Symbol.asyncDispose]()));
      const running = [...couriers.values()];
      for (const each of running) each.stop();
      await Promise.all(running.map(({ ended }) => ended));
    },
  };
}

/** Compare and set, against other replicas. */
async function change(
  kv: KV,
  key: string,
  next: (state: PushState | undefined) => Partial<PushState>,
): Promise<PushState> {
  for (let attempt = 0; attempt < 20; attempt++) {
    const entry = await kv.get(key);
    const before = isLive(entry) ? PushState.parse(entry.json()) : undefined;
    const wanted = next(before);
    if (before && wanted === before) return before;
    const after = PushState.parse({ secret: 1, rotated_at: new Date().toISOString(), ...wanted });
    try {
      await kv.put(key, JSON.stringify(after), { previousSeq: entry?.revision ?? 0 });
      return after;
    } catch (error) {
      if (!lostRace(error)) throw error;
    }
  }
  throw new Error(`Cannot change ${key}: other writers were faster 20 times`);
}

interface Courier {
  readonly url: string;
  readonly ended: Promise<void>;
  /** Takes nothing more; what is on its way still arrives. */
  stop(): void;
}

interface CourierOptions extends PushOptions {
  readonly owner: AgentRef;
  readonly url: string;
  readonly team: () => string | undefined;
  readonly secrets: () => string[];
  readonly stopGone: () => Promise<void>;
}

function courier(options: CourierOptions): Courier {
  const { owner, url, team, queue, events, ids, endpoint, enrich, secrets, stopGone, log } = options;
  const { visibilityMs, maxAttempts, backoffMs } = options;
  const stop = new AbortController();
  const onTheWay = new Set<Promise<void>>();
  const timeoutMs = Math.min(MAX_TIMEOUT_MS, visibilityMs * 0.8);
  let failures = 0;

  const deliver = async (lease: Lease, event: object) => {
    const takenAt = performance.now();
    const id = ids.idOf(owner, lease.handle);
    const contexts = await enrich(owner, team(), [{ key: id, depth: lease.delivery.enrichment, event }]);
    const body = JSON.stringify(withContext(event, contexts.get(id)));
    const headers: Record<string, string> = {
      "content-type": "application/cloudevents+json; charset=utf-8",
      ...signatureHeaders(secrets(), { id, body, nowMs: Date.now() }),
    };
    const attributes = {
      "http.request.method": "POST",
      ...serverOf(url),
      "http.request.resend_count": lease.attempt - 1,
    };
    const pushed = await inSpan("POST", { kind: "client", attributes }, async (span) => {
      injectTrace((name, value) => headers[name] = value);
      const pushed = await endpoint.post(url, body, headers, timeoutMs - (performance.now() - takenAt));
      if (pushed.outcome !== "accepted") markFailed(span, "reason" in pushed ? pushed.reason : pushed.outcome);
      return pushed;
    });
    measure().pushed.add(1, { tenant: owner.tenant, outcome: pushed.outcome });
    if (pushed.outcome === "accepted") {
      failures = 0;
      await queue.acknowledge(owner, [lease.handle], ulid());
    } else if (pushed.outcome === "gone") {
      stop.abort();
      await stopGone();
      await queue.hold(owner, [lease.handle], 0);
    } else {
      failures++;
      if (lease.attempt >= maxAttempts) {
        const reason = `The endpoint ${pushed.reason} in the last of ${lease.attempt} attempts`;
        await queue.reject(owner, [lease.handle], reason, ulid());
      } else {
        const delayMs = Math.max(pushed.retryAfterMs ?? 0, delayAfter(lease.attempt, backoffMs));
        await queue.hold(owner, [lease.handle], delayMs);
      }
    }
  };

  const round = async () => {
    if (onTheWay.size >= CONCURRENCY) return void await Promise.race(onTheWay);
    const isTrial = failures >= PATIENCE;
    if (isTrial && onTheWay.size > 0) return void await Promise.race(onTheWay);
    if (isTrial) await pause(Math.min(MAX_REST_MS, REST_MS * 2 ** Math.min(failures - PATIENCE, 10)), stop.signal);
    if (stop.signal.aborted) return;
    const leases = await queue.lease(owner, isTrial ? 1 : CONCURRENCY - onTheWay.size, WAIT_MS, stop.signal);
    const bodies = await events.read(owner.tenant, leases.map(({ delivery }) => delivery.seq));
    const gone: Lease[] = [];
    for (const lease of leases) {
      const event = lease.delivery.event ?? bodies.get(lease.delivery.seq)?.event;
      if (!event) {
        gone.push(lease);
        continue;
      }
      const work: Promise<void> = processing("DELIVERIES", "push", lease.trace, () => deliver(lease, event))
        // Undecided: the lease runs out and the delivery comes again.
        .catch((error) => log.warn("push.undecided", { tenant: owner.tenant, error }))
        .finally(() => onTheWay.delete(work));
      onTheWay.add(work);
    }
    await queue.drop(gone);
  };

  const ended = (async () => {
    for (let broken = 0; !stop.signal.aborted;) {
      try {
        await round();
        broken = 0;
      } catch (error) {
        if (broken++ === 0) log.warn("push.interrupted", { tenant: owner.tenant, error });
        await pause(Math.min(10_000, 250 * 2 ** Math.min(broken, 6)), stop.signal);
      }
    }
    await Promise.all(onTheWay);
  })();

  return { url, ended, stop: () => stop.abort() };
}

/**
 * What a poll brings as an object is text here: an attribute of a CloudEvent has no other form for it, and receivers that
 * hold to that would refuse the whole event.
 */
const withContext = (event: object, context: DeliveryContext | undefined): object =>
  context ? { ...event, context: JSON.stringify(context) } : event;

/** Where it goes, without what may be secret in it. */
const serverOf = (url: string) => {
  const { hostname = "", port = "" } = URL.parse(url) ?? {};
  return { "server.address": hostname, ...(port ? { "server.port": Number(port) } : {}) };
};

/** Doubles with each attempt, and strays by a quarter so that what failed together does not come back together. */
export const delayAfter = (attempt: number, backoffMs: number, random: number = Math.random()): number =>
  Math.min(MAX_BACKOFF_MS, backoffMs * 2 ** (attempt - 1)) * (0.75 + random / 2);
