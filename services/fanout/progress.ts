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
  fannedAmong(batch: readonly Pick<Taken, "seq" | "attempt" | "storedAtMs">[]): Promise<ReadonlySet<number>>;
  /** Writes down what is fanned out, before the broker is told. */
  note(seqs: readonly number[]): Promise<void>;
}

/** How far before the last note one may be missed: several times the wait after which an event comes back. */
const LOOK_BACK_MS = 120_000;
/** Two streams may take their time from two servers. */
const CLOCKS_DIFFER_MS = 1_000;
const TRIES = 3;

export function progressIn(nc: NatsConnection, publisher: Publisher, log: Log): Progress {
  let notes: Notes = { fanned: new Map(), last: 0, readAt: -Infinity };
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
        notes = await readNotes(nc, notes).catch((error) => {
          isFresh = false;
          throw error;
        });
      }
      for (const { seq } of batch) if (seq > highest) highest = seq;
      return new Set(batch.filter((event) => isNoted(notes, event)).map(({ seq }) => seq));
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

interface Notes {
  /** When each event was noted, by sequence. */
  readonly fanned: Map<number, number>;
  /** Sequence of the last note read. */
  readonly last: number;
  readonly readAt: number;
}

/** An event that is younger than its note is another one: its stream was made anew, and counts from 1 again. */
const isNoted = ({ fanned }: Notes, { seq, storedAtMs }: Pick<Taken, "seq" | "storedAtMs">): boolean =>
  storedAtMs <= (fanned.get(seq) ?? -Infinity) + CLOCKS_DIFFER_MS;

/** Goes on where it stopped a moment ago, or looks back from the last note there is. */
async function readNotes(nc: NatsConnection, before: Notes): Promise<Notes> {
  const readAt = performance.now();
  const manager = await jetstreamManager(nc, { checkAPI: false });
  const { state } = await manager.streams.info(fannedStream.name);
  const goesOn = readAt - before.readAt < LOOK_BACK_MS && before.last <= state.last_seq;
  const fanned = goesOn ? before.fanned : new Map<number, number>();
  let last = goesOn ? before.last : 0;
  if (state.messages === 0) return { fanned, last: state.last_seq, readAt };
  const start_time = new Date(new Date(state.last_ts).getTime() - LOOK_BACK_MS);
  while (last < state.last_seq) {
    const from = last === 0 ? { start_time } : { seq: last + 1 };
    const read = last;
    for await (const note of await manager.direct.getBatch(fannedStream.name, { ...from, batch: 1_000 })) {
      last = note.seq;
      for (const seq of note.json<number[]>()) fanned.set(seq, note.time.getTime());
    }
    if (last === read) throw new Error("The notes on what was fanned out cannot be read to their end");
  }
  return { fanned, last, readAt };
}
