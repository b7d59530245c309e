/** Questions to the broker: answers of one message come back through one inbox, answers of several each through their own. */
import { createInbox, type Msg, type NatsConnection } from "@nats-io/nats-core";
import { unavailable } from "../../contracts/errors.ts";
import { NoAnswer, openInbox } from "../../runtime/inbox.ts";

export interface Wire extends AsyncDisposable {
  /** The one answer; undefined when nobody is there to give it. */
  ask(subject: string, body: string): Promise<Msg | undefined>;
  /** The answer of the JetStream API, or its error code. */
  api<T>(subject: string, body: unknown): Promise<T | { readonly error: ApiError }>;
  /** Several messages, up to the status that ends them or the number wanted. */
  gather(subject: string, body: string, options: Gathering): Promise<Gathered>;
}

export interface ApiError {
  readonly code: number;
  readonly err_code: number;
  readonly description: string;
}

export interface Gathering {
  /** No status follows the last of so many. */
  readonly most: number;
  readonly limitMs: number;
}

export interface Gathered {
  readonly messages: readonly Msg[];
  /** What the broker ended with: 404 nothing (more), 408 none came in time, 503 nobody there, 204 all sent. */
  readonly status: number;
}

const ANSWER_MS = 5_000;

export function wire(nc: NatsConnection): Wire {
  const inbox = openInbox(nc);
  const ask = async (subject: string, body: string) => {
    try {
      return await inbox.request(subject, body, ANSWER_MS);
    } catch (error) {
      if (error instanceof NoAnswer && error.why === "nobody") return undefined;
      throw unavailable("The broker did not answer in time", error, 2);
    }
  };
  return {
    ask,
    async api<T>(subject: string, body: unknown) {
      const msg = await ask(`$JS.API.${subject}`, JSON.stringify(body));
      if (!msg) throw unavailable("JetStream is away; try again shortly");
      return msg.json<T | { error: ApiError }>();
    },
    gather(subject, body, { most, limitMs }) {
      const { promise, resolve, reject } = Promise.withResolvers<Gathered>();
      const messages: Msg[] = [];
      const own = createInbox();
      const end = (status: number) => {
        clearTimeout(timer);
        answers.unsubscribe();
        resolve({ messages, status });
      };
      const timer = setTimeout(() => end(408), limitMs);
      const answers = nc.subscribe(own, {
        callback: (error, msg) => {
          if (error) return;
          const code = msg.headers?.code ?? 0;
          if (code > 0 && code !== 100) return end(code);
          if (messages.push(msg) === most) end(0);
        },
      });
      try {
        nc.publish(subject, body, { reply: own });
      } catch (error) {
        end(0);
        reject(unavailable("The bus is away; try again shortly", error));
      }
      return promise;
    },
    [Symbol.asyncDispose]: () => inbox[Symbol.asyncDispose](),
  };
}

/** A message as the leader of its stream has it: the truth, where a follower may be behind. */
export interface StoredMessage {
  readonly subject: string;
  readonly seq: number;
  readonly at: number;
  json<T>(): T;
}

export async function leaderGet(
  { api }: Wire,
  stream: string,
  which: { readonly seq: number } | { readonly last_by_subj: string },
): Promise<StoredMessage | undefined> {
  const answer = await api<{ message: { subject: string; seq: number; data?: string; time: string } }>(
    `STREAM.MSG.GET.${stream}`,
    which,
  );
  if ("error" in answer) {
    if (absent.has(answer.error.err_code)) return undefined;
    throw unavailable(`Stream ${stream} cannot be read: ${answer.error.description}`, answer.error);
  }
  const { subject, seq, data = "", time } = answer.message;
  return {
    subject,
    seq,
    at: Date.parse(time),
    json: <T>() => JSON.parse(Buffer.from(data, "base64").toString()) as T,
  };
}

/** Err_codes of a message that is not there: never was, was taken out, or cannot be deleted any more. */
const absent = new Set([10037, 10043, 10057]);

/** True for the one caller who took it out. */
export async function deleteMessage({ api }: Wire, stream: string, seq: number): Promise<boolean> {
  // Without erasing: a secure erase may hang, and the body is elsewhere anyway.
  const answer = await api<{ success: boolean }>(`STREAM.MSG.DELETE.${stream}`, { seq, no_erase: true });
  if (!("error" in answer)) return answer.success;
  if (absent.has(answer.error.err_code)) return false;
  throw unavailable(`Stream ${stream} cannot be changed: ${answer.error.description}`, answer.error);
}
