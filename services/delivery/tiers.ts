/**
 * Which priorities above 0 an agent has deliveries in. The broker is asked when an agent first polls here; from then on
 * every high delivery is overheard as it is queued, so that an agent without any pays nothing.
 */
import type { NatsConnection } from "@nats-io/nats-core";
import { deliveryStreamName } from "../../contracts/streams.ts";
import { parseDelivery, shardOf, subjects } from "../../contracts/subjects.ts";
import type { AgentRef } from "./delivery-id.ts";
import type { Wire } from "./wire.ts";

export interface Tiers extends AsyncDisposable {
  /** Highest first. */
  of(owner: AgentRef): Promise<readonly number[]>;
  /** Nothing could be taken from one of them: it is empty, or all of it is handed out. */
  foundEmpty(owner: AgentRef): void;
  /** Calls `wake` when something high is queued for the agent; the answer ends that. */
  onHigh(owner: AgentRef, wake: () => void): () => void;
  /** What was overheard may have gaps. */
  forget(): void;
}

interface Known {
  tiers: readonly number[];
  checkedAt: number;
  /** While the broker is being asked. */
  checking?: Promise<void>;
  /** Overheard meanwhile. */
  heard?: Set<number>;
}

/** Overhearing is not certain: a message may be lost to a slow process. This is how long its order can then be wrong. */
const RECHECK_MS = 30_000;
const RECHECK_EMPTY_MS = 1_000;
const MAX_KNOWN = 100_000;

export function tiers(nc: NatsConnection, wire: Wire, shards: number): Tiers {
  const known = new Map<string, Known>();
  const waiters = new Map<string, Set<() => void>>();
  const keyOf = ({ tenant, agent }: AgentRef) => `${tenant}.${agent}`;

  const subscription = nc.subscribe(subjects.highDeliveries, {
    callback: (error, msg) => {
      const parsed = error ? undefined : parseDelivery(msg.subject);
      if (!parsed) return;
      const entry = known.get(keyOf(parsed));
      entry?.heard?.add(parsed.priority);
      if (entry && !entry.tiers.includes(parsed.priority)) entry.tiers = descending([...entry.tiers, parsed.priority]);
      for (const wake of waiters.get(keyOf(parsed)) ?? []) wake();
    },
  });

  const check = async (owner: AgentRef, entry: Known) => {
    entry.heard = new Set();
    entry.checkedAt = performance.now();
    const shard = shardOf(owner.agent, shards);
    const info = await wire.api<{ state: { subjects?: Record<string, number> } }>(
      `STREAM.INFO.${deliveryStreamName(shard)}`,
      { subjects_filter: subjects.highDeliveriesOf(shard, owner.tenant, owner.agent) },
    );
    if ("error" in info) entry.checkedAt = -Infinity;
    else {
      const present = Object.keys(info.state.subjects ?? {}).map((subject) => parseDelivery(subject)!.priority);
      entry.tiers = descending([...new Set([...present, ...entry.heard])]);
    }
  };

  return {
    async of(owner) {
      const key = keyOf(owner);
      let entry = known.get(key);
      if (!entry) {
        if (known.size >= MAX_KNOWN) known.delete(known.keys().next().value!);
        known.set(key, entry = { tiers: [], checkedAt: -Infinity });
      }
      if (performance.now() - entry.checkedAt > RECHECK_MS) {
        entry.checking ??= check(owner, entry).finally(() => {
          delete entry.checking;
          delete entry.heard;
        });
      }
      if (entry.checking) await entry.checking;
      return entry.tiers;
    },
    foundEmpty(owner) {
      const entry = known.get(keyOf(owner));
      if (entry && performance.now() - entry.checkedAt > RECHECK_EMPTY_MS) entry.checkedAt = -Infinity;
    },
    onHigh(owner, wake) {
      const key = keyOf(owner);
      const waiting = waiters.get(key) ?? new Set();
      waiters.set(key, waiting.add(wake));
      return () => {
        waiting.delete(wake);
        if (waiting.size === 0) waiters.delete(key);
      };
    },
    forget() {
      for (const entry of known.values()) entry.checkedAt = -Infinity;
    },
    async [Symbol.asyncDispose]() {
      subscription.unsubscribe();
    },
  };
}

const descending = (numbers: number[]) => numbers.sort((a, b) => b - a);
