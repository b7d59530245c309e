/**
 * What streams have written lately. A reader that comes back names the last event it got (`Last-Event-ID`); what its
 * stream wrote after that never reached it, and is due on its next one. The gateway that had the stream remembers, and
 * the others ask it. Should it be gone, the visibility timeout brings the same deliveries later.
 */
import type { NatsConnection } from "@nats-io/nats-core";
import { z } from "zod";
import { HandedOut } from "../contracts/deliveries.ts";
import { subjects } from "../contracts/subjects.ts";

/** Whose stream it is; a caller of any kind has these. */
const Reader = z.object({ tenant: z.string(), id: z.string() });
type Reader = z.output<typeof Reader>;

/** One stream, seen from the side that writes it. */
export interface Writing {
  /** `again` where another stream had written it before. */
  wrote(handed: HandedOut, again: boolean): void;
  /** The stream has ended; these would have come next. */
  ended(due: readonly HandedOut[]): void;
}

export interface Sent extends AsyncDisposable {
  /** `after` is what its reader got last elsewhere; `end` ends it from outside and answers what would have come next. */
  begin(reader: Reader, after: string | undefined, end: () => Promise<HandedOut[]>): Writing;
  /** How many streams it has here, those of which we do not know yet that they broke included. */
  streamsOf(reader: Reader): number;
  /** What is due to a reader whose last event was this one. The stream it had ends, if it has not. */
  takeOver(reader: Reader, lastId: string): Promise<HandedOut[]>;
}

interface Page {
  readonly key: string;
  lines: (HandedOut & { readonly again: boolean })[];
  /** While it is being written. */
  end?: () => Promise<HandedOut[]>;
  endedAtMs: number;
}

/** More than lies in the buffers between us and a reader of small events. */
const MAX_LINES = 1_000;
const MAX_PAGES_OF_ONE = 32;
/** Of all ended streams together: some 20 MB. */
const MAX_WEIGHT = 200_000;
const weightOf = ({ lines }: Page) => lines.length + 8;
const KEPT_MS = 10 * 60_000;
/** How long a stream has to say what it holds: it may be waiting for the service, which is told to stop. */
const END_MS = 500;
const ASK_MS = 1_000;

const Question = z.object({ reader: Reader, lastId: z.string() });
const Answer = z.array(HandedOut);

export function sentOver(nc: NatsConnection): Sent {
  const pages = new Map<string, Set<Page>>();
  /** Oldest first. */
  const ended = new Set<Page>();
  let endedWeight = 0;

  const forget = (page: Page) => {
    if (ended.delete(page)) endedWeight -= weightOf(page);
    const own = pages.get(page.key);
    if (own?.delete(page) && own.size === 0) pages.delete(page.key);
  };

  const keepEnded = (page: Page, own: ReadonlySet<Page>) => {
    ended.add(page);
    endedWeight += weightOf(page);
    const ownEnded = [...own].filter(({ end }) => !end);
    ownEnded.slice(0, -MAX_PAGES_OF_ONE).forEach(forget);
    for (const old of ended) {
      if (endedWeight <= MAX_WEIGHT && old.endedAtMs > page.endedAtMs - KEPT_MS) break;
      forget(old);
    }
  };

  /** Undefined when no stream of ours wrote it. */
  const takeOverHere = async (reader: Reader, lastId: string): Promise<HandedOut[] | undefined> => {
    const newestFirst = [...pages.get(keyOf(reader)) ?? []].reverse();
    const page = newestFirst.find(({ end, lines }) => !end && lines.some(({ id }) => id === lastId)) ??
      // What was written elsewhere before may be known to several readers, and says nothing against one that listens.
      newestFirst.find(({ lines }) => lines.some(({ id, again }) => id === lastId && !again));
    if (!page) return undefined;
    forget(page);
    const inHand = page.end ? await Promise.race([page.end(), nothingAfter(END_MS)]) : [];
    const after = page.lines.slice(page.lines.findLastIndex(({ id }) => id === lastId) + 1);
    return [...after, ...inHand].map(({ id, attempt }) => ({ id, attempt }));
  };

  const questions = nc.subscribe(subjects.streamTakenOver, {
    callback: (error, msg) => {
      const { data } = error ? {} : Question.safeParse(msg.json());
      if (data) void takeOverHere(data.reader, data.lastId).then((due) => due && msg.respond(JSON.stringify(due)));
    },
  });

  return {
    begin(reader, after, end) {
      const key = keyOf(reader);
      const page: Page = { key, lines: after ? [{ id: after, attempt: 1, again: true }] : [], end, endedAtMs: 0 };
      const own = pages.get(key) ?? new Set();
      pages.set(key, own.add(page));
      return {
        wrote(handed, again) {
          page.lines.push({ ...handed, again });
          if (page.lines.length > 2 * MAX_LINES) page.lines = page.lines.slice(-MAX_LINES);
        },
        ended(due) {
          const isTakenOver = !own.has(page);
          if (isTakenOver || !page.end) return;
          delete page.end;
          page.lines.push(...due.map((handed) => ({ ...handed, again: true })));
          page.endedAtMs = Date.now();
          if (page.lines.length === 0) forget(page);
          else keepEnded(page, own);
        },
      };
    },

    streamsOf: (reader) => [...pages.get(keyOf(reader)) ?? []].filter(({ end }) => end).length,

    async takeOver({ tenant, id }, lastId) {
      const here = await takeOverHere({ tenant, id }, lastId);
      if (here) return here;
      const question: z.input<typeof Question> = { reader: { tenant, id }, lastId };
      try {
        const answer = await nc.request(subjects.streamTakenOver, JSON.stringify(question), { timeout: ASK_MS });
        return Answer.parse(answer.json());
      } catch {
        return []; // Nobody knows of it.
      }
    },

    async [Symbol.asyncDispose]() {
      questions.unsubscribe();
    },
  };
}

const nothingAfter = (ms: number) => new Promise<HandedOut[]>((done) => setTimeout(() => done([]), ms));
const keyOf = ({ tenant, id }: Reader) => `${tenant}.${id}`;
