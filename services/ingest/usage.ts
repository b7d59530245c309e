/**
 * Counts accepted events by tenant and day. Every process keeps running totals of its own and writes them, not their
 * growth: writing one again changes nothing. A process that is killed loses what it counted since its last write.
 */
import { DeliverPolicy, jetstream } from "@nats-io/jetstream";
import type { NatsConnection } from "@nats-io/nats-core";
import type { Usage, UsageQuery } from "../../contracts/events.ts";
import { usageStream } from "../../contracts/streams.ts";
import { parseUsage, subjects } from "../../contracts/subjects.ts";
import type { Log } from "../../runtime/log.ts";
import type { Publisher } from "../../runtime/publish.ts";

export interface Meter extends AsyncDisposable {
  count(tenant: string, sizeBytes: number): void;
  /** Writes what was counted since the last time. */
  flush(): Promise<void>;
}

interface Total {
  readonly day: string;
  readonly tenant: string;
  events: number;
  bytes: number;
  isWritten: boolean;
}

const FLUSH_MS = 2_000;

export function usageMeter(options: {
  readonly publisher: Publisher;
  /** Names this process among all that ever counted. */
  readonly process: string;
  readonly log: Log;
  readonly now?: () => Date;
}): Meter {
  const { publisher, process, log, now = () => new Date() } = options;
  const totals = new Map<string, Total>();
  const write = async (total: Total) => {
    const { day, tenant, events, bytes } = total;
    // Counted meanwhile means not written: the flag is raised before the answer and lowered by the next count.
    total.isWritten = true;
    await publisher.publish(subjects.usage(day, tenant, process), JSON.stringify({ events, bytes })).catch((error) => {
      total.isWritten = false;
      throw error;
    });
  };
  const flush = async () => {
    const today = dayOf(now());
    for (const [key, { day, isWritten }] of totals) if (isWritten && day < today) totals.delete(key);
    await Promise.all([...totals.values()].filter((total) => !total.isWritten).map(write));
  };
  const tryFlush = () => flush().catch((error) => log.warn("usage.flush_failed", { error }));
  const flushing = setInterval(tryFlush, FLUSH_MS);
  return {
    count(tenant, sizeBytes) {
      const day = dayOf(now());
      const key = `${day} ${tenant}`;
      let total = totals.get(key);
      if (!total) totals.set(key, total = { day, tenant, events: 0, bytes: 0, isWritten: true });
      total.events++;
      total.bytes += sizeBytes;
      total.isWritten = false;
    },
    flush,
    async [Symbol.asyncDispose]() {
      clearInterval(flushing);
      await tryFlush();
    },
  };
}

export type ReadUsage = (query: UsageQuery) => Promise<Usage[]>;

/** Sums what all processes wrote. */
export const usageReader = (nc: NatsConnection): ReadUsage => async ({ tenant, from = "", to = "9999-12-31" }) => {
  const consumer = await jetstream(nc).consumers.get(usageStream.name, {
    filter_subjects: [subjects.usage("*", tenant ?? "*", "*")],
    deliver_policy: DeliverPolicy.LastPerSubject,
  });
  const sums = new Map<string, Usage>();
  for (let pending = (await consumer.info()).num_pending; pending > 0;) {
    const messages = await consumer.fetch({ max_messages: 1_000, expires: 5_000 });
    let got = 0;
    for await (const msg of messages) {
      got++;
      pending = msg.info.pending;
      const key = parseUsage(msg.subject);
      if (key && key.day >= from && key.day <= to) add(sums, key.day, key.tenant, msg.json());
      if (pending === 0) break;
    }
    if (got === 0) throw new Error("The usage stream stopped answering");
  }
  return [...sums.values()].sort((a, b) => a.day.localeCompare(b.day) || a.tenant.localeCompare(b.tenant));
};

function add(sums: Map<string, Usage>, day: string, tenant: string, more: { events: number; bytes: number }): void {
  const { events, bytes } = sums.get(`${day} ${tenant}`) ?? { events: 0, bytes: 0 };
  sums.set(`${day} ${tenant}`, { tenant, day, events: events + more.events, bytes: bytes + more.bytes });
}

const dayOf = (moment: Date) => moment.toISOString().slice(0, 10);
