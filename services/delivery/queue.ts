/**
 * The agents' queues as the rest of the service sees them. What a queue promises is written down as tests, in
 * `test/service/queue-conformance.ts`; whatever passes them can stand here.
 */
import type { QueuedDelivery } from "../../contracts/pipeline.ts";
import type { Trace } from "../../runtime/telemetry.ts";
import type { AgentRef, Handle } from "./delivery-id.ts";

/** A delivery handed out: it comes again after the visibility timeout unless it is ended or held before. */
export interface Lease {
  readonly handle: Handle;
  /** From 1. */
  readonly attempt: number;
  readonly delivery: QueuedDelivery;
  /** The trace of the event it was queued for. */
  readonly trace?: Trace | undefined;
}

/** What whoever was handed a delivery knows of its lease. */
export type Given = Pick<Lease, "handle" | "attempt">;

/** A delivery that will not be handed out again. */
export interface DeadDelivery {
  readonly owner: AgentRef;
  readonly handle: Handle;
  /** Grows with every replay of the delivery. */
  readonly generation: number;
  readonly attempt: number;
  readonly reason: string;
  readonly delivery: QueuedDelivery;
}

/** Stores dead deliveries for good. Called again with the same until it resolves, and sometimes once more after that. */
export type Keep = (dead: readonly DeadDelivery[]) => Promise<void>;

export interface Queue {
  /** Up to `limit` deliveries, higher priority first, oldest first within one; waits for the first one if asked to. */
  lease(owner: AgentRef, limit: number, waitMs: number, signal: AbortSignal): Promise<Lease[]>;
  /** Leases that could not be used after all; they come again at once. */
  putBack(leases: readonly Lease[]): Promise<void>;
  /** Leases of events that are gone; they do not come again. */
  drop(leases: readonly Lease[]): Promise<void>;
  /** How many of them this call ended. The same `by` again counts the same again. */
  acknowledge(owner: AgentRef, handles: readonly Handle[], by: string): Promise<number>;
  /** Lets them come again so much later than now: at once for 0. After the last attempt they die instead. */
  hold(owner: AgentRef, handles: readonly Handle[], ms: number): Promise<number>;
  /** Those still out for the attempt named, as they were handed out; they are held for a whole visibility timeout again. */
  renew(owner: AgentRef, given: readonly Given[]): Promise<Lease[]>;
  /** How many of them this call sent to the dead. */
  reject(owner: AgentRef, handles: readonly Handle[], reason: string, by: string): Promise<number>;
  /** Queues a delivery; a second time with the same `name`, shortly after, does nothing. */
  put(owner: AgentRef, delivery: QueuedDelivery, name: string): Promise<void>;
  /** The latest acknowledged ones, newest first. */
  acknowledged(owner: AgentRef, limit: number): Promise<Acknowledged[]>;
}

export interface Acknowledged {
  readonly handle: Handle;
  readonly attempt: number;
  /** ISO 8601. */
  readonly at: string;
}
