/** Delivery: an agent takes what is queued for it, says what became of it, and finds it again afterwards. */
import type { Delivery, PollQuery } from "../../contracts/deliveries.ts";
import { Fault, notFound, ruleBroken } from "../../contracts/errors.ts";
import type { TenantCaller } from "../../contracts/identity.ts";
import type { Call, Handlers } from "../../contracts/operations.ts";
import { measure } from "../../runtime/measure.ts";
import { receiving, settling } from "../../runtime/messaging.ts";
import { buryEvent, payloadOf, replay, type ReplayDeps } from "./dead-letters.ts";
import type { AgentRef, Handle } from "./delivery-id.ts";
import type { Enrich } from "./enrich.ts";
import type { StoredEvent } from "./events.ts";
import type { Push } from "./push.ts";
import type { Lease, Queue } from "./queue.ts";
import type { Room } from "./room.ts";
import type { Wire } from "./wire.ts";

export interface DeliveryDeps extends ReplayDeps {
  readonly queue: Queue;
  readonly wire: Wire;
  readonly room: Room;
  readonly push: Pick<Push, "firstSecret" | "rotate">;
  readonly enrich: Enrich;
  readonly isAgent: (tenant: string, id: string) => Promise<boolean>;
  /** Aborts when the process begins to stop: nobody is kept waiting then. */
  readonly stopping: AbortSignal;
}

export function delivery(deps: DeliveryDeps): Handlers<"delivery"> {
  const { queue, events, ids, store, room, push, enrich, stopping, isAgent } = deps;

  /** Ids that are not the agent's own are not errors: they are simply none of its deliveries. */
  const handlesOf = (owner: AgentRef, delivery_ids: readonly string[]): Handle[] =>
    [...new Set(delivery_ids)].flatMap((id) => ids.handleOf(owner, id) ?? []);

  const poll = async ({ query: { limit, wait } }: { query: PollQuery }, call: Call<TenantCaller>) => {
    const owner = agentOf(call.caller);
    const until = wait > 0 ? AbortSignal.any([call.signal, stopping]) : stopping;
    const leases = await receiving(
      "DELIVERIES",
      () => queue.lease(owner, room.most(owner.tenant, limit), wait * 1_000, until),
    );
    if (leases.length === 0) return { deliveries: [], count: 0 };
    const { deliveries, rest, gone } = await written(owner, call.caller.team, leases);
    if (rest.length > 0) await queue.putBack(rest);
    if (gone.length > 0) await queue.drop(gone);
    count(owner.tenant, leases);
    return { deliveries, count: deliveries.length };
  };

  /** As many of the leases as fit into one answer, with their events and what is known about them. */
  const written = async (owner: AgentRef, team: string | undefined, leases: readonly Lease[]) => {
    const bodies = await events.read(owner.tenant, leases.flatMap((l) => l.delivery.event ? [] : [l.delivery.seq]));
    const { fitting, rest, gone } = room.fit(owner.tenant, leases, bodies);
    const named = fitting.map(({ lease, event }) => ({
      key: ids.idOf(owner, lease.handle),
      lease,
      event,
      depth: lease.delivery.enrichment,
    }));
    const contexts = await enrich(owner, team, named);
    const deliveries = named.map(({ key, lease, event }): Delivery => {
      const context = contexts.get(key);
      return {
        id: key,
        event_id: lease.delivery.event_id,
        payload: { ...payloadOf(event, lease.delivery.matched), ...(context ? { context } : {}) },
        attempt_count: lease.attempt,
        created_at: lease.delivery.at,
      };
    });
    return { deliveries, rest, gone };
  };

  return {
    "delivery.poll": poll,
    /** One round of a stream; the gateway asks for the next one when its reader has room. */
    "delivery.stream": poll,

    async "delivery.resend"({ body }, { caller }) {
      const owner = agentOf(caller);
      const given = body.deliveries.flatMap(({ id, attempt }) => {
        const handle = ids.handleOf(owner, id);
        return handle ? [{ handle, attempt }] : [];
      });
      const { deliveries, rest } = await written(owner, caller.team, await queue.renew(owner, given));
      measure().resent.add(deliveries.length, { tenant: owner.tenant });
      return { deliveries, rest: rest.map(({ handle, attempt }) => ({ id: ids.idOf(owner, handle), attempt })) };
    },

    async "delivery.ack"({ body: { delivery_ids } }, { caller, seed }) {
      const owner = agentOf(caller);
      const handles = handlesOf(owner, delivery_ids);
      const acknowledged = await settling("DELIVERIES", handles.length, () => queue.acknowledge(owner, handles, seed));
      measure().acknowledged.add(acknowledged, { tenant: owner.tenant });
      return { acknowledged };
    },

    async "delivery.nack"({ body: { delivery_ids, delay_seconds } }, { caller }) {
      const owner = agentOf(caller);
      return { released: await queue.hold(owner, handlesOf(owner, delivery_ids), delay_seconds * 1_000) };
    },

    async "delivery.extend"({ body: { delivery_ids, seconds } }, { caller }) {
      const owner = agentOf(caller);
      return { extended: await queue.hold(owner, handlesOf(owner, delivery_ids), seconds * 1_000) };
    },

    async "delivery.reject"({ body: { delivery_ids, reason } }, { caller, seed }) {
      const owner = agentOf(caller);
      return { dead_lettered: await queue.reject(owner, handlesOf(owner, delivery_ids), reason, seed) };
    },

    "delivery.dead_letters": ({ query }, { caller }) => store.list(caller.tenant, whoseDeadLetters(caller), query),

    async "delivery.replay"({ path: { id } }, { caller, seed }) {
      await replay(deps, { tenant: caller.tenant, agent: whoseDeadLetters(caller), id, seed });
      return { status: "replayed", delivery_id: id };
    },

    async "delivery.recent"({ path: { id }, query: { limit } }, { caller }) {
      if (caller.id !== id && !await isAgent(caller.tenant, id)) throw notFound("agent", id);
      const owner = { tenant: caller.tenant, agent: id };
      const ended = await queue.acknowledged(owner, limit);
      const bodies = await events.read(owner.tenant, ended.map(({ handle }) => handle.event));
      const named = ended.map((item) => ({ ...item, delivery_id: ids.idOf(owner, item.handle) }));
      const missing = named.filter(({ handle }) => !bodies.has(handle.event)).map(({ delivery_id }) => delivery_id);
      const kept = missing.length > 0 ? await store.payloads(owner.tenant, missing) : undefined;
      return {
        events: named.flatMap(({ handle, delivery_id, attempt, at }) => {
          const event = bodies.get(handle.event)?.event ?? kept?.get(delivery_id);
          return event ? [{ ...summaryOf(event), delivery_id, attempt_count: attempt, acknowledged_at: at }] : [];
        }),
      };
    },

    async "push.secret"({ path: { id } }, { caller, seed }) {
      if (!await isAgent(caller.tenant, id)) throw notFound("agent", id);
      return { secret: await push.rotate({ tenant: caller.tenant, agent: id }, seed) };
    },

    "push.first_secret": async ({ body }, { seed }) => ({ secret: await push.firstSecret(body, seed) ?? null }),

    "operator.dlq_list": ({ body: { tenant, agent, ...page } }) => store.list(tenant, agent ?? null, page),

    async "operator.dlq_replay"({ body: { tenant, delivery_ids } }, { seed }) {
      let replayed = 0;
      for (const id of new Set(delivery_ids)) {
        if (await replay(deps, { tenant, agent: null, id, seed: `${seed}:${id}` }).then(() => true, unlessAbsent)) {
          replayed++;
        }
      }
      return { replayed };
    },

    "operator.dlq_purge": async ({ body: { tenant, agent, before } }) => ({
      purged: await store.purge(tenant, agent ?? null, before ?? null),
    }),

    "delivery.bury": async ({ body }) => ({ delivery_id: await buryEvent(deps, body) }),
  };
}

function agentOf(caller: TenantCaller): AgentRef {
  if (caller.kind !== "agent") throw ruleBroken("agent_required", "Only an agent has deliveries");
  return { tenant: caller.tenant, agent: caller.id };
}

const unlessAbsent = (thrown: unknown): false => {
  if (thrown instanceof Fault && thrown.code === "not_found") return false;
  throw thrown;
};

/** Null: those of the whole tenant. */
const whoseDeadLetters = (caller: TenantCaller): string | null => caller.kind === "agent" ? caller.id : null;

const summaryOf = ({ id, type, source, subject, time, data }: StoredEvent["event"]) => ({
  event_id: id,
  type,
  source,
  subject: (subject ?? null) as string | null,
  time: (time ?? null) as string | null,
  data: data ?? null,
});

function count(tenant: string, leases: readonly Lease[]): void {
  measure().delivered.add(leases.length, { tenant });
  const again = leases.filter(({ attempt }) => attempt > 1).length;
  if (again > 0) measure().redelivered.add(again, { tenant });
}
