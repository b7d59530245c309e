/**
 * Reads one broker's address for as long as it is ours: connects, asks for as much as the pipeline can take, stores
 * each message before it is accepted, rejects what can never be an event, and connects again when the link breaks.
 */
import type { Delivery, Message } from "rhea-promise";
import { faultFrom } from "../../contracts/errors.ts";
import type { Published } from "../../contracts/events.ts";
import type { AmqpSecrets, ConnectorLoad, ConnectorRoute, ConnectorStatus } from "../../contracts/ingestion.ts";
import type { Log } from "../../runtime/log.ts";
import { pause } from "../../runtime/pause.ts";
import { type Link, openLink } from "./amqp.ts";
import { MAX_BODY_BYTES, type Received, receivedIn } from "./message.ts";
import type { Pressure } from "./pressure.ts";

/** What became of a message. */
export type Outcome = "accepted" | "duplicate" | "released" | { readonly rejected: string };

export interface ReaderDeps {
  readonly id: string;
  readonly route: ConnectorRoute;
  readonly secrets: AmqpSecrets;
  /** Settles when the event is stored. */
  readonly ingest: (message: Received) => Promise<Published>;
  readonly pressure: Pick<Pressure, "isHigh" | "onEase">;
  readonly note: {
    status(status: ConnectorStatus, error?: string): void;
    reconnected(): void;
    received(): void;
    settled(outcome: Outcome, messageId: string | null): void;
  };
  readonly log: Log;
  readonly open?: typeof openLink;
}

export interface Reader extends AsyncDisposable {
  load(): ConnectorLoad;
}

const FIRST_DELAY_MS = 250;
const MAX_DELAY_MS = 30_000;
/** A link that held this long was a good one: the next failure is a first again. */
const GOOD_LINK_MS = 10_000;
/** What ingest cannot explain may be its own fault, so a message gets more than one chance. */
const MAX_RIDDLES = 5;

export function startReader(deps: ReaderDeps): Reader {
  const { id, route: { settings }, secrets, pressure, note, log, open = openLink } = deps;
  const stop = new AbortController();
  const stopped = new Promise<string>((done) => stop.signal.addEventListener("abort", () => done("stopped")));
  /** Since when; the oldest first. */
  const inHand = new Map<Promise<void>, Date>();
  let links = 0;
  let link: Link | undefined;
  /** How many of the messages asked for have not come yet. */
  let asked = 0;

  const readOnce = async (): Promise<string> => {
    note.status("connecting");
    asked = 0;
    link = undefined;
    const broken = new AbortController();
    const topUp = () => {
      if (!link || stop.signal.aborted) return;
      note.status(pressure.isHigh() ? "held" : "connected");
      // Only when everything asked for has come: RabbitMQ 3 sends more than was granted when credit is added to a link
      // with messages on their way (rabbitmq-server#2597). And by the half, because each grant costs a round trip.
      if (pressure.isHigh() || asked > 0 || inHand.size > settings.credit / 2) return;
      asked = settings.credit - inHand.size;
      link.addCredit(asked);
    };
    const opened = await open(`sensorium-${id}`, settings, secrets, (message, delivery) => {
      asked = Math.max(0, asked - 1);
      note.received();
      const work: Promise<void> = take(deps, message, delivery, { stop: stop.signal, broken: broken.signal })
        .catch((error) => log.error("connector.message_failed", { error }))
        .finally(() => {
          inHand.delete(work);
          topUp();
        });
      inHand.set(work, new Date());
    }, stop.signal);
    link = opened;
    if (links++ > 0) note.reconnected();
    topUp();
    const eased = pressure.onEase(topUp);
    const reason = await Promise.race([opened.ended, stopped]);
    eased.stop();
    if (!stop.signal.aborted) broken.abort();
    // What is stored already can still be accepted; what is not goes back to the broker.
    await Promise.all(inHand.keys());
    link = undefined;
    asked = 0;
    await opened[Symbol.asyncDispose]();
    return reason;
  };

  const loop = (async () => {
    for (let failures = 0; !stop.signal.aborted;) {
      const since = performance.now();
      const reason = await readOnce().catch((error: Error) => error.message);
      if (stop.signal.aborted) break;
      failures = performance.now() - since > GOOD_LINK_MS ? 0 : failures + 1;
      log.warn("connector.link_lost", { reason, failures });
      note.status("connecting", reason);
      await pause(delayAfter(failures), stop.signal);
    }
  })();

  return {
    load: () => ({
      unsettled: inHand.size,
      oldest_unsettled_at: inHand.values().next().value?.toISOString() ?? null,
      credit: asked,
      waiting: link?.waiting() ?? null,
    }),
    async [Symbol.asyncDispose]() {
      stop.abort();
      await loop;
    },
  };
}

/** Holds on to a message until it is stored, can be refused for good, or is no longer ours. */
async function take(
  { route, ingest, note, log }: ReaderDeps,
  message: Message,
  delivery: Pick<Delivery, "accept" | "reject" | "release">,
  { stop, broken }: { stop: AbortSignal; broken: AbortSignal },
): Promise<void> {
  const signal = AbortSignal.any([stop, broken]);
  // Over a link that broke meanwhile nothing can be said: the broker sends the message again, a duplicate by then.
  const tell = (verdict: () => void) => broken.aborted ? undefined : verdict();
  const refuse = (reason: string, id: string | null) => {
    tell(() => delivery.reject({ condition: "amqp:invalid-field", description: reason }));
    note.settled({ rejected: reason }, id);
  };
  const received = readable(message);
  if (!received) return refuse("The message cannot be read", null);
  const id = received.message_id ?? null;
  const size = Math.floor(received.body.length * 3 / 4);
  if (size > MAX_BODY_BYTES) return refuse(`The body has ${size} bytes; the limit is ${MAX_BODY_BYTES}`, id);
  for (let failures = 0, riddles = 0; !signal.aborted; failures++) {
    try {
      const { status } = await ingest(received);
      tell(() => delivery.accept());
      return note.settled(status, id);
    } catch (thrown) {
      const fault = faultFrom(thrown);
      if (fault.code === "invalid_event" || fault.code === "validation_failed") return refuse(fault.message, id);
      if (fault.code === "internal_error" && ++riddles >= MAX_RIDDLES) {
        return refuse(`It could not be taken in after ${MAX_RIDDLES} tries`, id);
      }
      if (failures === 0) log.warn("connector.pipeline_away", { source: route.source, error: fault });
      await pause(delayAfter(failures + 1), signal);
    }
  }
  tell(() => {
    delivery.release();
    note.settled("released", id);
  });
}

/** What a message holds; undefined for values that have no form outside AMQP. */
function readable(message: Message): Received | undefined {
  try {
    return receivedIn(message);
  } catch {
    return undefined;
  }
}

/** Doubling, with jitter over the upper half: a fleet that lost its broker must not come back in one step. */
export const delayAfter = (failures: number, random = Math.random): number => {
  const most = Math.min(MAX_DELAY_MS, FIRST_DELAY_MS * 2 ** Math.min(failures - 1, 10));
  return most * (0.5 + random() / 2);
};
