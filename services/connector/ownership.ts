/**
 * Who reads a connector, and how it goes: one entry in a bucket is both. The owner writes it again and again with
 * compare-and-set; whoever sees the same revision for a whole lease takes it over the same way and goes on counting. An
 * owner that was only slow finds its next write refused, and stops. No clocks are compared.
 */
import type { KV } from "@nats-io/kv";
import { ConnectorLoad, ConnectorState } from "../../contracts/ingestion.ts";
import { isLive, lostRace } from "../../runtime/buckets.ts";

export interface Claim {
  /** What is written next; whoever holds the claim changes it in place. */
  state: ConnectorState;
  /** False when somebody else has taken over. Throws when the bus is away. */
  write(): Promise<boolean>;
  /** Leaves it to whoever comes first. */
  release(status: "waiting" | "paused"): Promise<void>;
}

export interface Ownership {
  /** Undefined while somebody else is alive and owns it. */
  claim(id: string): Promise<Claim | undefined>;
  forget(id: string): Promise<void>;
}

export function ownership(options: {
  readonly states: Pick<KV, "get" | "create" | "update" | "purge">;
  readonly owner: string;
  readonly leaseMs: number;
  readonly now?: () => number;
}): Ownership {
  const { states, owner, leaseMs, now = () => performance.now() } = options;
  /** The revision each entry was last seen at, and since when by our own clock. */
  const seen = new Map<string, { revision: number; since: number }>();

  const isFree = (id: string, revision: number, state: ConnectorState): boolean => {
    if (state.owner === null || state.owner === owner) return true;
    const known = seen.get(id);
    if (known?.revision === revision) return now() - known.since > leaseMs;
    seen.set(id, { revision, since: now() });
    return false;
  };

  const holding = (id: string, first: ConnectorState, at: number): Claim => {
    let revision = at;
    /** One write after the other: two at once would refuse each other. */
    let last: Promise<unknown> = Promise.resolve();
    const write = async () => {
      try {
        revision = await states.update(id, JSON.stringify(claim.state), revision);
        return true;
      } catch (error) {
        if (lostRace(error)) return false;
        throw error;
      }
    };
    const claim: Claim = {
      state: first,
      write() {
        const next = last.then(write, write);
        last = next.catch(() => {});
        return next;
      },
      async release(status) {
        claim.state = { ...claim.state, ...idle, owner: null, status };
        await claim.write().catch(() => false);
      },
    };
    return claim;
  };

  return {
    async claim(id) {
      const entry = await states.get(id);
      try {
        if (!isLive(entry)) {
          const state = ConnectorState.parse({ owner });
          return holding(id, state, await states.create(id, JSON.stringify(state)));
        }
        const found = ConnectorState.parse(entry.json());
        if (!isFree(id, entry.revision, found)) return undefined;
        const state: ConnectorState = { ...found, ...idle, owner, status: "connecting" };
        const revision = await states.update(id, JSON.stringify(state), entry.revision);
        seen.delete(id);
        return holding(id, state, revision);
      } catch (error) {
        if (lostRace(error)) return undefined;
        throw error;
      }
    },
    async forget(id) {
      seen.delete(id);
      await states.purge(id);
    },
  };
}

const idle = ConnectorLoad.parse({});
