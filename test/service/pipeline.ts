/** Ingest and fan-out on a broker of their own, with the registry's announcements and the queues at hand. */
import { jetstreamManager } from "@nats-io/jetstream";
import type { KV } from "@nats-io/kv";
import type { NatsConnection } from "@nats-io/nats-core";
import { type TenantCaller, ulid } from "../../contracts/identity.ts";
import type { Input, OperationName, Output } from "../../contracts/operations.ts";
import type { QueuedDelivery } from "../../contracts/pipeline.ts";
import { buckets, deliveryStreamName } from "../../contracts/streams.ts";
import { parseDelivery, routeKeys } from "../../contracts/subjects.ts";
import { openBucket } from "../../runtime/buckets.ts";
import { connectBus } from "../../runtime/bus.ts";
import { begin, type Running } from "../../runtime/lifecycle.ts";
import { createLog, silent } from "../../runtime/log.ts";
import { start as fanoutStart } from "../../services/fanout/main.ts";
import { start as ingestStart } from "../../services/ingest/main.ts";
import { type Broker, broker } from "../support/servers.ts";

export const SHARDS = 4;
const log = createLog({ level: "error" });

export interface Pipeline extends AsyncDisposable {
  readonly broker: Broker;
  readonly nc: NatsConnection;
  readonly env: Record<string, string>;
  startIngest(): Promise<Running>;
  startFanout(): Promise<Running>;
  ask<N extends OperationName>(name: N, input: Partial<Input<N>>, as?: Partial<TenantCaller>): Promise<Output<N>>;
  publish(type: string, more?: Record<string, unknown>): Promise<{ event_id: string; status: string }>;
  readonly announce: Announce;
  deliveries(): Promise<(QueuedDelivery & { tenant: string; agent: string })[]>;
  /** How many events fan-out has not acknowledged. */
  backlog(): Promise<number>;
}

export interface Announce {
  agent(agent: string, status?: "active" | "inactive", tenant?: string): Promise<void>;
  interest(agent: string, interest: string, event_type: string, more?: Record<string, unknown>): Promise<void>;
  member(channel: string, agent: string): Promise<void>;
  feed(channel: string, feed: string, event_type_glob: string, filter_expression?: string): Promise<void>;
  gone(key: string): Promise<void>;
}

export const TENANT = "ten_a";

export async function pipeline(): Promise<Pipeline> {
  const stack = new AsyncDisposableStack();
  const server = stack.use(await broker());
  const env = {
    NATS_URL: server.url,
    SERVER_SECRET: "a secret of at least 32 characters",
    DELIVERY_SHARDS: String(SHARDS),
    EVENT_RETENTION_HOURS: "24",
    FANOUT_ACK_WAIT_SECONDS: "2",
  };
  const bus = stack.use(await connectBus(server.url, "test", silent));
  const routes = await openBucket(bus.nc, buckets.routes);
  const ask: Pipeline["ask"] = async (name, input, as = {}) => {
    const caller = { kind: "agent" as const, id: "agt_sender", tenant: TENANT, scopes: [], keyId: "key_1", ...as };
    const seed = ulid();
    const whole = { path: {}, query: {}, body: {}, ...input } as never;
    return (await bus.ask(name, whole, { caller, requestId: `req_${seed}`, seed })).read();
  };
  const own = (running: Running) => stack.use(running);
  let count = 0;
  return {
    broker: server,
    nc: bus.nc,
    env,
    startIngest: async () => own(await begin((app) => ingestStart(app, log, env))),
    startFanout: async () => own(await begin((app) => fanoutStart(app, log, env))),
    ask,
    publish: (type, more = {}) =>
      ask("events.publish", {
        body: { specversion: "1.0", type, source: "test", id: `event-${++count}`, ...more },
      }),
    announce: announcements(routes),
    deliveries: () => deliveries(bus.nc),
    backlog: async () => {
      const manager = await jetstreamManager(bus.nc, { checkAPI: false });
      const { num_pending, num_ack_pending } = await manager.consumers.info("EVENTS", "fanout");
      return num_pending + num_ack_pending;
    },
    [Symbol.asyncDispose]: () => stack.disposeAsync(),
  };
}

function announcements(routes: KV): Announce {
  const put = async (key: string, value: object) =>
    void await routes.put(key, JSON.stringify({ version: 1, ...value }));
  return {
    agent: (agent, status = "active", tenant = TENANT) =>
      put(routeKeys.agent(tenant, agent), { status, delivery_mode: "poll", team_id: null }),
    interest: (agent, interest, event_type, more = {}) =>
      put(routeKeys.interest(TENANT, agent, interest), {
        event_type,
        filter_expression: null,
        priority: 0,
        enrichment_depth: "none",
        ...more,
      }),
    member: (channel, agent) => put(routeKeys.member(TENANT, channel, agent), {}),
    feed: (channel, feed, event_type_glob, filter_expression) =>
      put(routeKeys.feed(TENANT, channel, feed), { event_type_glob, filter_expression: filter_expression ?? null }),
    gone: async (key) => await routes.purge(key),
  };
}

async function deliveries(nc: NatsConnection) {
  const manager = await jetstreamManager(nc, { checkAPI: false });
  const found: (QueuedDelivery & { tenant: string; agent: string })[] = [];
  for (let shard = 0; shard < SHARDS; shard++) {
    const { state } = await manager.streams.info(deliveryStreamName(shard));
    if (state.messages === 0) continue;
    const messages = await manager.direct.getBatch(deliveryStreamName(shard), {
      seq: state.first_seq,
      batch: state.messages,
    });
    for await (const msg of messages) {
      const { tenant, agent } = parseDelivery(msg.subject)!;
      found.push({ ...msg.json<QueuedDelivery>(), tenant, agent });
    }
  }
  return found.sort((a, b) => a.seq - b.seq || a.agent.localeCompare(b.agent));
}
