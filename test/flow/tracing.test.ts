/** One event can be followed through every process, by whoever collects OpenTelemetry traces. */
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { expect, test } from "vitest";
import { eventually } from "../support/eventually.ts";
import { fleet } from "../support/fleet.ts";
import { interested } from "../support/interested.ts";
import { type Collector, collector, type ReceivedSpan } from "../support/otlp.ts";

const caller = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const [, TRACE, CALLER_SPAN] = caller.split("-");
const MAKER_SPAN = "b7ad6b7169203331";
const maker = `00-0af7651916cd43dd8448eb211c80319c-${MAKER_SPAN}-01`;

/** An endpoint that takes every push and remembers what came with it. */
async function endpoint() {
  const traceparents: string[] = [];
  const server = createServer((request, response) => {
    traceparents.push(String(request.headers.traceparent));
    request.resume().on("end", () => response.writeHead(204).end());
  });
  await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
  return {
    port: (server.address() as AddressInfo).port,
    traceparents,
    [Symbol.asyncDispose]: () =>
      new Promise<void>((done) => {
        server.close(() => done());
        server.closeAllConnections();
      }),
  };
}

/** A tree as a person draws it: service, kind and name, children below their parents. */
function drawn(spans: readonly ReceivedSpan[], parent: string | undefined, depth = 0): string[] {
  return spans.filter(({ parentSpanId }) => parentSpanId === parent)
    .sort((a, b) => a.name < b.name ? -1 : 1)
    .flatMap((span) => [
      `${"  ".repeat(depth)}${span.service}: ${span.kind} ${span.name}`,
      ...drawn(spans, span.spanId, depth + 1),
    ]);
}

const only = (spans: readonly ReceivedSpan[], name: string, kind: ReceivedSpan["kind"]): ReceivedSpan => {
  const found = spans.filter((span) => span.name === name && span.kind === kind);
  expect(found, `${kind} ${name}`).toHaveLength(1);
  return found[0]!;
};

const traced = (otlp: Collector) => ({
  OTEL_EXPORTER_OTLP_ENDPOINT: otlp.url,
  OTEL_EXPORTER_OTLP_PROTOCOL: "http/json",
  OTEL_BSP_SCHEDULE_DELAY: "100",
  OTEL_METRIC_EXPORT_INTERVAL: "500",
  PUSH_ALLOW_PRIVATE: "true",
});

test(
  "one event makes one trace, from the caller's own span through five processes to a push; polls link to it",
  async () => {
    await using otlp = await collector();
    await using target = await endpoint();
    await using system = await fleet({ env: traced(otlp) });
    const tenant = await system.tenant();
    const [one, two] = [await interested(tenant, "com.shop.*"), await interested(tenant, "com.shop.order.*")];
    const pushed = await interested(tenant, "com.shop.order.created");
    await tenant.admin("agents.update", {
      path: { id: pushed.id },
      body: { delivery_mode: "push", delivery_endpoint: `http://127.0.0.1:${target.port}/hook?token=hidden` },
    });

    const event = {
      specversion: "1.0",
      type: "com.shop.order.created",
      source: "/shop",
      id: "order-1",
      traceparent: maker,
    };
    const published = await system.request("POST", "/events", {
      token: tenant.adminToken,
      body: event,
      headers: { traceparent: caller, "x-request-id": "the-one" },
    });
    expect(published.status).toBe(202);
    for (const agent of [one, two]) {
      const { deliveries } = await agent.call("delivery.poll", { query: { wait: 10 } });
      // Whoever made the event said so in it, and whoever receives it can read that.
      expect(deliveries).toMatchObject([{ event_id: "order-1", payload: { traceparent: maker } }]);
      await agent.call("delivery.ack", { body: { delivery_ids: [deliveries[0]!.id] } });
    }

    const inTrace = () => otlp.spans.filter(({ traceId }) => traceId === TRACE);
    await eventually(() => inTrace().some(({ name }) => name === "POST"), "the push");
    await eventually(() => otlp.spans.filter(({ name }) => name === "settle DELIVERIES").length === 2, "both acks");
    await eventually(() => inTrace().some(({ parentSpanId }) => parentSpanId === CALLER_SPAN), "the request");
    const spans = inTrace();

    expect(drawn(spans, CALLER_SPAN)).toEqual([
      "gateway: server POST /v1/events",
      "  gateway: client ingest/events.publish",
      "    ingest: server ingest/events.publish",
      "      ingest: producer send EVENTS",
      "        fanout: consumer process EVENTS",
      "          fanout: producer send DELIVERIES",
      "            delivery: consumer process DELIVERIES",
      "              delivery: client POST",
    ]);
    const send = only(spans, "send EVENTS", "producer");
    const queue = only(spans, "send DELIVERIES", "producer");
    const push = only(spans, "POST", "client");
    expect(only(spans, "POST /v1/events", "server").attributes).toMatchObject({
      "http.request.method": "POST",
      "http.route": "/v1/events",
      "http.response.status_code": 202,
      "request.id": "the-one",
    });
    expect(only(spans, "ingest/events.publish", "client").attributes).toMatchObject({
      "rpc.system.name": "nats",
      "rpc.method": "ingest/events.publish",
    });
    expect(send).toMatchObject({
      attributes: {
        "messaging.system.name": "nats",
        "messaging.operation.type": "send",
        "messaging.destination.name": "EVENTS",
        "messaging.message.id": "order-1",
      },
      links: [{ spanId: MAKER_SPAN }],
      schemaUrl: "https://opentelemetry.io/schemas/1.45.0",
    });
    expect(only(spans, "process EVENTS", "consumer")).toMatchObject({
      attributes: { "messaging.operation.type": "process", "messaging.consumer.group.name": "fanout" },
      links: [{ traceId: TRACE, spanId: send.spanId }],
    });
    expect(queue.attributes).toMatchObject({ "messaging.batch.message_count": 3 });
    expect(push.attributes).toMatchObject({ "server.address": "127.0.0.1", "server.port": target.port });
    expect(target.traceparents).toEqual([`00-${TRACE}-${push.spanId}-01`]);
    for (const span of spans) expect(span.attributes["request.id"], span.name).toBe("the-one");
    expect(JSON.stringify(spans)).not.toContain("hidden");
    expect(spans.filter(({ isError }) => isError)).toEqual([]);

    // A poll takes deliveries of many traces: it is a trace of its own, and links to each of theirs.
    const traceOf = (poll: { traceId: string }) => otlp.spans.filter(({ traceId }) => traceId === poll.traceId);
    const polls = await eventually(() => {
      const found = otlp.spans.filter(({ name, links }) => name === "receive DELIVERIES" && links.length > 0);
      // Each process sends its spans when it likes.
      return found.length === 2 && found.every((poll) => traceOf(poll).length >= 4) && found;
    }, "the traces of both polls");
    expect(polls.map(({ links }) => links)).toEqual([1, 2].map(() => [{ traceId: TRACE, spanId: queue.spanId }]));
    for (const poll of polls) {
      expect(drawn(traceOf(poll), undefined)).toEqual([
        "gateway: server GET /v1/delivery/poll",
        "  gateway: client delivery/delivery.poll",
        "    delivery: server delivery/delivery.poll",
        "      delivery: client receive DELIVERIES",
      ]);
    }
    // Five processes and a sixth that only the requests before it needed.
    expect(new Set(otlp.spans.map(({ instance }) => instance)).size).toBeGreaterThanOrEqual(5);

    // SQL is seen inside the request that asked for it.
    const sql = otlp.spans.find(({ service, attributes }) => service === "registry" && attributes["db.system.name"]);
    expect(sql).toMatchObject({ kind: "client", attributes: { "db.system.name": "postgresql" } });
    expect(sql?.parentSpanId).toBeDefined();

    await eventually(() => otlp.metrics.get("gateway")?.has("http_requests"), "metrics over OTLP");
    for (const { healthUrl, name } of system.members) {
      const metrics = await (await fetch(`${healthUrl}/metrics`)).text();
      expect(metrics, name).toContain("process_resident_memory_bytes");
      expect(await (await fetch(`${healthUrl}/livez`)).json(), name).toMatchObject({ status: "ok", version: "0.1.0" });
      expect((await fetch(`${healthUrl}/readyz`)).status, name).toBe(200);
    }
  },
  120_000,
);
