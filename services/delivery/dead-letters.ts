/** Dead letters: kept with their payload, so that they can be read and replayed after their event has expired. */
import { measure } from "../../runtime/measure.ts";
import type { Publisher } from "../../runtime/publish.ts";
import type { Payload } from "../../contracts/deliveries.ts";
import { notFound } from "../../contracts/errors.ts";
import { eventHeaders, type Match, type QueuedDelivery } from "../../contracts/pipeline.ts";
import { subjects } from "../../contracts/subjects.ts";
import type { AgentRef, DeliveryIds } from "./delivery-id.ts";
import type { Events } from "./events.ts";
import type { DeadDelivery, Queue } from "./queue.ts";
import type { DeadLetterRow, DeadLetterStore } from "./store.ts";
import { leaderGet, type Wire } from "./wire.ts";

/** How an agent would receive an event now; undefined when nobody can say. */
export type Rematch = (
  tenant: string,
  agent: string,
  seq: number,
) => Promise<Pick<QueuedDelivery, "matched" | "priority" | "enrichment"> | undefined>;

export function undertaker({ events, ids, store }: {
  readonly events: Events;
  readonly ids: DeliveryIds;
  readonly store: Pick<DeadLetterStore, "keep">;
}) {
  return async (dead: readonly DeadDelivery[]): Promise<void> => {
    const rows: DeadLetterRow[] = [];
    for (const [tenant, items] of Map.groupBy(dead, ({ owner }) => owner.tenant)) {
      const bodies = await events.read(tenant, items.map(({ delivery }) => delivery.seq));
      for (const { owner, handle, generation, attempt, reason, delivery } of items) {
        const event = delivery.event ?? bodies.get(delivery.seq)?.event;
        rows.push({
          delivery_id: ids.idOf(owner, handle),
          tenant_id: tenant,
          agent_id: owner.agent,
          event_id: delivery.event_id,
          event_type: event?.type ?? "",
          event_seq: delivery.seq,
          generation,
          attempt_count: attempt,
          reason,
          payload: event ? payloadOf(event, delivery.matched) : null,
          matched: delivery.matched,
          priority: delivery.priority,
          enrichment: delivery.enrichment,
          created_at: delivery.at,
        });
      }
    }
    for (const tenant of await store.keep(rows)) measure().deadLettered.add(1, { tenant });
  };
}

export const payloadOf = (event: object, matched: Match[]): Payload => ({ ...event, matched }) as Payload;

/** An event nobody could be given. The same event has the same id, however often it is brought here. */
export async function buryEvent(
  { wire, ids, store }: { readonly wire: Wire; readonly ids: DeliveryIds; readonly store: DeadLetterStore },
  burial: { tenant: string; agent: string | null; seq: number; attempts: number; reason: string },
): Promise<string> {
  const { tenant, agent, seq, attempts, reason } = burial;
  const found = await leaderGet(wire, "EVENTS", { seq });
  if (!found || found.subject !== subjects.event(tenant)) throw notFound("event", String(seq));
  const event = readEvent(found);
  const delivery_id = ids.idOf({ tenant, agent: agent ?? "" }, { seq: 0, at: found.at, tier: 0, event: seq });
  const kept = await store.keep([{
    delivery_id,
    tenant_id: tenant,
    agent_id: agent,
    event_id: event.id ?? "",
    event_type: event.type ?? "",
    event_seq: seq,
    generation: 0,
    attempt_count: attempts,
    reason,
    payload: event.type ? payloadOf(event, []) : null,
    matched: [],
    priority: 0,
    enrichment: "none",
    created_at: new Date(found.at).toISOString(),
  }]);
  if (kept.length > 0) measure().deadLettered.add(1, { tenant });
  return delivery_id;
}

/** What is buried may be what nobody could read. */
function readEvent(found: { json<T>(): T }): { id?: string; type?: string } {
  try {
    return found.json<{ id?: string; type?: string }>() ?? {};
  } catch {
    return {};
  }
}

export interface ReplayDeps {
  readonly queue: Pick<Queue, "put">;
  readonly publisher: Publisher;
  readonly events: Events;
  readonly ids: DeliveryIds;
  readonly store: DeadLetterStore;
  readonly rematch: Rematch;
}

/** Queues a dead letter again under its old id. Done twice under one seed it happens once. */
export async function replay(
  deps: ReplayDeps,
  { tenant, agent, id, seed }: { tenant: string; agent: string | null; id: string; seed: string },
): Promise<void> {
  const { store } = deps;
  const row = await store.claim(tenant, agent, id, seed);
  if (!row) throw notFound("dead letter", id);
  if (row.replayed) return;
  const name = `replay:${id}:${seed}`;
  if (row.agent_id === null || row.generation === 0) await acceptAgain(deps.publisher, row, name);
  else await queueAgain(deps, { tenant, agent: row.agent_id }, row, name);
  await store.markReplayed(tenant, id, seed);
}

async function queueAgain(
  { queue, events, ids, rematch }: ReplayDeps,
  owner: AgentRef,
  row: DeadLetterRow,
  name: string,
): Promise<void> {
  const handle = ids.handleOf(owner, row.delivery_id)!;
  const isThere = (await events.read(owner.tenant, [row.event_seq])).has(row.event_seq);
  const match = isThere ? await rematch(owner.tenant, owner.agent, row.event_seq) : undefined;
  const { matched: _, ...event } = row.payload ?? { type: row.event_type, matched: [] };
  await queue.put(owner, {
    v: 1,
    seq: row.event_seq,
    event_id: row.event_id,
    matched: row.matched,
    priority: row.priority,
    enrichment: row.enrichment,
    ...match,
    at: row.created_at,
    origin: { seq: handle.seq, at: handle.at, tier: handle.tier },
    ...(isThere ? {} : { event }),
  }, name);
}

/** It never came as far as an agent's queue, so it begins again where every event begins. */
async function acceptAgain(publisher: Publisher, row: DeadLetterRow, name: string): Promise<void> {
  if (!row.payload) throw notFound("event", row.event_id);
  const { matched: _, ...event } = row.payload;
  await publisher.publish(subjects.event(row.tenant_id), JSON.stringify(event), {
    "Nats-Msg-Id": name,
    [eventHeaders.acceptedAt]: new Date().toISOString(),
  });
}
