/**
 * Server-sent events. The service is asked for the next deliveries only when the reader has taken the last ones, so a
 * slow reader holds no memory and no more leases than one round of them. A delivery is acknowledged by request as ever:
 * what a reader did not get, because it left or its line broke, comes again, on this stream or the next.
 */
import type { Delivery, HandedOut } from "../contracts/deliveries.ts";
import { ruleBroken } from "../contracts/errors.ts";
import { idPrefixes, newId, type TenantCaller, ulid } from "../contracts/identity.ts";
import type { Input } from "../contracts/operations.ts";
import type { Bus } from "../runtime/bus.ts";
import type { Sent } from "./sent.ts";

export interface StreamOptions {
  readonly bus: Pick<Bus, "ask" | "giveUp">;
  readonly sent: Sent;
  readonly input: Input<"delivery.stream">;
  /** What each item is called. */
  readonly event: string;
  readonly origin: { readonly caller: TenantCaller; readonly requestId: string };
  /** What the reader says it got last, as it came. */
  readonly lastEventId: string | undefined;
  /** Asked before anything is handed over: a token may be revoked while its stream is open. */
  readonly isStillAllowed: () => Promise<boolean>;
  readonly stopping: AbortSignal;
}

export const streamHeaders = {
  "content-type": "text/event-stream; charset=utf-8",
  "cache-control": "no-store",
  // A proxy that collects the answer before passing it on would pass on nothing.
  "x-accel-buffering": "no",
};

const NAME = "delivery.stream";
const HEARTBEAT_SECONDS = 15;
/** Of one agent at one gateway. Each waits at the broker, which lets 512 of them wait for an agent. */
const MAX_STREAMS = 100;
const tooMany = () => ruleBroken("too_many_streams", `An agent has at most ${MAX_STREAMS} streams open at a gateway`);
const PAUSE_MS = 1_000;

/** A delivery in hand for the reader; `again` where an earlier stream of its own had written it. */
interface Next {
  readonly delivery: Delivery;
  readonly again: boolean;
}

/** Answers once the service has agreed to a first round. */
export async function openStream(options: StreamOptions): Promise<ReadableStream<Uint8Array>> {
  const { bus, sent, input, event, origin, isStillAllowed, stopping } = options;
  const lastId = deliveryIdIn(options.lastEventId);
  const left = new AbortController();
  let seed = "";
  let unsent: Next[] = [];
  /** Written on the stream that this one goes on from, and not got by its reader. */
  let due: HandedOut[] = [];
  let successor: ((inHand: HandedOut[]) => void) | undefined;
  let isPulling = false;

  const poll = async (wait: number): Promise<Next[]> => {
    seed = ulid();
    const asked = { ...input, query: { ...input.query, wait } };
    const answer = await bus.ask(NAME, asked, { ...origin, seed });
    return answer.read().deliveries.map((delivery) => ({ delivery, again: false }));
  };
  const resend = async (): Promise<Next[]> => {
    const body = { deliveries: due.slice(0, input.query.limit) };
    const answer = await bus.ask("delivery.resend", { path: {}, query: {}, body }, { ...origin, seed: ulid() });
    const { deliveries, rest } = answer.read();
    due = [...rest, ...due.slice(body.deliveries.length)];
    return deliveries.map((delivery) => ({ delivery, again: true }));
  };
  const round = async (wait: number): Promise<Next[]> => {
    while (due.length > 0 && !left.signal.aborted) {
      const found = await resend();
      if (found.length > 0) return found;
    }
    return left.signal.aborted ? [] : await poll(wait);
  };

  const leave = () => {
    if (left.signal.aborted) return;
    left.abort();
    bus.giveUp(NAME, seed);
  };
  /** Nothing more is taken or written. What the reader had before is kept for its return; the rest any reader may have. */
  const end = async () => {
    stopping.removeEventListener("abort", leave);
    const inHand = unsent;
    unsent = [];
    if (successor) return successor([...inHand.map(handedOut), ...due]);
    writing.ended([...inHand.filter(({ again }) => again).map(handedOut), ...due]);
    await release(inHand.filter(({ again }) => !again));
  };
  const release = async (fresh: readonly Next[]) => {
    if (fresh.length === 0) return;
    const body = { delivery_ids: fresh.map(({ delivery }) => delivery.id), delay_seconds: 0 };
    const seeded = { ...origin, requestId: newId("request"), seed: ulid() };
    await bus.ask("delivery.nack", { path: {}, query: {}, body }, seeded).catch(() => {});
  };
  const takenOver = () =>
    new Promise<HandedOut[]>((resolve) => {
      successor = resolve;
      leave();
      if (!isPulling) void end();
    });

  if (lastId) due = await sent.takeOver(origin.caller, lastId);
  const writing = sent.begin(origin.caller, lastId, takenOver);
  try {
    if (sent.streamsOf(origin.caller) > MAX_STREAMS) throw tooMany();
    unsent = await round(0);
  } catch (error) {
    await end();
    throw error;
  }
  stopping.addEventListener("abort", leave, { once: true });
  let greeted = false;
  const pull = async (controller: ReadableStreamDefaultController<Uint8Array>) => {
    if (!greeted) {
      greeted = true;
      return controller.enqueue(encoder.encode(": open\n\n"));
    }
    if (unsent.length === 0) unsent = await round(HEARTBEAT_SECONDS).catch(() => pause(left.signal));
    if (!await isStillAllowed()) leave();
    if (left.signal.aborted) {
      await end();
      return controller.close();
    }
    const next = unsent.shift();
    if (!next) return controller.enqueue(encoder.encode(": still here\n\n"));
    const { delivery } = next;
    writing.wrote(handedOut(next), next.again);
    controller.enqueue(encoder.encode(`id: ${delivery.id}\nevent: ${event}\ndata: ${JSON.stringify(delivery)}\n\n`));
  };
  return new ReadableStream<Uint8Array>({
    async pull(controller) {
      isPulling = true;
      await pull(controller).finally(() => {
        isPulling = false;
        if (successor) void end();
      });
    },
    async cancel() {
      leave();
      await end();
    },
  }, { highWaterMark: 0 });
}

const handedOut = ({ delivery }: Next): HandedOut => ({ id: delivery.id, attempt: delivery.attempt_count });

/**
 * Anything else is as good as nothing. A reader that is refused does not try again, as EventSource has it, so a wrong id
 * is no reason to refuse.
 */
const deliveryIdIn = (text: string | undefined): string | undefined =>
  text?.startsWith(`${idPrefixes.delivery}_`) && /^[\x21-\x7e]{1,128}$/.test(text) ? text : undefined;

const encoder = new TextEncoder();

/** The service is away: the reader is told that the line stands, and a moment later it is asked again. */
const pause = (signal: AbortSignal): Promise<Next[]> =>
  new Promise((done) => {
    const timer = setTimeout(() => done([]), PAUSE_MS);
    signal.addEventListener("abort", () => (clearTimeout(timer), done([])), { once: true });
  });
