/**
 * Publishing into streams, many at a time: every acknowledgement comes back through one inbox. A publish of the
 * client's own costs a request each, four times the processor time (docs/decisions/fan-out.md).
 */
import type { Msg, NatsConnection } from "@nats-io/nats-core";
import { unavailable } from "../contracts/errors.ts";
import { type Headers, NoAnswer, openInbox } from "./inbox.ts";

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
  publish(subject: string, body: string | Uint8Array, headers?: Headers): Promise<Stored>;
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

export function publisher(nc: NatsConnection, timeoutMs = 5_000): Publisher {
  const inbox = openInbox(nc);
  return {
    publish: (subject, body, headers) =>
      inbox.request(subject, body, timeoutMs, headers).then((msg) => storedIn(msg, subject), (error) => {
        throw error instanceof NoAnswer ? explain(error, subject) : error;
      }),
    [Symbol.asyncDispose]: () => inbox[Symbol.asyncDispose](),
  };
}

function storedIn(msg: Msg, subject: string): Stored {
  const answer = msg.json<{ seq?: number; duplicate?: boolean; error?: { code?: number; err_code?: number } }>();
  if (answer.error?.code === 503) throw unavailable(`The stream of ${subject} is away`, answer.error);
  if (answer.error || answer.seq === undefined) throw new PublishRefused(subject, answer.error ?? {});
  return { seq: answer.seq, duplicate: answer.duplicate === true };
}

function explain(error: NoAnswer, subject: string) {
  // Nobody: the stream is being made, or elects a leader.
  if (error.why === "nobody") return unavailable(`No stream takes ${subject} just now`, error);
  if (error.why === "timeout") return unavailable(`The stream of ${subject} did not answer in time`, error, 2);
  return unavailable("The bus is away; try again shortly", error);
}
