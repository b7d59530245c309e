/**
 * Publishers at a steady rate, agents that hold a poll open, acknowledge what comes and say how long it took.
 *
 *   k6 run -e ORG_ADMIN_KEY=… -e RATE=100 -e AGENTS=50 -e DURATION=1m loadtest/k6/pipeline.ts
 */
import { check } from "k6";
import exec from "k6/execution";
import http from "k6/http";
import { Counter, Trend } from "k6/metrics";
import { BASE, bearer, prepare, type Prepared } from "./setup.ts";

const RATE = Number(__ENV.RATE || 100);
const AGENTS = Number(__ENV.AGENTS || 50);
const FAN_OUT = Number(__ENV.FAN_OUT || 5);
const DURATION = __ENV.DURATION || "30s";

const delivered = new Counter("deliveries");
const acknowledged = new Counter("acknowledged");
const latency = new Trend("publish_to_poll", true);

export const options = {
  setupTimeout: "5m",
  scenarios: {
    publish: {
      executor: "constant-arrival-rate",
      exec: "publish",
      rate: RATE,
      timeUnit: "1s",
      duration: DURATION,
      preAllocatedVUs: 20,
      maxVUs: 200,
    },
    receive: { executor: "constant-vus", exec: "receive", vus: AGENTS, duration: DURATION, gracefulStop: "10s" },
  },
  thresholds: {
    http_req_failed: ["rate==0"],
    checks: ["rate==1"],
    publish_to_poll: ["p(99)<50"],
    "http_req_duration{scenario:publish}": ["p(99)<50"],
  },
};

export const setup = (): Prepared => prepare(AGENTS, FAN_OUT);

export function publish({ sender }: Prepared): void {
  const n = exec.scenario.iterationInTest;
  const event = {
    specversion: "1.0",
    type: `k6.g${n % Math.floor(AGENTS / FAN_OUT)}.made`,
    source: "/k6",
    id: `${exec.scenario.startTime}-${n}`,
    data: { sent_at: Date.now(), text: "x".repeat(900) },
  };
  const answer = http.post(`${BASE}/events`, JSON.stringify(event), {
    headers: bearer(sender),
    tags: { name: "/events" },
  });
  check(answer, { "published": ({ status }) => status === 202 });
}

interface Polled {
  readonly deliveries: { id: string; payload: { data: { sent_at: number } } }[];
}

export function receive({ subscribers }: Prepared): void {
  const { token } = subscribers[exec.vu.idInTest % subscribers.length]!;
  const answer = http.get(`${BASE}/delivery/poll?limit=50&wait=5`, {
    headers: bearer(token),
    tags: { name: "/delivery/poll" },
  });
  if (!check(answer, { "polled": ({ status }) => status === 200 })) return;
  const { deliveries } = answer.json() as unknown as Polled;
  if (deliveries.length === 0) return;
  const now = Date.now();
  for (const { payload } of deliveries) latency.add(now - payload.data.sent_at);
  delivered.add(deliveries.length);
  const ids = deliveries.map(({ id }) => id);
  const acked = http.post(`${BASE}/delivery/ack`, JSON.stringify({ delivery_ids: ids }), {
    headers: bearer(token),
    tags: { name: "/delivery/ack" },
  });
  check(acked, { "acknowledged": ({ status }) => status === 200 });
  acknowledged.add((acked.json() as unknown as { acknowledged: number }).acknowledged);
}
