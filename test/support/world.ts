/** A whole system of its own: broker, database, every service, as many replicas as asked; gone when the block ends. */
import { startGateway, startService } from "./processes.ts";
import { type Client, client } from "../../contracts/client.ts";
import { newId, type Scope, scopes, ulid } from "../../contracts/identity.ts";
import type { ServiceName } from "../../contracts/operation.ts";
import type { Input, OperationName, Output } from "../../contracts/operations.ts";
import type { Agent } from "../../contracts/registry.ts";
import { type Bus, connectBus } from "../../runtime/bus.ts";
import type { Running } from "../../runtime/lifecycle.ts";
import { silent } from "../../runtime/log.ts";
import { type Broker, broker, freshDatabase } from "./servers.ts";

export interface Answer {
  readonly status: number;
  readonly headers: Headers;
  // deno-lint-ignore no-explicit-any -- tests look into answers of every shape
  readonly body: any;
}

export interface Request {
  readonly token?: string;
  readonly body?: unknown;
  readonly headers?: Record<string, string>;
}

export interface TestAgent {
  readonly id: string;
  readonly key: string;
  readonly token: string;
  readonly agent: Agent;
  readonly call: Client;
}

export interface TestTenant {
  readonly id: string;
  readonly slug: string;
  readonly adminKey: string;
  readonly adminKeyId: string;
  readonly adminToken: string;
  readonly admin: Client;
  agent(options?: { scopes?: readonly Scope[]; team?: string; name?: string }): Promise<TestAgent>;
}

export interface World extends Operated, AsyncDisposable {
  readonly broker: Broker;
  readonly env: Record<string, string>;
  /** What its processes measured; nothing where they are this one, whose own telemetry knows. */
  exposition(): Promise<string>;
}

/** A system and what an operator and its clients do with it. */
export interface Operated {
  /** One address for each gateway, with the version segment. */
  readonly urls: readonly string[];
  readonly bus: Bus;
  /** Asks as the operator does, over the bus. */
  operator<N extends OperationName>(name: N, body?: Input<N>["body"]): Promise<Output<N>>;
  tenant(): Promise<TestTenant>;
  request(method: string, path: string, request?: Request, gateway?: number): Promise<Answer>;
  token(key: string, gateway?: number): Promise<string>;
}

export async function world(options: {
  readonly gateways?: number;
  /** How many of each service; one unless said. */
  readonly replicas?: number;
  /** Which services; the registry alone unless said, because most tests need no more. */
  readonly services?: readonly ServiceName[];
  readonly env?: Record<string, string>;
} = {}): Promise<World> {
  await using stack = new AsyncDisposableStack();
  const nats = stack.use(await broker());
  const database = stack.use(await freshDatabase());
  const env = {
    NATS_URL: nats.url,
    DATABASE_URL: database.url,
    SERVER_SECRET: "a test secret that is long enough to be one",
    PORT: "0",
    DELIVERY_SHARDS: "4",
    DRAIN_SECONDS: "1",
    ...indexEnv(),
    ...options.env,
  };
  const started: Running[] = [];
  for (const service of options.services ?? ["registry"]) {
    for (let i = 0; i < (options.replicas ?? 1); i++) started.push(stack.use(await startService(service, env)));
  }
  const urls: string[] = [];
  for (let i = 0; i < (options.gateways ?? 1); i++) {
    const gateway = stack.use(await startGateway(env));
    started.push(gateway);
    urls.push(gateway.url);
  }
  const bus = stack.use(await connectBus(nats.url, "test", silent));
  const kept = stack.move();
  return {
    ...operated(bus, urls),
    broker: nats,
    env,
    exposition: async () => (await Promise.all(started.map((each) => each.exposition()))).join(""),
    [Symbol.asyncDispose]: () => kept.disposeAsync(),
  };
}

/** Memories are searched by the index of the process, or by the Qdrant that whoever runs the tests names. */
function indexEnv(): Record<string, string> {
  const { QDRANT_URL, QDRANT_API_KEY } = process.env;
  return { ...(QDRANT_URL ? { QDRANT_URL } : {}), ...(QDRANT_API_KEY ? { QDRANT_API_KEY } : {}) };
}

export function operated(bus: Bus, urls: readonly string[]): Operated {
  const self: Operated = {
    urls,
    bus,
    async operator(name, body) {
      const origin = { caller: { kind: "operator" }, requestId: newId("request"), seed: ulid() } as const;
      return (await bus.ask(name, { path: {}, query: {}, body: body ?? {} } as never, origin)).read();
    },
    async token(key, gateway = 0) {
      return (await client(urls[gateway]!)("auth.token", { body: { api_key: key } })).access_token;
    },
    async request(method, path, { token, body, headers } = {}, gateway = 0) {
      const response = await fetch(urls[gateway] + path, {
        method,
        headers: {
          ...(token ? { authorization: `Bearer ${token}` } : {}),
          ...(body === undefined ? {} : { "content-type": "application/json" }),
          ...headers,
        },
        ...(body === undefined ? {} : { body: typeof body === "string" ? body : JSON.stringify(body) }),
      });
      const text = await response.text();
      return { status: response.status, headers: response.headers, body: text === "" ? undefined : JSON.parse(text) };
    },
    async tenant() {
      const slug = `t-${ulid().slice(-12)}`;
      const { tenant, org_admin } = await self.operator("operator.tenant_create", { slug });
      const adminToken = await self.token(org_admin.key);
      const admin = client(urls[0]!, adminToken);
      return {
        id: tenant.id,
        slug,
        adminKey: org_admin.key,
        adminKeyId: org_admin.key_id,
        adminToken,
        admin,
        async agent({ scopes: held = scopes, team, name = "tester" } = {}) {
          const agent = await admin("agents.register", {
            body: { name, delivery_mode: "poll", client_type: "other", team_id: team ?? null },
          });
          const { key } = await admin("keys.mint", { path: { id: agent.id }, body: { scopes: [...held] } });
          const token = await self.token(key);
          return { id: agent.id, key, token, agent, call: client(urls[0]!, token) };
        },
      };
    },
  };
  return self;
}
