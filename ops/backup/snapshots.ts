/** JetStream in a backup: the broker's own copies of streams, with what their consumers have handed out. */
import { jetstreamManager } from "@nats-io/jetstream";
import { createInbox, type Msg, type NatsConnection } from "@nats-io/nats-core";
import { publisher } from "../../runtime/publish.ts";
import type { Snapshot } from "./archive.ts";

export interface Taking extends Pick<Snapshot, "config" | "state"> {
  /** To be read to its end at once: the broker waits a few seconds for a reader, no longer. */
  readonly chunks: AsyncIterable<Uint8Array>;
}

const ANSWER_MS = 30_000;
/** Between two chunks: a broker asks every consumer of the stream before it sends the first. */
const SILENCE_MS = 60_000;
/** After the last chunk the broker opens what it was sent; an old one reads all of it through first. */
const OPENING_MS = 600_000;
export const CHUNK_BYTES = 512 * 1024;
/** Fillers on their way at once. */
const WINDOW = 500;

/**
 * The stream as it is now. Its end and the state of its consumers are of this moment; what is taken out while the
 * messages are being read may be missing.
 */
export async function takeSnapshot(nc: NatsConnection, stream: string, consumers: boolean): Promise<Taking> {
  const inbox = createInbox();
  const arriving = nc.subscribe(inbox);
  try {
    const { config, state } = await ask<Pick<Snapshot, "config" | "state">>(nc, `$JS.API.STREAM.SNAPSHOT.${stream}`, {
      deliver_subject: inbox,
      no_consumers: !consumers,
      chunk_size: CHUNK_BYTES,
    });
    return { config, state, chunks: chunksOf(arriving, stream) };
  } catch (error) {
    arriving.unsubscribe();
    throw new Error(`Stream ${stream} cannot be copied: ${(error as Error).message}`, { cause: error });
  }
}

async function* chunksOf(
  arriving: AsyncIterable<Msg> & { unsubscribe(): void },
  stream: string,
): AsyncGenerator<Uint8Array> {
  const silence = setTimeout(() => arriving.unsubscribe(), SILENCE_MS);
  try {
    for await (const msg of arriving) {
      silence.refresh();
      // The last one is empty; its status says how it ended, and none at all that it was short and went well.
      if (msg.data.length === 0) {
        if ((msg.headers?.code ?? 204) === 204) return;
        throw new Error(`The copy of stream ${stream} broke off: ${msg.headers!.code} ${msg.headers!.description}`);
      }
      yield msg.data;
      // Asked for again only when it is written: this is what keeps the broker from running ahead of the disk.
      if (msg.reply) msg.respond();
    }
    throw new Error(`The copy of stream ${stream} broke off: the broker fell silent`);
  } finally {
    clearTimeout(silence);
    arriving.unsubscribe();
  }
}

/** Makes a stream anew from its copy. */
export async function restoreSnapshot(
  nc: NatsConnection,
  { name, state }: Snapshot,
  config: Snapshot["config"],
  chunks: AsyncIterable<Uint8Array>,
): Promise<void> {
  try {
    const { deliver_subject } = await ask<{ deliver_subject: string }>(nc, `$JS.API.STREAM.RESTORE.${name}`, {
      config,
      state,
    });
    const send = async (chunk: Uint8Array, timeout: number) => {
      const answer = await nc.request(deliver_subject, chunk, { timeout });
      if (answer.data.length > 0) answered(answer);
    };
    for await (const chunk of chunks) await send(chunk, SILENCE_MS);
    await send(new Uint8Array(), OPENING_MS);
  } catch (error) {
    throw new Error(`Stream ${name} cannot be restored: ${(error as Error).message}`, { cause: error });
  }
}

/**
 * Lets a stream give out no number up to `used` again. Deliveries and their notes speak of events and of each other by
 * number; those that were copied later than their event's stream would otherwise come to mean another event.
 */
export async function leaveOut(
  nc: NatsConnection,
  { config, used }: Pick<Snapshot, "config" | "used">,
): Promise<void> {
  const { streams } = await jetstreamManager(nc);
  const subject = config.subjects![0]!.replace(/[*>]$/, "left-out");
  const { state } = await streams.info(config.name);
  await using fillers = publisher(nc);
  for (let left = used - state.last_seq; left > 0; left -= WINDOW) {
    await Promise.all(Array.from({ length: Math.min(WINDOW, left) }, () => fillers.publish(subject, "")));
  }
  if (used > state.last_seq) await streams.purge(config.name, { filter: subject });
}

async function ask<T>(nc: NatsConnection, subject: string, body: unknown): Promise<T> {
  return answered<T>(await nc.request(subject, JSON.stringify(body), { timeout: ANSWER_MS }));
}

function answered<T>(msg: Msg): T {
  const answer = msg.json<T & { error?: { description?: string } }>();
  if (answer.error) throw new Error(answer.error.description ?? "refused");
  return answer;
}
