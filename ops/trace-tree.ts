/** Traces for people: each printed as a tree once no more of it has come for a moment. */
import { type HrTime, SpanKind } from "@opentelemetry/api";
import type { ReadableSpan, SpanExporter } from "@opentelemetry/sdk-trace";

/** Long enough for fan-out and a push to join the request they follow from. */
const QUIET_MS = 500;
/** One that never rests is printed in pieces. */
const MAX_SPANS = 500;

export function traceTree(write: (text: string) => void): SpanExporter {
  const traces = new Map<string, { spans: ReadableSpan[]; timer: ReturnType<typeof setTimeout> }>();
  const print = (id: string) => {
    const trace = traces.get(id);
    if (!trace) return;
    clearTimeout(trace.timer);
    traces.delete(id);
    write(draw(id, trace.spans));
  };
  return {
    export(spans, done) {
      for (const span of spans) {
        const id = span.spanContext().traceId;
        const trace = traces.get(id) ?? { spans: [], timer: undefined! };
        clearTimeout(trace.timer);
        trace.spans.push(span);
        trace.timer = setTimeout(() => print(id), QUIET_MS);
        traces.set(id, trace);
        if (trace.spans.length >= MAX_SPANS) print(id);
      }
      done({ code: 0 });
    },
    forceFlush: async () => {
      for (const id of [...traces.keys()]) print(id);
    },
    shutdown: async () => {
      for (const id of [...traces.keys()]) print(id);
    },
  };
}

function draw(id: string, spans: readonly ReadableSpan[]): string {
  const present = new Set(spans.map((span) => span.spanContext().spanId));
  const start = Math.min(...spans.map((span) => ms(span.startTime)));
  const below = (parent: string | undefined, depth: number): string[] =>
    spans.filter(({ parentSpanContext }) => {
      const above = parentSpanContext?.spanId;
      return parent === undefined ? above === undefined || !present.has(above) : above === parent;
    })
      .sort((a, b) => ms(a.startTime) - ms(b.startTime))
      .flatMap((span) => [row(span, start, depth), ...below(span.spanContext().spanId, depth + 1)]);
  return [`trace ${id}`, ...below(undefined, 0), ""].join("\n") + "\n";
}

function row(span: ReadableSpan, start: number, depth: number): string {
  const at = (ms(span.startTime) - start).toFixed(1).padStart(7);
  const length = `+${ms(span.duration).toFixed(1)}`.padStart(8);
  const { attributes, links, status } = span;
  const count = attributes["messaging.batch.message_count"];
  const notes = [
    attributes["http.response.status_code"],
    count === undefined ? undefined : `×${count}`,
    attributes["error.type"],
    status.message,
    // What continues a message links to it as well; that is plain from its place in the tree.
    ...(span.kind === SpanKind.CONSUMER ? [] : links.map(({ context }) => `→ ${context.traceId}`)),
  ].filter((note) => note !== undefined && note !== "");
  return `${at}${length}  ${"  ".repeat(depth)}${span.name}${notes.length > 0 ? `  ${notes.join("  ")}` : ""}`;
}

const ms = ([seconds, nanoseconds]: HrTime): number => seconds * 1_000 + nanoseconds / 1e6;
