/** Clients that publish at a pace and take what comes, with a ledger kept outside the system. */
import type { Member } from "../../ops/fleet.ts";
import { eventually } from "./eventually.ts";
import type { TestAgent } from "./world.ts";

export interface Load {
  /** Ids of events that were answered with 202 or 200. */
  readonly accepted: ReadonlySet<string>;
  /** What each agent has received, by its id. */
  readonly received: ReadonlyMap<string, ReadonlySet<string>>;
  /** Every answer that was not 2xx, and every request without one. */
  readonly refused: readonly string[];
  /** Deliveries that came again after their acknowledgement was counted. */
  readonly again: readonly string[];
  /** Settles once so many more events were accepted. */
  more(count: number): Promise<void>;
  /** No new events; settles when every agent has everything. */
  finish(): Promise<void>;
}

export interface LoadOptions {
  readonly gateways: readonly Member[];
  readonly publisher: TestAgent;
  readonly receivers: readonly TestAgent[];
  readonly perSecond: number;
  readonly eventType: string;
}

const pause = (ms: number) => new Promise<void>((done) => setTimeout(done, ms));
const PATIENCE_MS = 90_000;

export function startLoad(
  { gateways, publisher, receivers, perSecond, eventType }: LoadOptions,
): Load & AsyncDisposable {
  const accepted = new Set<string>();
  const received = new Map(receivers.map(({ id }) => [id, new Set<string>()]));
  const refused: string[] = [];
  const again: string[] = [];
  const stop = { publishing: false, receiving: false };
  const balancer = balance(gateways);

  const send = async (method: string, path: string, token: string, body?: unknown): Promise<Response | undefined> => {
    const base = balancer.next();
    const response = await fetch(`${base}${path}`, {
      method,
      headers: { authorization: `Bearer ${token}`, "content-type": "application/json" },
      ...(body ? { body: JSON.stringify(body) } : {}),
      signal: AbortSignal.timeout(30_000),
    }).catch((error: Error) => void refused.push(`${method} ${path}: ${error.message} ${String(error.cause ?? "")}`));
    if (response && !response.ok) refused.push(`${method} ${path}: ${response.status} ${await response.text()}`);
    return response?.ok ? response : undefined;
  };

  /** The same event again until it is accepted: its id makes that harmless. */
  const publish = async (id: string) => {
    const event = { specversion: "1.0", type: eventType, source: "/load", id, data: { id } };
    for (; !stop.receiving; await pause(250)) {
      const answer = await send("POST", "/events", publisher.token, event);
      await answer?.arrayBuffer();
      if (answer) return void accepted.add(id);
    }
  };

  const publishing = (async () => {
    const inHand: Promise<void>[] = [];
    const startedAt = performance.now();
    for (let i = 0; !stop.publishing; i++) {
      const due = startedAt + (i * 1_000) / perSecond;
      await pause(Math.max(0, due - performance.now()));
      inHand.push(publish(`${publisher.id}-${i}`));
    }
    await Promise.all(inHand);
  })();

  const receive = async ({ id, token }: TestAgent) => {
    const acknowledged = new Set<string>();
    while (!stop.receiving) {
      const answer = await send("GET", "/delivery/poll?wait=1&limit=100", token);
      if (!answer) {
        await pause(100);
        continue;
      }
      const { deliveries } = await answer.json() as { deliveries: { id: string; event_id: string }[] };
      if (deliveries.length === 0) continue;
      for (const delivery of deliveries) {
        received.get(id)!.add(delivery.event_id);
        if (acknowledged.has(delivery.id)) again.push(delivery.id);
      }
      const ids = deliveries.map((delivery) => delivery.id);
      const acked = await send("POST", "/delivery/ack", token, { delivery_ids: ids });
      if (acked && (await acked.json() as { acknowledged: number }).acknowledged === ids.length) {
        for (const id of ids) acknowledged.add(id);
      }
    }
  };
  const receiving = Promise.all(receivers.map(receive));

  const end = async () => {
    stop.publishing = stop.receiving = true;
    await Promise.all([publishing, receiving]);
    balancer.stop();
  };
  return {
    accepted,
    received,
    refused,
    again,
    async more(count) {
      const wanted = accepted.size + count;
      await eventually(() => accepted.size >= wanted, `${count} more events`, PATIENCE_MS);
    },
    async finish() {
      stop.publishing = true;
      await publishing;
      const isComplete = () => [...received.values()].every((ids) => ids.size >= accepted.size);
      await eventually(isComplete, "every delivery", PATIENCE_MS);
      await end();
    },
    [Symbol.asyncDispose]: end,
  };
}

/** What a load balancer does: asks each gateway whether it is ready, and sends to those that said so last. */
function balance(gateways: readonly Member[]): { next(): string; stop(): void } {
  const ready = new Set(gateways);
  let stopped = false;
  let turn = 0;
  for (const gateway of gateways) {
    void (async () => {
      for (; !stopped; await pause(50)) {
        const answer = await fetch(`${gateway.healthUrl}/readyz`, { signal: AbortSignal.timeout(5_000) })
          .catch(() => undefined);
        await answer?.arrayBuffer().catch(() => {});
        if (answer?.ok) ready.add(gateway);
        else ready.delete(gateway);
      }
    })();
  }
  return {
    next: () => [...ready.size > 0 ? ready : gateways][turn++ % Math.max(1, ready.size)]!.url,
    stop: () => void (stopped = true),
  };
}
