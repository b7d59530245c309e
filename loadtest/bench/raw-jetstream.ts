/**
 * The floor: a program that does the pipeline's moves on JetStream and nothing else. No HTTP, no tokens, no filters, no
 * tenants; an event is stored with deduplication, copied to five queues, pulled in batches and acknowledged.
 */
import { AckPolicy, jetstream, jetstreamManager, RetentionPolicy, StorageType } from "@nats-io/jetstream";
import { createInbox, headers, type NatsConnection } from "@nats-io/nats-core";
import { connect } from "@nats-io/transport-node";
import { cpuSeconds, treeOf } from "./cpu.ts";
import { readFileSync } from "node:fs";

export interface RawOptions {
  readonly natsUrl: string;
  /** The instance whose nats-server is used; only that server's time is counted, beside this process's own. */
  readonly serverPid: number;
  readonly events: number;
  readonly fanOut: number;
  readonly agents: number;
  readonly batch: number;
  readonly perRequest: number;
  readonly payload: string;
}

export async function rawJetStream(options: RawOptions): Promise<{ cpuMicroseconds: number; perSecond: number }> {
  const { natsUrl, serverPid, events, fanOut, agents, batch, perRequest, payload } = options;
  const { username, password, host } = new URL(natsUrl);
  const nc = await connect({ servers: host, user: username, pass: password });
  const manager = await jetstreamManager(nc);
  await manager.streams.add({
    name: "RAW-EVENTS",
    subjects: ["raw.event.>"],
    storage: StorageType.File,
    duplicate_window: 600e9,
    allow_direct: true,
  });
  await manager.streams.add({
    name: "RAW-QUEUES",
    subjects: ["raw.queue.>"],
    storage: StorageType.File,
    retention: RetentionPolicy.Workqueue,
    max_consumers: -1,
  });
  for (let i = 0; i < agents; i++) {
    await manager.consumers.add("RAW-QUEUES", {
      durable_name: `a${i}`,
      filter_subject: `raw.queue.${i}`,
      ack_policy: AckPolicy.Explicit,
      ack_wait: 30e9,
      max_deliver: 5,
    });
  }
  const nats = treeOf(serverPid).find((pid) => readFileSync(`/proc/${pid}/comm`, "utf8").startsWith("nats-server"))!;
  const publish = publisher(nc);
  const groups = agents / fanOut;

  const cpu = () => cpuSeconds(nats) + process.cpuUsage().user / 1e6 + process.cpuUsage().system / 1e6;
  const before = cpu();
  const startedAt = performance.now();
  const width = 16 * perRequest;
  for (let first = 0; first < events; first += width) {
    const some = Array.from({ length: Math.min(width, events - first) }, (_, n) => first + n);
    const stored = await Promise.all(
      some.map((i) => publish(`raw.event.${i % groups}`, payload, `${perRequest}-${i}`)),
    );
    await Promise.all(
      some.flatMap((i, n) =>
        Array.from(
          { length: fanOut },
          (_, f) =>
            publish(`raw.queue.${(i % groups) * fanOut + f}`, String(stored[n]), `${perRequest}-${stored[n]}-${f}`),
        )
      ),
    );
  }
  const js = jetstream(nc);
  let received = 0;
  for (let i = 0; i < agents; i++) {
    const consumer = await js.consumers.get("RAW-QUEUES", `a${i}`);
    // Never more than is there: a request that cannot be filled waits for its time to end.
    for (let left = events * fanOut / agents; left > 0;) {
      const wanted = Math.min(batch, left);
      const pulled = await consumer.fetch({ max_messages: wanted, expires: 30_000 });
      let count = 0;
      for await (const message of pulled) {
        message.ack();
        if (++count === wanted) break;
      }
      if (count < wanted) throw new Error(`Agent ${i} lacks ${left - count} deliveries`);
      received += count;
      left -= count;
    }
  }
  await nc.flush();
  const result = {
    cpuMicroseconds: ((cpu() - before) / received) * 1e6,
    perSecond: received / ((performance.now() - startedAt) / 1_000),
  };
  await manager.streams.delete("RAW-EVENTS");
  await manager.streams.delete("RAW-QUEUES");
  await nc.close();
  return result;
}

/** Publishes through one inbox, as cheaply as the client allows. */
function publisher(nc: NatsConnection) {
  const inbox = createInbox();
  const waiting = new Map<string, (seq: number) => void>();
  let next = 0;
  nc.subscribe(`${inbox}.*`, {
    callback(_, msg) {
      const token = msg.subject.slice(inbox.length + 1);
      waiting.get(token)?.(msg.json<{ seq: number }>().seq);
      waiting.delete(token);
    },
  });
  return (subject: string, body: string, id: string): Promise<number> =>
    new Promise((resolve) => {
      const token = (next++).toString(36);
      waiting.set(token, resolve);
      const h = headers();
      h.set("Nats-Msg-Id", id);
      nc.publish(subject, body, { reply: `${inbox}.${token}`, headers: h });
    });
}
