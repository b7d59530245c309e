/**
 * Requests by the thousand over one subscription. The client's own request makes two error objects and a timer for each,
 * which costs more than the request itself (docs/decisions/bus.md); this one makes none.
 */
import { createInbox, type Msg, type MsgHdrs, type NatsConnection } from "@nats-io/nats-core";

export class NoAnswer extends Error {
  override readonly name = "NoAnswer";
  readonly why: "timeout" | "nobody" | "closed";
  constructor(why: NoAnswer["why"], subject: string, options?: { cause?: unknown }) {
    super(
      `${
        why === "timeout" ? "No answer in time" : why === "nobody" ? "Nobody answers" : "The bus is closed"
      }: ${subject}`,
      options,
    );
    this.why = why;
  }
}

export interface Inbox extends AsyncDisposable {
  /** Settles with the answer, or rejects with `NoAnswer`. */
  request(subject: string, body: string | Uint8Array, timeoutMs: number, headers?: Headers): Promise<Msg>;
}
export type Headers = Readonly<Record<string, string>>;

interface Waiting {
  readonly subject: string;
  readonly until: number;
  resolve(msg: Msg): void;
  reject(error: NoAnswer): void;
}

/** One timer for all; a deadline is met up to this much late. */
const SWEEP_MS = 100;

export function openInbox(nc: NatsConnection): Inbox {
  const prefix = createInbox();
  const waiting = new Map<string, Waiting>();
  let next = 0;
  const subscription = nc.subscribe(`${prefix}.*`, {
    callback(error, msg) {
      if (error) return;
      const token = msg.subject.slice(prefix.length + 1);
      const entry = waiting.get(token);
      if (!entry) return;
      waiting.delete(token);
      if (isNobody(msg)) entry.reject(new NoAnswer("nobody", entry.subject));
      else entry.resolve(msg);
    },
  });
  const sweep = setInterval(() => {
    const now = performance.now();
    for (const [token, entry] of waiting) {
      if (entry.until > now) continue;
      waiting.delete(token);
      entry.reject(new NoAnswer("timeout", entry.subject));
    }
  }, SWEEP_MS);
  sweep.unref();
  return {
    request(subject, body, timeoutMs, headers) {
      const { promise, resolve, reject } = Promise.withResolvers<Msg>();
      const token = (next++).toString(36);
      waiting.set(token, { subject, until: performance.now() + timeoutMs, resolve, reject });
      try {
        nc.publish(subject, body, { reply: `${prefix}.${token}`, ...(headers ? { headers: written(headers) } : {}) });
      } catch (cause) {
        waiting.delete(token);
        reject(new NoAnswer("closed", subject, { cause }));
      }
      return promise;
    },
    async [Symbol.asyncDispose]() {
      clearInterval(sweep);
      subscription.unsubscribe();
      for (const entry of waiting.values()) entry.reject(new NoAnswer("closed", entry.subject));
      waiting.clear();
    },
  };
}

/** The server's own word that no subscription took the request: a bare 503 status. */
const isNobody = (msg: Msg): boolean => msg.data.length === 0 && msg.headers?.code === 503;

const encoder = new TextEncoder();

/** The client asks headers for one thing only, their bytes; building them its own way costs 5 µs more. */
export const written = (fields: Headers): MsgHdrs => {
  let text = "NATS/1.0\r\n";
  for (const name in fields) text += `${name}: ${fields[name]!.replace(/[\r\n]+/g, " ")}\r\n`;
  return { encode: () => encoder.encode(`${text}\r\n`) } as unknown as MsgHdrs;
};
