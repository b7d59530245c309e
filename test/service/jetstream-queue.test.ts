import { expect } from "vitest";
import {
  deliveryStreamName,
  deliveryStreams,
  expiryStream,
  historyStream,
  noteStream,
} from "../../contracts/streams.ts";
import { shardOf } from "../../contracts/subjects.ts";
import { connectBus } from "../../runtime/bus.ts";
import { ensureStreams } from "../../runtime/jetstream.ts";
import { silent } from "../../runtime/log.ts";
import { publisher as publisherOn } from "../../runtime/publish.ts";
import { jetstreamQueue } from "../../services/delivery/jetstream-queue.ts";
import { consumerName } from "../../services/delivery/leases.ts";
import { wire as wireOn } from "../../services/delivery/wire.ts";
import { broker as startBroker } from "../support/servers.ts";
import { MAX_ATTEMPTS, PATIENT_VISIBILITY_MS, queueConformance, VISIBILITY_MS } from "./queue-conformance.ts";

const SHARDS = 2;
const RETENTION_MS = 3_600_000;

// Once as in the first seconds of a connection, where every ending is looked up, and once as in the long run.
for (const trustAfterMs of [5_000, -60_000]) {
  queueConformance(trustAfterMs > 0 ? "JetStream" : "JetStream, trusting HISTORY from the start", async (keep) => {
    const stack = new AsyncDisposableStack();
    const broker = stack.use(await startBroker());
    const replica = async (visibilityMs: number) => {
      const { nc } = stack.use(await connectBus(broker.url, "test", silent));
      await ensureStreams(nc, [
        ...deliveryStreams(SHARDS, RETENTION_MS),
        historyStream(RETENTION_MS),
        noteStream(RETENTION_MS),
        expiryStream(SHARDS),
      ]);
      return stack.use(
        await jetstreamQueue({
          nc,
          wire: stack.use(wireOn(nc)),
          publisher: stack.use(publisherOn(nc)),
          shards: SHARDS,
          visibilityMs,
          maxAttempts: MAX_ATTEMPTS,
          retentionMs: RETENTION_MS,
          keep,
          log: silent,
          trustAfterMs,
        }),
      );
    };
    return {
      replicas: [await replica(VISIBILITY_MS), await replica(VISIBILITY_MS)],
      patient: await replica(PATIENT_VISIBILITY_MS),
      async handToDying(owner) {
        await using bus = await connectBus(broker.url, "dying", silent);
        await using wire = wireOn(bus.nc);
        const place = `${deliveryStreamName(shardOf(owner.agent, SHARDS))}.${consumerName(owner, 0)}`;
        const ask = { most: 1, limitMs: 5_000 };
        const { messages } = await wire.gather(`$JS.API.CONSUMER.MSG.NEXT.${place}`, JSON.stringify({ batch: 1 }), ask);
        expect(messages).toHaveLength(1);
      },
      async crash() {
        await broker.kill();
        await broker.start();
      },
      [Symbol.asyncDispose]: () => stack.disposeAsync(),
    };
  });
}
