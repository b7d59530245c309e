/** Traces and metrics: the only file that knows OpenTelemetry. Without an exporter a span costs next to nothing. */
import {
  type Attributes,
  context,
  type Counter,
  type Gauge,
  type Histogram,
  metrics,
  propagation,
  type Span,
  SpanKind,
  SpanStatusCode,
  trace,
} from "@opentelemetry/api";
import { AsyncLocalStorageContextManager } from "@opentelemetry/context-async-hooks";
import { W3CTraceContextPropagator } from "@opentelemetry/core";
import { PrometheusSerializer } from "@opentelemetry/exporter-prometheus";
import { resourceFromAttributes } from "@opentelemetry/resources";
import { MeterProvider, MetricReader } from "@opentelemetry/sdk-metrics";
import { z } from "zod";

export const TelemetryEnv = z.object({
  OTEL_SERVICE_NAME: z.string().optional(),
  OTEL_TRACES_EXPORTER: z.enum(["otlp", "console", "none"], "must be otlp, console or none").optional(),
  OTEL_EXPORTER_OTLP_ENDPOINT: z.string().optional(),
  OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: z.string().optional(),
  OTEL_TRACES_SAMPLER_ARG: z.coerce.number().min(0).max(1).default(1),
});

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

/** Once per process. Spans are made only where an exporter is asked for by the standard variables. */
export async function startTelemetry(service: string, env: z.output<typeof TelemetryEnv>): Promise<Telemetry> {
  const resource = resourceFromAttributes({ "service.name": env.OTEL_SERVICE_NAME ?? service });
  const reader = new PullReader();
  const meters = new MeterProvider({ resource, readers: [reader] });
  metrics.disable();
  metrics.setGlobalMeterProvider(meters);
  instruments = undefined;
  const tracing = await startTracing(env, resource);
  const serializer = new PrometheusSerializer("", false, undefined, true, true);
  return {
    exposition: async () => serializer.serialize((await reader.collect()).resourceMetrics),
    async [Symbol.asyncDispose]() {
      await tracing?.shutdown();
      await meters.shutdown();
      metrics.disable();
      trace.disable();
      context.disable();
      propagation.disable();
      instruments = undefined;
    },
  };
}

async function startTracing(env: z.output<typeof TelemetryEnv>, resource: ReturnType<typeof resourceFromAttributes>) {
  const endpoint = env.OTEL_EXPORTER_OTLP_TRACES_ENDPOINT ?? env.OTEL_EXPORTER_OTLP_ENDPOINT;
  const kind = env.OTEL_TRACES_EXPORTER ?? (endpoint ? "otlp" : "none");
  if (kind === "none") return;
  const sdk = await import("@opentelemetry/sdk-trace");
  const processor = kind === "console"
    ? new sdk.SimpleSpanProcessor({ exporter: new sdk.ConsoleSpanExporter() })
    : new sdk.BatchSpanProcessor({
      exporter: new (await import("@opentelemetry/exporter-trace-otlp-http")).OTLPTraceExporter(),
    });
  const provider = new sdk.TracerProvider({
    resource,
    spanProcessors: [processor],
    sampler: new sdk.ParentBasedSampler({ root: new sdk.TraceIdRatioBasedSampler(env.OTEL_TRACES_SAMPLER_ARG) }),
  });
  context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
  propagation.setGlobalPropagator(new W3CTraceContextPropagator());
  trace.setGlobalTracerProvider(provider);
  return provider;
}

export type Kind = "server" | "client" | "producer" | "consumer" | "internal";
const kinds: Record<Kind, SpanKind> = {
  server: SpanKind.SERVER,
  client: SpanKind.CLIENT,
  producer: SpanKind.PRODUCER,
  consumer: SpanKind.CONSUMER,
  internal: SpanKind.INTERNAL,
};

export interface SpanOptions {
  readonly kind: Kind;
  readonly attributes?: Attributes;
  /** Where a trace comes in from outside: the headers of the request or message. */
  readonly from?: (name: string) => string | undefined;
}

/** Runs `work` in a span of its own; a throw marks the span as failed and goes on. */
export function inSpan<T>(name: string, options: SpanOptions, work: (span: Span) => Promise<T>): Promise<T> {
  const { kind, attributes, from } = options;
  const parent = from
    ? propagation.extract(context.active(), from, { get: (read, key) => read(key), keys: () => [] })
    : context.active();
  return trace.getTracer("sensorium").startActiveSpan(name, { kind: kinds[kind], attributes }, parent, async (span) => {
    try {
      return await work(span);
    } catch (error) {
      span.setStatus({ code: SpanStatusCode.ERROR, message: error instanceof Error ? error.message : String(error) });
      throw error;
    } finally {
      span.end();
    }
  });
}

/** Writes the current trace into outgoing headers. */
export const injectTrace = (set: (name: string, value: string) => void): void =>
  propagation.inject(context.active(), set, { set: (write, key, value) => write(key, value) });

export function currentTraceId(): string | undefined {
  const id = trace.getSpanContext(context.active())?.traceId;
  return id && id !== "00000000000000000000000000000000" ? id : undefined;
}

interface Instruments {
  readonly requests: Counter;
  readonly requestSeconds: Histogram;
  readonly calls: Counter;
  readonly callSeconds: Histogram;
  readonly limited: Counter;
  readonly events: Counter;
  readonly fanoutLag: Histogram;
  readonly queued: Counter;
  readonly filterErrors: Counter;
  readonly buried: Counter;
  readonly delivered: Counter;
  readonly redelivered: Counter;
  readonly acknowledged: Counter;
  readonly deadLettered: Counter;
  readonly pushed: Counter;
  readonly pending: Gauge;
  readonly oldestPending: Gauge;
  readonly webhooks: Counter;
  readonly connectorMessages: Counter;
}
let instruments: Instruments | undefined;

const secondsBuckets = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30];

/** Every instrument, made once per process and on first use. */
export function measure(): Instruments {
  const meter = metrics.getMeter("sensorium");
  const seconds = { unit: "s", advice: { explicitBucketBoundaries: secondsBuckets } };
  return instruments ??= {
    requests: meter.createCounter("http_requests", { description: "Requests answered, by operation and status" }),
    requestSeconds: meter.createHistogram("http_request_duration_seconds", {
      description: "Time from a request's headers to its answer, by operation",
      ...seconds,
    }),
    calls: meter.createCounter("bus_calls", { description: "Calls a service answered, by operation and outcome" }),
    callSeconds: meter.createHistogram("bus_call_duration_seconds", {
      description: "Time a service took for a call, by operation",
      ...seconds,
    }),
    limited: meter.createCounter("rate_limited", { description: "Requests refused by a rate limit, by whose" }),
    events: meter.createCounter("events", { description: "Events taken in, by tenant and outcome" }),
    fanoutLag: meter.createHistogram("fanout_lag_seconds", {
      description: "Age of the oldest event of a batch once its deliveries were queued",
      ...seconds,
    }),
    queued: meter.createCounter("deliveries_queued", { description: "Deliveries put into queues, by tenant" }),
    filterErrors: meter.createCounter("filter_errors", { description: "Filters that failed on an event, by tenant" }),
    buried: meter.createCounter("events_buried", { description: "Events that could not be fanned out, by tenant" }),
    delivered: meter.createCounter("deliveries_handed_out", { description: "Deliveries handed out, by tenant" }),
    redelivered: meter.createCounter("deliveries_handed_out_again", {
      description: "Deliveries handed out for the second time or later, by tenant",
    }),
    acknowledged: meter.createCounter("deliveries_acknowledged", { description: "Deliveries acknowledged, by tenant" }),
    pending: meter.createGauge("deliveries_pending", { description: "Deliveries not yet acknowledged, all tenants" }),
    oldestPending: meter.createGauge("deliveries_oldest_pending_seconds", {
      description: "Age of the oldest delivery not yet acknowledged",
      unit: "s",
    }),
    pushed: meter.createCounter("deliveries_pushed", { description: "Pushes to endpoints, by tenant and outcome" }),
    deadLettered: meter.createCounter("dead_letters", {
      description: "Deliveries that became dead letters, by tenant",
    }),
    webhooks: meter.createCounter("webhook_requests", {
      description: "Requests to webhooks, by outcome and, once the signature holds, by tenant and source",
    }),
    connectorMessages: meter.createCounter("connector_messages", {
      description: "Messages that connectors received, by tenant, source and outcome",
    }),
  };
}
