/** What fan-out answers: whether an event it has spread before would match an agent now. */
import { notFound } from "../../contracts/errors.ts";
import type { Handlers } from "../../contracts/operations.ts";
import { subjects } from "../../contracts/subjects.ts";
import type { Routes } from "./routes.ts";
import { readEvent, scopeOf } from "./spread.ts";

export interface StoredEvent {
  readonly subject: string;
  readonly body: Uint8Array;
}

export interface FanoutDeps {
  readonly routes: Pick<Routes, "barrier" | "of">;
  /** The event of a sequence; undefined when retention has taken it. */
  readonly eventAt: (seq: number) => Promise<StoredEvent | undefined>;
}

export const fanout = ({ routes, eventAt }: FanoutDeps): Handlers<"fanout"> => ({
  async "fanout.match"({ body: { tenant, agent, seq } }) {
    const stored = await eventAt(seq);
    const event = stored?.subject === subjects.event(tenant) ? readEvent(stored.body) : undefined;
    if (!event) throw notFound("event", String(seq));
    await routes.barrier();
    const { matched, priority, enrichment } = routes.of(tenant)?.recipient(scopeOf(event), agent) ??
      { matched: [], priority: 0, enrichment: "none" };
    return { matched, priority, enrichment };
  },
});
