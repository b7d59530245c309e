/** The bodies of events, read from EVENTS by sequence and kept for the other agents that receive them. */
import type { Msg } from "@nats-io/nats-core";
import { subjects } from "../../contracts/subjects.ts";
import { leaderGet, type Wire } from "./wire.ts";

/** A CloudEvent as it was accepted. */
export interface StoredEvent {
  readonly event: {
    readonly id: string;
    readonly type: string;
    readonly source: string;
    readonly [name: string]: unknown;
  };
  readonly sizeBytes: number;
}

export interface Events {
  /** Those that are still there. */
  read(tenant: string, seqs: readonly number[]): Promise<ReadonlyMap<number, StoredEvent>>;
}

const STREAM = "EVENTS";
const CACHE_BYTES = 64 * 1024 * 1024;
/** Parsed, a body takes about this much more room than its JSON, and no less than a little. */
const weightOf = ({ sizeBytes }: StoredEvent) => 3 * sizeBytes + 500;
/** What lies between two wanted events comes along in a batch: worth it while it is little. */
const MAX_GAP = 4;
const MAX_RUN_BYTES = 4 * 1024 * 1024;
const READ_MS = 5_000;

export function events(wire: Wire, cacheBytes: number = CACHE_BYTES): Events {
  const kept = new Map<number, StoredEvent & { readonly subject: string }>();
  const onTheirWay = new Map<number, Promise<void>>();
  let keptBytes = 0;

  const keep = (seq: number, subject: string, body: Uint8Array) => {
    if (kept.has(seq)) return;
    const stored = { event: JSON.parse(decoder.decode(body)), sizeBytes: body.length, subject };
    kept.set(seq, stored);
    keptBytes += weightOf(stored);
    for (const [old, entry] of kept) {
      if (keptBytes <= cacheBytes || old === seq) break;
      kept.delete(old);
      keptBytes -= weightOf(entry);
    }
  };

  const fetchOne = async (seq: number) => {
    const msg = await wire.ask(`$JS.API.DIRECT.GET.${STREAM}`, JSON.stringify({ seq }));
    if (msg && !msg.headers?.code) return keep(seq, subjectOf(msg), msg.data);
    // A follower may be behind; only its leader can say that an event is gone.
    const found = await leaderGet(wire, STREAM, { seq });
    if (found) keep(seq, found.subject, encoder.encode(JSON.stringify(found.json())));
  };

  const fetchRun = async (subject: string, run: readonly number[]) => {
    const [first, last] = [run[0]!, run.at(-1)!];
    if (run.length > 1) {
      const most = last - first + 1;
      const body = { seq: first, next_by_subj: subject, batch: most, max_bytes: MAX_RUN_BYTES };
      const { messages } = await wire.gather(`$JS.API.DIRECT.GET.${STREAM}`, JSON.stringify(body), {
        most: Infinity,
        limitMs: READ_MS,
      });
      for (const msg of messages) keep(Number(msg.headers?.get("Nats-Sequence")), subject, msg.data);
    }
    await Promise.all(run.filter((seq) => !kept.has(seq)).map(fetchOne));
  };

  return {
    async read(tenant, seqs) {
      const subject = subjects.event(tenant);
      const found = new Map<number, StoredEvent>();
      const take = (seq: number) => {
        const stored = kept.get(seq);
        if (stored?.subject === subject) found.set(seq, stored);
        return stored !== undefined;
      };
      const missing = [...new Set(seqs)].filter((seq) => !take(seq)).sort((a, b) => a - b);
      if (missing.length === 0) return found;
      const fetched = runsOf(missing.filter((seq) => !onTheirWay.has(seq))).map((run) => {
        const done = fetchRun(subject, run).finally(() => run.forEach((seq) => onTheirWay.delete(seq)));
        run.forEach((seq) => onTheirWay.set(seq, done));
        return done;
      });
      await Promise.all([...fetched, ...missing.map((seq) => onTheirWay.get(seq))]);
      // A body larger than what the cache had room for may have gone again; it is read once more, for this call alone.
      for (const seq of missing) if (!take(seq)) await fetchOne(seq).then(() => take(seq));
      return found;
    },
  };
}

const decoder = new TextDecoder();
const encoder = new TextEncoder();
const subjectOf = (msg: Msg) => msg.headers?.get("Nats-Subject") ?? "";

/** Sorted sequences, cut where the gap is not worth reading. */
function runsOf(seqs: readonly number[]): number[][] {
  const runs: number[][] = [];
  for (const seq of seqs) {
    const run = runs.at(-1);
    if (run && seq - run.at(-1)! <= MAX_GAP) run.push(seq);
    else runs.push([seq]);
  }
  return runs;
}
