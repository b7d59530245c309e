/**
 * Which events have been fanned out. A broker that is killed forgets the acknowledgements of its last moments and hands
 * those events out again; and a delivery that its agent has acknowledged meanwhile is no longer there to be recognised.
 * A note in a stream of its own survives, because a stored message is one that was written.
 */
import { jetstreamManager } from "@nats-io/jetstream";
import type { NatsConnection } from "@nats-io/nats-core";
import { fannedStream } from "../../contracts/streams.ts";
import { subjects } from "../../contracts/subjects.ts";
import type { Taken } from "../../runtime/consume.ts";
import type { Log } from "../../runtime/log.ts";
import type { Publisher } from "../../runtime/publish.ts";

export interface Progress {
  /** Those of a batch that were fanned out before. Reads the notes only when something hints at it. */
  fannedAmong(batch: readonly Pick<Taken, "seq" | "attempt">[]): Promise<ReadonlySet<number>>;
  /** Writes down what is fanned out, before the broker is told. */
  note(seqs: readonly number[]): Promise<void>;
}

/** How far before the last note one may be missed: several times the wait after which an event comes back. */
const LOOK_BACK_MS = 120_000;
const TRIES = 3;

export function progressIn(nc: NatsConnection, publisher: Publisher, log: Log): Progress {
  let fanned: ReadonlySet<number> = new Set();
  let highest = 0;
  let isFresh = false;
  void (async () => {
    for await (const status of nc.status()) if (status.type === "reconnect") isFresh = false;
  })();
  return {
    async fannedAmong(batch) {
      // Another connection than before, an event for the second time, or one from before the last: the broker may
      // have stepped back.
      if (!isFresh || batch.some(({ seq, attempt }) => attempt > 1 || seq <= highest)) {
        isFresh = true;
        fanned = await readNotes(nc).catch((error) => {
          isFresh = false;
          throw error;
        });
      }
      for (const { seq } of batch) if (seq > highest) highest = seq;
      return fanned;
    },
    async note(seqs) {
      if (seqs.length === 0) return;
      for (let attempt = 1; attempt <= TRIES; attempt++) {
        try {
          return void await publisher.publish(subjects.fanned, JSON.stringify(seqs));
        } catch (error) {
          // The deliveries are stored; without the note only a broker that dies now could double them.
          log.warn("fanout.note_failed", { attempt, error });
        }
      }
    },
  };
}

async function readNotes(nc: NatsConnection): Promise<Set<number>> {
  const manager = await jetstreamManager(nc, { checkAPI: false });
  const { state } = await manager.streams.info(fannedStream.name);
  const found = new Set<number>();
  if (state.messages === 0) return found;
  let next: { start_time: Date } | { seq: number } = {
    start_time: new Date(new Date(state.last_ts).getTime() - LOOK_BACK_MS),
  };
  for (let last = 0; last < state.last_seq;) {
    const before = last;
    const notes = await manager.direct.getBatch(fannedStream.name, { ...next, batch: 1_000 });
    for await (const note of notes) {
      last = note.seq;
      for (const seq of note.json<number[]>()) found.add(seq);
    }
    if (last === before) throw new Error("The notes on what was fanned out cannot be read to their end");
    next = { seq: last + 1 };
  }
  return found;
}
