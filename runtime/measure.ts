/** Everything that is measured; docs/metrics.md says what each number means. */
import { type Counter, type Gauge, type Histogram, metrics } from "@opentelemetry/api";

interface Instruments {
  readonly requests: Counter;
  readonly requestSeconds: Histogram;
  readonly calls: Counter;
  readonly callSeconds: Histogram;
  readonly limited: Counter;
  readonly busLost: Counter;
  readonly embedSeconds: Histogram;
  readonly memoriesUnprepared: Gauge;
  readonly memoriesUnindexed: Gauge;
  readonly searchesDegraded: Counter;
  readonly events: Counter;
  readonly fanoutLag: Histogram;
  readonly fanoutBacklog: Gauge;
  readonly queued: Counter;
  readonly filterErrors: Counter;
  readonly buried: Counter;
  readonly delivered: Counter;
  readonly redelivered: Counter;
  readonly resent: Counter;
  readonly notEnriched: Counter;
  readonly acknowledged: Counter;
  readonly deadLettered: Counter;
  readonly pushed: Counter;
  readonly pending: Gauge;
  readonly oldestPending: Gauge;
  readonly webhooks: Counter;
  readonly connectorMessages: Counter;
  readonly connectorReceived: Counter;
  readonly connectorReconnects: Counter;
  readonly connectorUnsettled: Gauge;
  readonly connectorOldestUnsettled: Gauge;
  readonly connectorWaiting: Gauge;
  readonly connectorDown: Gauge;
}
let instruments: Instruments | undefined;

const secondsBuckets = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30];

/** Every instrument, made once per process and on first use. */
export const measure = (): Instruments => instruments ??= makeInstruments();

/** The numbers go elsewhere from now on: instruments belong to the place they were made for. */
export function measureAnew(): void {
  instruments = undefined;
}

function makeInstruments(): Instruments {
  const meter = metrics.getMeter("sensorium");
  const seconds = { unit: "s", advice: { explicitBucketBoundaries: secondsBuckets } };
  return {
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
    busLost: meter.createCounter("bus_connections_lost", { description: "Times the connection to NATS was lost" }),
    embedSeconds: meter.createHistogram("embed_duration_seconds", {
      description: "Time the embedder took for the texts of one request, by model",
      ...seconds,
    }),
    memoriesUnprepared: meter.createGauge("memories_unprepared", {
      description: "Memories whose words or vector are missing or of another recipe, all tenants",
    }),
    memoriesUnindexed: meter.createGauge("memories_unindexed", {
      description: "Memories the index service has not been told of, all tenants",
    }),
    searchesDegraded: meter.createCounter("searches_degraded", {
      description: "Searches answered without the index or the embedder, by tenant",
    }),
    events: meter.createCounter("events", { description: "Events taken in, by tenant and outcome" }),
    fanoutLag: meter.createHistogram("fanout_lag_seconds", {
      description: "Age of the oldest event of a batch once its deliveries were queued",
      ...seconds,
    }),
    fanoutBacklog: meter.createGauge("fanout_backlog_events", {
      description: "Events accepted and not yet fanned out, all tenants",
    }),
    queued: meter.createCounter("deliveries_queued", { description: "Deliveries put into queues, by tenant" }),
    filterErrors: meter.createCounter("filter_errors", { description: "Filters that failed on an event, by tenant" }),
    buried: meter.createCounter("events_buried", { description: "Events that could not be fanned out, by tenant" }),
    delivered: meter.createCounter("deliveries_handed_out", { description: "Deliveries handed out, by tenant" }),
    notEnriched: meter.createCounter("deliveries_not_enriched", {
      description: "Deliveries handed out without the memories asked for, by tenant",
    }),
    redelivered: meter.createCounter("deliveries_handed_out_again", {
      description: "Deliveries handed out for the second time or later, by tenant",
    }),
    resent: meter.createCounter("deliveries_resent", {
      description: "Deliveries written again because their reader came back without them, by tenant",
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
      description: "Messages that connectors settled, by tenant, source and outcome",
    }),
    connectorReceived: meter.createCounter("connector_received", {
      description: "Messages that brokers sent, by connector",
    }),
    connectorReconnects: meter.createCounter("connector_reconnects", {
      description: "Links opened again after they broke, by connector",
    }),
    connectorUnsettled: meter.createGauge("connector_unsettled_messages", {
      description: "Messages received and not yet accepted, rejected or released, by connector",
    }),
    connectorOldestUnsettled: meter.createGauge("connector_oldest_unsettled_seconds", {
      description: "Age of the oldest of them, by connector",
      unit: "s",
    }),
    connectorWaiting: meter.createGauge("connector_waiting_messages", {
      description: "Messages waiting at the broker, as it said with the last grant of credit, by connector",
    }),
    connectorDown: meter.createGauge("connector_down", {
      description: "1 while its owner has no link to the broker, by connector",
    }),
  };
}
