/** Every NATS subject and key the system uses is spelled here; builders and parsers stand side by side. */
import type { ServiceName } from "./operation.ts";
import type { OperationName } from "./operations.ts";
import { operations } from "./operations.ts";

export const subjects = {
  /** A request to a service; its replicas share the work as one queue group. */
  request: (name: OperationName) => `rpc.${operations[name].service}.${name}`,
  requestsOf: (service: ServiceName) => `rpc.${service}.>`,
  /** Seeds of requests whose caller has left; heard by every replica of the service, since one of them has it in hand. */
  givenUp: (service: ServiceName) => `given-up.${service}`,
  /** "Which of you had the stream that sent this?", heard by every gateway and answered by that one alone. */
  streamTakenOver: "stream-taken-over",
  /** "Are you well?", answered by one replica of the service. */
  health: (service: ServiceName) => `health.${service}`,
  /** Accepted events, by tenant. */
  event: (tenant: string) => `event.${tenant}`,
  /**
   * What an agent has still to acknowledge; `priority` makes the tiers. Only what is above the usual 0 has the extra
   * token, so that whoever wants to hear of it can subscribe to it alone.
   */
  delivery: (shard: number, tenant: string, agent: string, priority: number) =>
    `deliver.${shard}.${tenant}.${agent}.${priority === 0 ? "0" : `high.${priority}`}`,
  highDeliveriesOf: (shard: number, tenant: string, agent: string) => `deliver.${shard}.${tenant}.${agent}.high.*`,
  highDeliveries: "deliver.*.*.*.high.*",
  /** Acknowledged deliveries of an agent. */
  history: (tenant: string, agent: string) => `history.${tenant}.${agent}`,
  /** Deliveries of an agent that ended otherwise. In the same stream, so that a delivery ends once. */
  dead: (tenant: string, agent: string) => `dead.${tenant}.${agent}`,
  /** What became of a delivery after its first attempt: the place of its message, and how often it was handed out. */
  note: (shard: number, seq: number) => `note.${shard}.${seq}`,
  /** The alarm set when a delivery is handed out for the last time, and what it publishes when it goes off. */
  alarm: (shard: number, seq: number) => `alarm.${shard}.${seq}`,
  expired: (shard: number, seq: number) => `expired.${shard}.${seq}`,
  /** The broker's own word that a consumer of a stream has given up on a message. */
  exhausted: (stream: string) => `$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.${stream}.*`,
  /** Events whose deliveries are all queued. */
  fanned: "fanned",
  /** What one ingest process has counted for a tenant on a day (`2026-01-31`). */
  usage: (day: string, tenant: string, process: string) => `usage.${day}.${tenant}.${process}`,
};

export function parseEvent(subject: string): { tenant: string } | undefined {
  const [kind, tenant, ...rest] = subject.split(".");
  return kind === "event" && tenant && rest.length === 0 ? { tenant } : undefined;
}

export function parseUsage(subject: string) {
  const [kind, day, tenant, process, ...rest] = subject.split(".");
  if (kind !== "usage" || !day || !tenant || !process || rest.length > 0) return undefined;
  return { day, tenant, process };
}

export function parseDelivery(subject: string) {
  const [kind, shard, tenant, agent, ...tier] = subject.split(".");
  const priority = Number(tier[0] === "high" ? tier[1] : tier[0]);
  if (kind !== "deliver" || !tenant || !agent || !Number.isSafeInteger(priority)) return undefined;
  return { shard: Number(shard), tenant, agent, priority };
}

/** Which of the delivery streams an agent's queue lives in: FNV-1a of its id. Changing it would lose queues. */
export function shardOf(agent: string, shards: number): number {
  let hash = 0x811c9dc5;
  for (let i = 0; i < agent.length; i++) hash = Math.imul(hash ^ agent.charCodeAt(i), 0x01000193);
  return (hash >>> 0) % shards;
}

export const operationIn = (subject: string): string => subject.slice(subject.indexOf(".", 4) + 1);

/** Keys of the bucket in which the registry announces what the hot paths must know. */
export const routeKeys = {
  agent: (tenant: string, agent: string) => `agent.${tenant}.${agent}`,
  interest: (tenant: string, agent: string, interest: string) => `interest.${tenant}.${agent}.${interest}`,
  member: (tenant: string, channel: string, agent: string) => `member.${tenant}.${channel}.${agent}`,
  feed: (tenant: string, channel: string, feed: string) => `feed.${tenant}.${channel}.${feed}`,
  /** Carries nothing: whoever has seen one written now has seen every announcement before now. */
  barrier: "barrier",
};

export type RouteKey =
  | { kind: "agent"; tenant: string; agent: string }
  | { kind: "interest"; tenant: string; agent: string; interest: string }
  | { kind: "member"; tenant: string; channel: string; agent: string }
  | { kind: "feed"; tenant: string; channel: string; feed: string };

export function parseRouteKey(key: string): RouteKey | undefined {
  const [kind, tenant, owner, item, ...rest] = key.split(".");
  if (!tenant || !owner || rest.length > 0) return undefined;
  if (kind === "agent") return item === undefined ? { kind, tenant, agent: owner } : undefined;
  if (!item) return undefined;
  if (kind === "interest") return { kind, tenant, agent: owner, interest: item };
  if (kind === "member") return { kind, tenant, channel: owner, agent: item };
  if (kind === "feed") return { kind, tenant, channel: owner, feed: item };
  return undefined;
}

/** Keys of the bucket that holds a tenant's webhooks. */
export const webhookKey = (slug: string): string => `tenant.${slug}`;

export function parseWebhookKey(key: string): string | undefined {
  const [kind, slug, ...rest] = key.split(".");
  return kind === "tenant" && rest.length === 0 ? slug : undefined;
}

export const pushKey = (tenant: string, agent: string): string => `${tenant}.${agent}`;

/** Keys of the bucket that says which credentials to trust: public signing keys, revoked keys, stopped agents. */
export const trustKeys = {
  signing: (kid: string) => `signing.${kid}`,
  revokedKey: (keyId: string) => `revoked.${keyId}`,
  stoppedAgent: (agent: string) => `stopped.${agent}`,
};

export function parseTrustKey(key: string): { kind: "signing" | "revoked" | "stopped"; id: string } | undefined {
  const [kind, id, ...rest] = key.split(".");
  if (!id || rest.length > 0 || (kind !== "signing" && kind !== "revoked" && kind !== "stopped")) return undefined;
  return { kind, id };
}
