/**
 * `npm run bench:pipeline`: accept → fan out → poll(50) → ack(50) with 1 KB events that five agents care for. Prints the
 * processor time of all server processes for one delivery, one event a request and fifty, beside raw JetStream making
 * the same moves in the same run; latency at half load; and how cost and memory grow with registered agents.
 *
 * BENCH_EVENTS (default 20000) events a measurement; BENCH_AGENTS (default 100,10000) registered agents.
 */
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { cpuSeconds, residentBytes } from "./cpu.ts";
import { type Http, httpClient, inParallel, percentile } from "./http.ts";
import { exchange, type Measured, startInstance } from "./instance.ts";
import { rawJetStream } from "./raw-jetstream.ts";
import { type Receiver, registerReceiver } from "./receiver.ts";

const EVENTS = Number(process.env.BENCH_EVENTS ?? 20_000);
const SIZES = (process.env.BENCH_AGENTS ?? "100,10000").split(",").map(Number);
const POLLING = 1_000;
const FAN_OUT = 5;
const BATCH = 50;
const PAYLOAD = "x".repeat(900);

interface Subscriber extends Receiver {
  readonly group: number;
  /** Events published for its group and not received yet, as far as this side knows. */
  outstanding: number;
}

type Poll = { deliveries: { id: string; event_id: string }[]; count: number };

/** Registers agents in groups of five that share an interest; only the first thousand will poll. */
async function registerAgents(http: Http, url: string, admin: string, count: number): Promise<Subscriber[]> {
  const all = await inParallel(Array.from({ length: count }), 16, async (_, i) => {
    const group = Math.floor(i / FAN_OUT);
    const receiver = await registerReceiver({ http, url, admin }, `a${i}`, `com.bench.g${group}.*`);
    return { ...receiver, group, outstanding: 0 };
  });
  return all.slice(0, POLLING);
}

let published = 0;
const eventFor = (group: number) => ({
  specversion: "1.0",
  type: `com.bench.g${group}.made`,
  source: "/bench",
  id: `e${process.pid}-${published++}`,
  data: { text: PAYLOAD },
});

async function publishAll(http: Http, token: string, subscribers: Subscriber[], perRequest: number): Promise<void> {
  const groups = subscribers.length / FAN_OUT;
  const members = Map.groupBy(subscribers, ({ group }) => group);
  const requests = Array.from({ length: EVENTS / perRequest });
  await inParallel(requests, 16, async (_, i) => {
    const chosen = Array.from({ length: perRequest }, (_, n) => (i * perRequest + n) % groups);
    const events = chosen.map(eventFor);
    const { status } = perRequest === 1
      ? await http("POST", "/events", token, events[0])
      : await http("POST", "/events", token, events, "application/cloudevents-batch+json");
    if (status !== 202) throw new Error(`A publish was answered ${status}`);
    for (const group of chosen) for (const subscriber of members.get(group)!) subscriber.outstanding++;
  });
}

/** Polls whoever has a full batch waiting, and at the end whoever has anything. */
async function drain(http: Http, subscribers: Subscriber[], isDone: () => boolean): Promise<number> {
  let received = 0;
  let busy = new Set<Subscriber>();
  const next = () => subscribers.find((s) => !busy.has(s) && s.outstanding >= (isDone() ? 1 : BATCH));
  await Promise.all(Array.from({ length: 8 }, async () => {
    for (;;) {
      const subscriber = next();
      if (!subscriber) {
        if (isDone() && subscribers.every((s) => s.outstanding <= 0)) return;
        await new Promise((resolve) => setTimeout(resolve, 5));
        continue;
      }
      busy.add(subscriber);
      const { body } = await http<Poll>("GET", `/delivery/poll?limit=${BATCH}`, subscriber.token);
      if (body.count > 0) {
        const ids = body.deliveries.map(({ id }) => id);
        const { body: acked } = await http<{ acknowledged: number }>("POST", "/delivery/ack", subscriber.token, {
          delivery_ids: ids,
        });
        received += acked.acknowledged;
        subscriber.outstanding -= acked.acknowledged;
      }
      busy.delete(subscriber);
    }
  }));
  busy = new Set();
  return received;
}

interface Figures {
  readonly cpuMicroseconds: number;
  readonly perSecond: number;
}

async function measure(
  instance: Measured,
  http: Http,
  token: string,
  subscribers: Subscriber[],
  perRequest: number,
): Promise<Figures> {
  const before = cpuSeconds(instance.pid);
  const startedAt = performance.now();
  let done = false;
  const received = drain(http, subscribers, () => done);
  await publishAll(http, token, subscribers, perRequest);
  done = true;
  const deliveries = await received;
  if (deliveries !== EVENTS * FAN_OUT) throw new Error(`${deliveries} deliveries instead of ${EVENTS * FAN_OUT}`);
  const seconds = (performance.now() - startedAt) / 1_000;
  return { cpuMicroseconds: ((cpuSeconds(instance.pid) - before) / deliveries) * 1e6, perSecond: deliveries / seconds };
}

interface Streaming {
  readonly waits: number[];
  readonly eventsPerSecond: number;
}

/**
 * Fifty agents hold a poll open, and every delivery is taken and acknowledged as it comes: how long from the request to
 * the delivery. Without a pace, sixteen publishers go as fast as they are answered, which shows the capacity.
 */
async function streaming(
  http: Http,
  token: string,
  subscribers: Subscriber[],
  seconds: number,
  eventsPerSecond?: number,
): Promise<Streaming> {
  const listeners = subscribers.slice(0, 50);
  const sentAt = new Map<string, number>();
  const waits: number[] = [];
  let done = false;
  const polls = listeners.map(async ({ token: own }) => {
    for (let empty = false; !done || !empty;) {
      const { body } = await http<Poll>("GET", `/delivery/poll?limit=50&wait=1`, own);
      const now = performance.now();
      for (const { event_id } of body.deliveries) waits.push(now - (sentAt.get(event_id) ?? now));
      if (body.count > 0) {
        await http("POST", "/delivery/ack", own, { delivery_ids: body.deliveries.map(({ id }) => id) });
      }
      empty = body.count === 0;
    }
  });
  const startedAt = performance.now();
  const endsAt = startedAt + seconds * 1_000;
  let sent = 0;
  const send = async () => {
    const event = eventFor(sent++ % (listeners.length / FAN_OUT));
    sentAt.set(event.id, performance.now());
    await http("POST", "/events", token, event);
  };
  if (eventsPerSecond) {
    const inFlight: Promise<void>[] = [];
    for (let due = startedAt; due < endsAt; due += 1_000 / eventsPerSecond) {
      const early = due - performance.now();
      if (early > 1) await new Promise((resolve) => setTimeout(resolve, early));
      inFlight.push(send());
    }
    await Promise.all(inFlight);
  } else {
    await Promise.all(Array.from({ length: 16 }, async () => {
      while (performance.now() < endsAt) await send();
    }));
  }
  const rate = sent / ((performance.now() - startedAt) / 1_000);
  done = true;
  await Promise.all(polls);
  return { waits: waits.sort((a, b) => a - b), eventsPerSecond: rate };
}

const rows: string[][] = [];
const paced: [string, Streaming][] = [];
for (const size of SIZES) {
  await using instance = await startInstance();
  const http = httpClient(instance.url, 128);
  const admin = await exchange(instance.url, instance.bootstrap.org_admin_key);
  console.error(`registering ${size} agents …`);
  const subscribers = await registerAgents(http, instance.url, admin, size);
  await measure(instance, http, instance.token, subscribers, BATCH); // warm
  const single = await measure(instance, http, instance.token, subscribers, 1);
  const batched = await measure(instance, http, instance.token, subscribers, BATCH);
  const memory = `${Math.round(residentBytes(instance.pid) / 2 ** 20)} MB`;
  rows.push([
    `Sensorium, ${size} agents, 1 event a request`,
    single.cpuMicroseconds.toFixed(0),
    single.perSecond.toFixed(0),
    memory,
  ]);
  rows.push([
    `Sensorium, ${size} agents, ${BATCH} events a request`,
    batched.cpuMicroseconds.toFixed(0),
    batched.perSecond.toFixed(0),
    memory,
  ]);
  if (size === SIZES[0]) {
    const capacity = await streaming(http, instance.token, subscribers, 5);
    for (const [name, share] of [["half", 2], ["a quarter of the", 4], ["an eighth of the", 8]] as const) {
      paced.push([name, await streaming(http, instance.token, subscribers, 8, capacity.eventsPerSecond / share)]);
    }
    const { nats_url } = JSON.parse(await readFile(join(instance.dataDir, "instance.json"), "utf8")) as {
      nats_url: string;
    };
    for (const perRequest of [1, BATCH]) {
      const raw = await rawJetStream({
        natsUrl: nats_url,
        serverPid: instance.pid,
        events: EVENTS,
        fanOut: FAN_OUT,
        agents: subscribers.length,
        batch: BATCH,
        perRequest,
        payload: PAYLOAD,
      });
      rows.push([
        `raw JetStream, steps of ${16 * perRequest}`,
        raw.cpuMicroseconds.toFixed(0),
        raw.perSecond.toFixed(0),
        "",
      ]);
    }
  }
}

console.log(`\n${EVENTS} events of 1 KB, fan-out ${FAN_OUT}, poll and ack ${BATCH}\n`);
console.log("| what | CPU µs a delivery | deliveries/s | resident |\n|---|---|---|---|");
for (const row of rows) console.log(`| ${row.join(" | ")} |`);
for (const [name, { waits, eventsPerSecond }] of paced) {
  const figures = [50, 99].map((p) => `p${p} ${percentile(waits, p).toFixed(1)} ms`).join(", ");
  const rate = `${eventsPerSecond.toFixed(0)} events/s, each delivered alone`;
  console.log(`\npublish to poll at ${name} load (${rate}): ${figures}, ${waits.length} deliveries`);
}
