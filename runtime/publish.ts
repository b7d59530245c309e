/**
 * Publishing into streams, many at a time: every acknowledgement comes back through one inbox. A publish of the
 * client's own costs a request each, four times the processor time (docs/decisions/fan-out.md).
 */
import { createInbox, type Msg, type MsgHdrs, type NatsConnection } from "@nats-io/nats-core";
import { unavailable } from "../contracts/errors.ts";

export interface Stored {
  readonly seq: number;
  /** The stream had a message with this `Nats-Msg-Id` already; `seq` is that one's. */
  readonly duplicate: boolean;
}

export interface Publisher extends AsyncDisposable {
  /**
   * Settles when the stream has stored the message. Rejects with `service_unavailable` when that is not known in time:
   * the message may be stored then, so whoever repeats it names it by a `Nats-Msg-Id`.
   */
  publish(subject: string, body: string | Uint8Array, headers?: Readonly<Record<string, string>>): Promise<Stored>;
}

/** What the server says of a publish it refused. */
export class PublishRefused extends Error {
  override readonly name = "PublishRefused";
  readonly code: number;
  constructor(subject: string, error: { err_code?: number; code?: number; description?: string }) {
    super(`Cannot store a message on ${subject}: ${error.description ?? "refused"}`);
    this.code = error.err_code ?? error.code ?? 0;
  }
}

interface Waiting {
  readonly subject: string;
  readonly until: number;
  resolve(stored: Stored): void;
  reject(error: Error): void;
}

const SWEEP_MS = 250;

export function publisher(nc: NatsConnection, timeoutMs = 5_000): Publisher {
  const inbox = createInbox();
  const waiting = new Map<string, Waiting>();
  let next = 0;
  const subscription = nc.subscribe(`${inbox}.*`, {
    callback: (error, msg) => {
      if (error) return;
      const token = msg.subject.slice(inbox.length + 1);
      const entry = waiting.get(token);
      if (!entry) return;
      waiting.delete(token);
      settle(entry, msg);
    },
  });
  // One timer for all: they all wait equally long, so the oldest come first.
  const sweep = setInterval(() => {
    const now = performance.now();
    for (const [token, entry] of waiting) {
      if (entry.until > now) break;
      waiting.delete(token);
      entry.reject(unavailable(`The stream of ${entry.subject} did not answer in time`, undefined, 2));
    }
  }, SWEEP_MS);
  sweep.unref?.();
  return {
    publish(subject, body, headers) {
      const { promise, resolve, reject } = Promise.withResolvers<Stored>();
      const token = (next++).toString(36);
      waiting.set(token, { subject, until: performance.now() + timeoutMs, resolve, reject });
      try {
        nc.publish(subject, body, {
          reply: `${inbox}.${token}`,
          ...(headers ? { headers: written(headers) } : {}),
        });
      } catch (error) {
        waiting.delete(token);
        reject(unavailable("The bus is away; try again shortly", error));
      }
      return promise;
    },
    async [Symbol.asyncDispose]() {
      clearInterval(sweep);
      subscription.unsubscribe();
      for (const entry of waiting.values()) entry.reject(unavailable("The publisher was closed"));
      waiting.clear();
    },
  };
}

function settle(entry: Waiting, msg: Msg): void {
  if (msg.data.length === 0) {
    // 503: no stream takes this subject just now; it is being made, or elects a leader.
    return entry.reject(unavailable(`No stream takes ${entry.subject} just now`));
  }
  const answer = msg.json<{ seq?: number; duplicate?: boolean; error?: { code?: number; err_code?: number } }>();
  if (answer.error?.code === 503) entry.reject(unavailable(`The stream of ${entry.subject} is away`, answer.error));
  else if (answer.error || answer.seq === undefined) {
    entry.reject(new PublishRefused(entry.subject, answer.error ?? {}));
  } else entry.resolve({ seq: answer.seq, duplicate: answer.duplicate === true });
}

const encoder = new TextEncoder();

/** The client asks its headers for one thing only: their bytes. Building them any other way costs 5 µs more. */
const written = (fields: Readonly<Record<string, string>>): MsgHdrs => {
  let text = "NATS/1.0\r\n";
  for (const name in fields) text += `${name}: ${fields[name]!.replace(/[\r\n]+/g, " ")}\r\n`;
  return { encode: () => encoder.encode(`${text}\r\n`) } as unknown as MsgHdrs;
};
