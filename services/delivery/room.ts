/**
 * How many deliveries fit into one answer. A queue holds pointers, so how large the events are is known only after they
 * were taken; what does not fit must go back and has then lost an attempt. So the sizes a tenant's events had lately
 * decide how many are taken, and going back stays the exception.
 */
import type { StoredEvent } from "./events.ts";
import type { Lease } from "./queue.ts";

export interface Room {
  /** As many of `limit` as surely fit, by what is known of the tenant's events. */
  most(tenant: string, limit: number): number;
  /** `rest` does not fit; of `gone` there is no event any more. */
  fit(tenant: string, leases: readonly Lease[], bodies: ReadonlyMap<number, StoredEvent>): {
    readonly fitting: readonly { readonly lease: Lease; readonly event: object }[];
    readonly rest: readonly Lease[];
    readonly gone: readonly Lease[];
  };
}

/** What surrounds an event in an answer. */
const ENVELOPE_BYTES = 512;
const MAX_TENANTS = 10_000;

export function room(answerBytes: number): Room {
  const largest = new Map<string, number>();
  return {
    most: (tenant, limit) =>
      Math.max(1, Math.min(limit, Math.floor(answerBytes / ((largest.get(tenant) ?? 0) + ENVELOPE_BYTES)))),
    fit(tenant, leases, bodies) {
      const fitting: { lease: Lease; event: object }[] = [];
      const [rest, gone]: [Lease[], Lease[]] = [[], []];
      let bytes = 0;
      let seen = 0;
      for (const lease of leases) {
        const stored = lease.delivery.event ? inline(lease.delivery.event) : bodies.get(lease.delivery.seq);
        if (!stored) {
          gone.push(lease);
          continue;
        }
        seen = Math.max(seen, stored.sizeBytes);
        bytes += stored.sizeBytes + ENVELOPE_BYTES;
        if (bytes > answerBytes && fitting.length > 0) rest.push(lease);
        else fitting.push({ lease, event: stored.event });
      }
      // A large one is remembered for some hundred polls.
      const lately = Math.max(seen, (largest.get(tenant) ?? 0) * 0.98);
      if (largest.size > MAX_TENANTS) largest.clear();
      largest.set(tenant, lately);
      return { fitting, rest, gone };
    },
  };
}

const inline = (event: object) => ({ event, sizeBytes: Buffer.byteLength(JSON.stringify(event)) });
