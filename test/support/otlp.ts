/** A collector for tests: takes OTLP over HTTP as JSON, and gives back spans as a reader thinks of them. */
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";

export interface ReceivedSpan {
  readonly service: string;
  readonly instance: string;
  readonly name: string;
  readonly kind: "internal" | "server" | "client" | "producer" | "consumer";
  readonly traceId: string;
  readonly spanId: string;
  readonly parentSpanId: string | undefined;
  readonly attributes: Readonly<Record<string, unknown>>;
  readonly links: readonly { readonly traceId: string; readonly spanId: string }[];
  readonly isError: boolean;
  readonly schemaUrl: string | undefined;
}

export interface Collector extends AsyncDisposable {
  /** For OTEL_EXPORTER_OTLP_ENDPOINT. */
  readonly url: string;
  readonly spans: readonly ReceivedSpan[];
  /** Names of the metrics each service has sent. */
  readonly metrics: ReadonlyMap<string, ReadonlySet<string>>;
}

interface AnyValue {
  stringValue?: string;
  intValue?: string | number;
  doubleValue?: number;
  boolValue?: boolean;
}
type Attributes = { key: string; value: AnyValue }[];
interface Scope<T extends string, I> {
  resource: { attributes: Attributes };
  scopes: ({ schemaUrl?: string } & Record<T, I[]>)[];
}
interface WireSpan {
  traceId: string;
  spanId: string;
  parentSpanId?: string;
  name: string;
  kind: number;
  attributes: Attributes;
  links?: { traceId: string; spanId: string }[];
  status?: { code?: number };
}

const kinds = ["internal", "internal", "server", "client", "producer", "consumer"] as const;

export async function collector(): Promise<Collector> {
  const spans: ReceivedSpan[] = [];
  const metrics = new Map<string, Set<string>>();
  const server = createServer(async (request, response) => {
    const chunks: Uint8Array[] = [];
    for await (const chunk of request) chunks.push(chunk);
    // deno-lint-ignore no-explicit-any -- the outer shape differs between signals
    const body = JSON.parse(Buffer.concat(chunks).toString()) as any;
    if (request.url === "/v1/traces") {
      for (const group of scoped<"spans", WireSpan>(body.resourceSpans, "scopeSpans")) {
        take(group);
      }
    }
    if (request.url === "/v1/metrics") {
      for (const { resource, scopes } of scoped<"metrics", { name: string }>(body.resourceMetrics, "scopeMetrics")) {
        const service = String(plain(resource.attributes)["service.name"]);
        const names = metrics.get(service) ?? new Set();
        for (const scope of scopes) for (const { name } of scope.metrics) names.add(name);
        metrics.set(service, names);
      }
    }
    response.writeHead(200, { "content-type": "application/json" }).end("{}");
  });
  const take = ({ resource, scopes }: Scope<"spans", WireSpan>) => {
    const about = plain(resource.attributes);
    for (const scope of scopes) {
      for (const span of scope.spans) {
        spans.push({
          service: String(about["service.name"]),
          instance: String(about["service.instance.id"]),
          name: span.name,
          kind: kinds[span.kind] ?? "internal",
          traceId: span.traceId,
          spanId: span.spanId,
          parentSpanId: span.parentSpanId || undefined,
          attributes: plain(span.attributes),
          links: (span.links ?? []).map(({ traceId, spanId }) => ({ traceId, spanId })),
          isError: span.status?.code === 2,
          schemaUrl: scope.schemaUrl,
        });
      }
    }
  };
  await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    spans,
    metrics,
    [Symbol.asyncDispose]: () =>
      new Promise<void>((done) => {
        server.close(() => done());
        server.closeAllConnections();
      }),
  };
}

function scoped<T extends string, I>(groups: Record<string, unknown>[] = [], key: string): Scope<T, I>[] {
  return groups.map((group) => ({ resource: group.resource, scopes: group[key] })) as Scope<T, I>[];
}

const plain = (attributes: Attributes = []): Record<string, unknown> =>
  Object.fromEntries(attributes.map(({ key, value }) => {
    const number = value.intValue ?? value.doubleValue;
    return [key, value.stringValue ?? value.boolValue ?? (number === undefined ? undefined : Number(number))];
  }));
