/**
 * Spans around messages in streams, as the messaging conventions name them. What is sent carries its trace along; who
 * processes one message continues that trace; who receives many at once links to all of theirs.
 */
import { inSpan, linkSpan, type Trace, traceToKeep } from "./telemetry.ts";

const about = (type: "send" | "process" | "receive" | "settle", stream: string, count?: number) => ({
  "messaging.system.name": "nats",
  "messaging.operation.name": type,
  "messaging.operation.type": type,
  "messaging.destination.name": stream,
  ...(count === undefined ? {} : { "messaging.batch.message_count": count }),
});

/** `send` puts the trace it is given into the headers of every message it publishes. */
export const sending = <T>(
  stream: string,
  options: { readonly id?: string; readonly count?: number; readonly links?: readonly (Trace | undefined)[] },
  send: (trace: Trace) => Promise<T>,
): Promise<T> =>
  inSpan(`send ${stream}`, {
    kind: "producer",
    attributes: {
      ...about("send", stream, options.count),
      ...(options.id === undefined ? {} : { "messaging.message.id": options.id }),
    },
    ...(options.links ? { links: options.links } : {}),
  }, () => send(traceToKeep()));

/** In the message's own trace; without one there is nothing to continue, and nothing to pay for. */
export const processing = <T>(
  stream: string,
  group: string,
  came: Trace | undefined,
  work: () => Promise<T>,
): Promise<T> =>
  came
    ? inSpan(`process ${stream}`, {
      kind: "consumer",
      attributes: { ...about("process", stream), "messaging.consumer.group.name": group },
      from: (name) => came[name],
      links: [came],
    }, work)
    : work();

export const receiving = <M extends { readonly trace?: Trace | undefined }>(
  stream: string,
  pull: () => Promise<M[]>,
): Promise<M[]> =>
  inSpan(`receive ${stream}`, { kind: "client", attributes: about("receive", stream) }, async (span) => {
    const messages = await pull();
    span.setAttribute("messaging.batch.message_count", messages.length);
    linkSpan(span, messages.map(({ trace }) => trace));
    return messages;
  });

export const settling = <T>(stream: string, count: number, settle: () => Promise<T>): Promise<T> =>
  inSpan(`settle ${stream}`, { kind: "client", attributes: about("settle", stream, count) }, settle);
