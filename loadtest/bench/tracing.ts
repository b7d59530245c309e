/**
 * `npm run bench:tracing`: what tracing costs. Three instances side by side, one without an exporter, one that samples
 * nothing and one that samples everything and sends it, take turns at accept → fan out → poll(50) → ack(50) with 1 KB events
 * that five agents care for. Prints the median processor time of a delivery, and what it is of the first one's.
 *
 * BENCH_EVENTS (default 1000) events a turn; BENCH_TURNS (default 7), of which the first is not counted.
 */
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { cpuSeconds } from "./cpu.ts";
import { type Http, httpClient, inParallel } from "./http.ts";
import { exchange, type Measured, startInstance } from "./instance.ts";
import { registerReceiver } from "./receiver.ts";

const EVENTS = Number(process.env.BENCH_EVENTS ?? 1_000);
const TURNS = Number(process.env.BENCH_TURNS ?? 7);
const FAN_OUT = 5;
const BATCH = 50;

interface Subject {
  readonly name: string;
  readonly instance: Measured;
  readonly http: Http;
  readonly publisher: string;
  readonly receivers: readonly string[];
  readonly microseconds: number[];
}

/** Takes spans and forgets them; its time is the collector's, and not counted. */
async function sink() {
  const server = createServer((request, response) => {
    request.resume().on("end", () => response.writeHead(200, { "content-type": "application/json" }).end("{}"));
  });
  await new Promise<void>((done) => server.listen(0, "127.0.0.1", done));
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, close: () => server.close() };
}

async function prepare(name: string, env: Record<string, string>): Promise<Subject & AsyncDisposable> {
  const instance = await startInstance(env);
  const http = httpClient(instance.url);
  const admin = await exchange(instance.url, instance.bootstrap.org_admin_key);
  const receivers = await inParallel(Array.from({ length: FAN_OUT }), 1, async (_, i) => {
    return (await registerReceiver({ http, url: instance.url, admin }, `a${i}`, "com.bench.*")).token;
  });
  return {
    name,
    instance,
    http,
    publisher: instance.token,
    receivers,
    microseconds: [],
    [Symbol.asyncDispose]: () => instance[Symbol.asyncDispose](),
  };
}

let published = 0;

async function turn({ instance, http, publisher, receivers }: Subject): Promise<number> {
  const before = cpuSeconds(instance.pid);
  await inParallel(Array.from({ length: EVENTS }), 16, async () => {
    const { status } = await http("POST", "/events", publisher, {
      specversion: "1.0",
      type: "com.bench.made",
      source: "/bench",
      id: `e${published++}`,
      data: { text: "x".repeat(900) },
    });
    if (status !== 202) throw new Error(`A publish was answered ${status}`);
  });
  await Promise.all(receivers.map(async (token) => {
    for (let left = EVENTS; left > 0;) {
      const { body } = await http<{ deliveries: { id: string }[] }>(
        "GET",
        `/delivery/poll?limit=${BATCH}&wait=1`,
        token,
      );
      const delivery_ids = body.deliveries.map(({ id }) => id);
      if (delivery_ids.length === 0) continue;
      left -=
        (await http<{ acknowledged: number }>("POST", "/delivery/ack", token, { delivery_ids })).body.acknowledged;
    }
  }));
  return ((cpuSeconds(instance.pid) - before) / (EVENTS * FAN_OUT)) * 1e6;
}

const median = (values: readonly number[]) => values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)]!;

const collector = await sink();
const sending = { OTEL_EXPORTER_OTLP_ENDPOINT: collector.url, OTEL_METRICS_EXPORTER: "none" };
await using stack = new AsyncDisposableStack();
const subjects: Subject[] = [];
for (
  const [name, env] of [
    ["no exporter", {}],
    ["exporter, 0% sampled", { ...sending, OTEL_TRACES_SAMPLER: "traceidratio", OTEL_TRACES_SAMPLER_ARG: "0" }],
    ["exporter, 100% sampled", sending],
  ] as const
) subjects.push(stack.use(await prepare(name, env)));
for (let i = 0; i < TURNS; i++) {
  for (const subject of subjects) {
    const microseconds = await turn(subject);
    if (i > 0) subject.microseconds.push(microseconds);
  }
}
collector.close();
const base = median(subjects[0]!.microseconds);
console.log(`\n${EVENTS} events of 1 KB a turn, ${TURNS - 1} turns, fan-out ${FAN_OUT}, poll and ack ${BATCH}\n`);
console.log("| tracing | CPU µs a delivery, median | ratio |\n|---|---|---|");
for (const { name, microseconds } of subjects) {
  const own = median(microseconds);
  console.log(`| ${name} | ${own.toFixed(0)} | ${(own / base).toFixed(2)} |`);
}
