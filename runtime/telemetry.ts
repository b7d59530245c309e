/**
 * Traces, and where metrics go. Without an exporter a span costs a function call. What is measured is in measure.ts.
 * Names and attributes follow the semantic conventions 1.45.0; docs/tracing.md shows the tree they make.
 */
import {
  type Attributes,
  type Context,
  context,
  createContextKey,
  INVALID_SPAN_CONTEXT,
  type Link,
  metrics,
  propagation,
  ROOT_CONTEXT,
  type Span,
  SpanKind,
  SpanStatusCode,
  trace,
  type Tracer,
} from "@opentelemetry/api";
import { AsyncLocalStorageContextManager } from "@opentelemetry/context-async-hooks";
import { W3CTraceContextPropagator } from "@opentelemetry/core";
import { PrometheusSerializer } from "@opentelemetry/exporter-prometheus";
import { resourceFromAttributes } from "@opentelemetry/resources";
import { MeterProvider, MetricReader, PeriodicExportingMetricReader } from "@opentelemetry/sdk-metrics";
import type { Sampler, SpanExporter } from "@opentelemetry/sdk-trace";
import { z } from "zod";
import { catalogue, Fault } from "../contracts/errors.ts";
import { measureAnew } from "./measure.ts";
import { observeProcess } from "./process-metrics.ts";
import { version } from "./version.ts";

const CONVENTIONS = "https://opentelemetry.io/schemas/1.45.0";

const samplers = [
  "always_on",
  "always_off",
  "traceidratio",
  "parentbased_always_on",
  "parentbased_always_off",
  "parentbased_traceidratio",
] as const;

const milliseconds = z.coerce.number("must be a number of milliseconds").int().min(1).optional();

/** The standard variables we heed. The exporters read their own (`OTEL_EXPORTER_OTLP_*`) as well. */
export const TelemetryEnv = z.object({
  OTEL_SERVICE_NAME: z.string().optional(),
  OTEL_RESOURCE_ATTRIBUTES: z.string().optional(),
  OTEL_TRACES_EXPORTER: z.enum(["otlp", "console", "none"], "must be otlp, console or none").optional(),
  OTEL_METRICS_EXPORTER: z.enum(["otlp", "none"], "must be otlp or none").optional(),
  OTEL_EXPORTER_OTLP_ENDPOINT: z.string().optional(),
  OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: z.string().optional(),
  OTEL_EXPORTER_OTLP_METRICS_ENDPOINT: z.string().optional(),
  OTEL_TRACES_SAMPLER: z.enum(samplers, `must be one of ${samplers.join(", ")}`).optional(),
  OTEL_TRACES_SAMPLER_ARG: z.coerce.number("must be a number from 0 to 1").min(0).max(1).optional(),
  OTEL_BSP_SCHEDULE_DELAY: milliseconds,
  OTEL_METRIC_EXPORT_INTERVAL: milliseconds,
});
export type TelemetryEnv = z.output<typeof TelemetryEnv>;

class PullReader extends MetricReader {
  protected override onForceFlush() {
    return Promise.resolve();
  }
  protected override onShutdown() {
    return Promise.resolve();
  }
}

export interface Telemetry extends AsyncDisposable {
  /** Everything measured in this process, as Prometheus reads it. */
  exposition(): Promise<string>;
}

/** Once per process. Spans are made only where an exporter is given, or asked for by the standard variables. */
export async function startTelemetry(
  service: string,
  env: TelemetryEnv,
  options: { readonly exporter?: SpanExporter } = {},
): Promise<Telemetry> {
  const release = await version();
  const resource = resourceFromAttributes({
    "service.name": env.OTEL_SERVICE_NAME ?? service,
    "service.namespace": "sensorium",
    "service.version": release,
    "service.instance.id": crypto.randomUUID(),
    ...resourceAttributes(env.OTEL_RESOURCE_ATTRIBUTES),
  });
  const reader = new PullReader();
  const pushing = await metricsPush(env);
  const meters = new MeterProvider({ resource, readers: pushing ? [reader, pushing] : [reader] });
  metrics.disable();
  metrics.setGlobalMeterProvider(meters);
  measureAnew();
  observeProcess(meters.getMeter("sensorium"), release);
  const tracing = await startTracing(env, resource, options.exporter);
  tracer = tracing?.getTracer("sensorium", release, { schemaUrl: CONVENTIONS });
  const serializer = new PrometheusSerializer("", false, undefined, true, true);
  return {
    exposition: async () => serializer.serialize((await reader.collect()).resourceMetrics),
    async [Symbol.asyncDispose]() {
      tracer = undefined;
      // A collector that is away must not keep a process from stopping, nor make its end look like a failure.
      await Promise.allSettled([tracing?.shutdown(), meters.shutdown()]);
      metrics.disable();
      context.disable();
      propagation.disable();
      measureAnew();
    },
  };
}

async function metricsPush(env: TelemetryEnv): Promise<MetricReader | undefined> {
  const endpoint = env.OTEL_EXPORTER_OTLP_METRICS_ENDPOINT ?? env.OTEL_EXPORTER_OTLP_ENDPOINT;
  if ((env.OTEL_METRICS_EXPORTER ?? (endpoint ? "otlp" : "none")) === "none") return undefined;
  const { OTLPMetricExporter } = await import("@opentelemetry/exporter-metrics-otlp-http");
  const every = env.OTEL_METRIC_EXPORT_INTERVAL ?? 60_000;
  return new PeriodicExportingMetricReader({
    exporter: new OTLPMetricExporter(),
    exportIntervalMillis: every,
    exportTimeoutMillis: Math.min(every, 10_000),
  });
}

async function startTracing(
  env: TelemetryEnv,
  resource: ReturnType<typeof resourceFromAttributes>,
  exporter?: SpanExporter,
) {
  const endpoint = env.OTEL_EXPORTER_OTLP_TRACES_ENDPOINT ?? env.OTEL_EXPORTER_OTLP_ENDPOINT;
  const kind = exporter ? "given" : env.OTEL_TRACES_EXPORTER ?? (endpoint ? "otlp" : "none");
  if (kind === "none") return;
  const sdk = await import("@opentelemetry/sdk-trace");
  const processor = kind !== "otlp"
    ? new sdk.SimpleSpanProcessor({ exporter: exporter ?? new sdk.ConsoleSpanExporter() })
    : new sdk.BatchSpanProcessor({
      exporter: new (await import("@opentelemetry/exporter-trace-otlp-http")).OTLPTraceExporter(),
      ...(env.OTEL_BSP_SCHEDULE_DELAY ? { scheduledDelayMillis: env.OTEL_BSP_SCHEDULE_DELAY } : {}),
    });
  const provider = new sdk.TracerProvider({ resource, spanProcessors: [processor], sampler: samplerOf(sdk, env) });
  context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
  propagation.setGlobalPropagator(new W3CTraceContextPropagator());
  return provider;
}

/** A ratio given without a sampler can only have been meant for the one that takes a ratio. */
function samplerOf(sdk: typeof import("@opentelemetry/sdk-trace"), env: TelemetryEnv): Sampler {
  const { OTEL_TRACES_SAMPLER_ARG: ratio = 1 } = env;
  const name = env.OTEL_TRACES_SAMPLER ??
    (env.OTEL_TRACES_SAMPLER_ARG === undefined ? "parentbased_always_on" : "parentbased_traceidratio");
  const root = name.endsWith("always_on")
    ? new sdk.AlwaysOnSampler()
    : name.endsWith("always_off")
    ? new sdk.AlwaysOffSampler()
    : new sdk.TraceIdRatioBasedSampler(ratio);
  return name.startsWith("parentbased") ? new sdk.ParentBasedSampler({ root }) : root;
}

/** `key=value,…`, values as in a URI. */
const resourceAttributes = (text = ""): Attributes =>
  Object.fromEntries(
    text.split(",").filter((pair) => pair.includes("=")).map((pair) => {
      const at = pair.indexOf("=");
      return [pair.slice(0, at).trim(), decodeURIComponent(pair.slice(at + 1).trim())];
    }),
  );

let tracer: Tracer | undefined;

export const isTracing = (): boolean => tracer !== undefined;

export type Kind = "server" | "client" | "producer" | "consumer" | "internal";
const kinds: Record<Kind, SpanKind> = {
  server: SpanKind.SERVER,
  client: SpanKind.CLIENT,
  producer: SpanKind.PRODUCER,
  consumer: SpanKind.CONSUMER,
  internal: SpanKind.INTERNAL,
};

/** A trace as it travels: `traceparent`, and what else the propagator writes. */
export type Trace = Readonly<Record<string, string>>;

export interface SpanOptions {
  readonly kind: Kind;
  readonly attributes?: Attributes;
  /** Where a trace comes in from outside: the headers of the request or message. */
  readonly from?: (name: string) => string | undefined;
  /** Spans elsewhere that this one has to do with, though it is not part of them. */
  readonly links?: readonly (Trace | undefined)[];
}

const REQUEST_ID = createContextKey("request id");
const none = trace.wrapSpanContext(INVALID_SPAN_CONTEXT);

/**
 * Runs `work` in a span of its own; a throw marks the span as failed and goes on. A `request.id` given once stays with
 * every span below.
 */
export function inSpan<T>(name: string, options: SpanOptions, work: (span: Span) => Promise<T>): Promise<T> {
  if (!tracer) return work(none);
  const { kind, from, links } = options;
  const parent = from ? contextIn(from, context.active()) : context.active();
  // A trace begins where something comes in or is sent out, not with a question asked in the course of housekeeping.
  if ((kind === "client" || kind === "internal") && !trace.getSpanContext(parent)) return work(none);
  const requestId = options.attributes?.["request.id"] || parent.getValue(REQUEST_ID);
  const span = tracer.startSpan(name, {
    kind: kinds[kind],
    attributes: requestId ? { ...options.attributes, "request.id": String(requestId) } : options.attributes,
    ...(links ? { links: links.flatMap((to) => linkTo(to) ?? []) } : {}),
  }, parent);
  const inside = trace.setSpan(requestId ? parent.setValue(REQUEST_ID, requestId) : parent, span);
  return context.with(inside, async () => {
    try {
      return await work(span);
    } catch (error) {
      markFailed(span, error);
      throw error;
    } finally {
      span.end();
    }
  });
}

/** What the caller did wrong is an answer, not a failure of ours. */
export function markFailed(span: Span, thrown: unknown): void {
  const isFault = thrown instanceof Fault;
  span.setAttribute("error.type", isFault ? thrown.code : thrown instanceof Error ? thrown.name : "unknown");
  if (isFault && catalogue[thrown.code as keyof typeof catalogue].status < 500) return;
  span.setStatus({ code: SpanStatusCode.ERROR, message: thrown instanceof Error ? thrown.message : String(thrown) });
}

/** Ties the span to where something it received came from. */
export function linkSpan(span: Span, traces: readonly (Trace | undefined)[]): void {
  if (span.isRecording()) { for (const to of traces) for (const link of linkTo(to) ?? []) span.addLink(link); }
}

function linkTo(to: Trace | undefined): Link[] | undefined {
  const found = to && trace.getSpanContext(contextIn((name) => to[name], ROOT_CONTEXT));
  return found ? [{ context: found }] : undefined;
}

const contextIn = (read: (name: string) => string | undefined, base: Context): Context => {
  const found = propagation.extract(base, read, { get: (from, key) => from(key), keys: () => [] });
  const requestId = found.getValue(REQUEST_ID) ?? read("Request-Id");
  return requestId ? found.setValue(REQUEST_ID, requestId) : found;
};

/** Writes the current trace into outgoing headers. */
export const injectTrace = (set: (name: string, value: string) => void): void => {
  if (tracer) propagation.inject(context.active(), set, { set: (write, key, value) => write(key, value) });
};

/** The current trace for a message that is kept: nothing where nobody records it, so that it costs no room. */
export function traceToKeep(): Trace {
  const active = context.active();
  if (!tracer || !trace.getSpan(active)?.isRecording()) return {};
  const kept: Record<string, string> = {};
  injectTrace((name, value) => kept[name] = value);
  const requestId = active.getValue(REQUEST_ID);
  if (requestId) kept["Request-Id"] = String(requestId);
  return kept;
}

/** The trace a kept message came with. */
export function traceIn(headers: { get(name: string): string } | undefined): Trace | undefined {
  const traceparent = tracer && headers?.get("traceparent");
  if (!traceparent) return undefined;
  const found: Record<string, string> = { traceparent };
  for (const name of ["tracestate", "Request-Id"]) if (headers?.get(name)) found[name] = headers.get(name);
  return found;
}

export function currentTraceId(): string | undefined {
  return tracer && trace.getSpanContext(context.active())?.traceId;
}
