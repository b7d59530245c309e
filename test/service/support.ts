/** The delivery service alone, between a real broker and a real database: the test plays gateway and fan-out. */
import { newId, type TenantCaller, ulid } from "../../contracts/identity.ts";
import type { Input, OperationName, Output, Sent } from "../../contracts/operations.ts";
import { deliveryMsgId, eventHeaders, eventMsgId, type QueuedDelivery } from "../../contracts/pipeline.ts";
import { shardOf, subjects } from "../../contracts/subjects.ts";
import { type Bus, connectBus } from "../../runtime/bus.ts";
import { begin, type Running } from "../../runtime/lifecycle.ts";
import { type Log, silent } from "../../runtime/log.ts";
import { type Publisher, publisher as publisherOn } from "../../runtime/publish.ts";
import { readInput } from "../../runtime/serve.ts";
import { start } from "../../services/delivery/main.ts";
import { type Broker, broker as startBroker, freshDatabase } from "../support/servers.ts";

export const SHARDS = 4;

export interface Post extends AsyncDisposable {
  readonly tenant: string;
  readonly bus: Bus;
  readonly broker: Broker;
  readonly publisher: Publisher;
  agent(): TestAgent;
  admin(): Asking;
  /** Accepts an event as ingest would; answers its sequence. */
  accept(event?: Partial<CloudEvent>): Promise<{ seq: number; event: CloudEvent }>;
  /** Accepts an event and queues it for these agents as fan-out would. */
  send(agents: TestAgent[], event?: Partial<CloudEvent>, priority?: number): Promise<CloudEvent>;
  /** One more replica of the service. */
  replica(): Promise<Running>;
  ask<N extends OperationName>(name: N, sent: Sent<N>, caller: TenantCaller | ServiceCaller, seed?: string): Promise<
    Output<N>
  >;
}

type ServiceCaller = { kind: "service"; name: string } | { kind: "operator" };
export interface CloudEvent {
  specversion: "1.0";
  id: string;
  type: string;
  source: string;
  data: unknown;
}

export interface Asking {
  readonly caller: TenantCaller;
  ask<N extends OperationName>(name: N, sent: Sent<N>, seed?: string): Promise<Output<N>>;
}
export interface TestAgent extends Asking {
  readonly id: string;
  poll(limit?: number, wait?: number): Promise<Output<"delivery.poll">["deliveries"]>;
  ack(ids: string[], seed?: string): Promise<number>;
}

export async function post(options: {
  visibilitySeconds?: number;
  maxAttempts?: number;
  replicas?: number;
  log?: Log;
  database?: { readonly url: string };
  env?: Record<string, string>;
} = {}): Promise<Post> {
  const { visibilitySeconds = 1, maxAttempts = 3, replicas = 1, log = silent } = options;
  const stack = new AsyncDisposableStack();
  const broker = stack.use(await startBroker());
  const database = options.database ?? stack.use(await freshDatabase());
  const environment = {
    NATS_URL: broker.url,
    DATABASE_URL: database.url,
    SERVER_SECRET: "a secret of at least thirty-two characters",
    DELIVERY_SHARDS: String(SHARDS),
    VISIBILITY_TIMEOUT_SECONDS: String(visibilitySeconds),
    MAX_DELIVERY_ATTEMPTS: String(maxAttempts),
    ...options.env,
  };
  const replica = async () => stack.use(await begin((app) => start(app, log, environment)));
  for (let i = 0; i < replicas; i++) await replica();
  const bus = stack.use(await connectBus(broker.url, "test", log));
  const publisher = stack.use(publisherOn(bus.nc));
  const tenant = newId("tenant");

  const ask: Post["ask"] = async (name, sent, caller, seed = ulid()) => {
    const input: Input<typeof name> = readInput(name, sent as Record<string, unknown>);
    return (await bus.ask(name, input, { caller: caller as TenantCaller, requestId: "req_test", seed })).read();
  };
  const asking = (caller: TenantCaller): Asking => ({
    caller,
    ask: (name, sent, seed) => ask(name, sent, caller, seed),
  });
  const callerOf = (kind: "agent" | "org_admin", id: string) =>
    ({ kind, id, tenant, scopes: ["receive"], keyId: "key_test" }) satisfies TenantCaller;

  const accept: Post["accept"] = async (partial = {}) => {
    const event: CloudEvent = {
      specversion: "1.0",
      id: ulid(),
      type: "test.thing",
      source: "urn:test",
      data: { n: 1 },
      ...partial,
    };
    const { seq } = await publisher.publish(subjects.event(tenant), JSON.stringify(event), {
      "Nats-Msg-Id": eventMsgId(tenant, event.id),
      [eventHeaders.acceptedAt]: new Date().toISOString(),
    });
    return { seq, event };
  };

  return {
    tenant,
    bus,
    broker,
    publisher,
    replica,
    ask,
    accept,
    admin: () => asking(callerOf("org_admin", newId("org_admin"))),
    agent() {
      const id = newId("agent");
      const self = asking(callerOf("agent", id));
      return {
        ...self,
        id,
        poll: async (limit = 10, wait = 0) => (await self.ask("delivery.poll", { query: { limit, wait } })).deliveries,
        ack: async (delivery_ids, seed) =>
          (await self.ask("delivery.ack", { body: { delivery_ids } }, seed)).acknowledged,
      };
    },
    async send(agents, partial, priority = 0) {
      const { seq, event } = await accept(partial);
      await Promise.all(agents.map(({ id }) => {
        const queued: QueuedDelivery = {
          v: 1,
          seq,
          event_id: event.id,
          matched: [{ interest_id: "int_test" }],
          priority,
          enrichment: "none",
          at: new Date().toISOString(),
        };
        return publisher.publish(
          subjects.delivery(shardOf(id, SHARDS), tenant, id, priority),
          JSON.stringify(queued),
          { "Nats-Msg-Id": deliveryMsgId(seq, id) },
        );
      }));
      return event;
    },
    [Symbol.asyncDispose]: () => stack.disposeAsync(),
  };
}
