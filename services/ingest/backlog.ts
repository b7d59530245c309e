/** How many events wait for fan-out. Told from here, because a fan-out that is away tells nobody. */
import { jetstreamManager } from "@nats-io/jetstream";
import type { NatsConnection } from "@nats-io/nats-core";
import { consumers } from "../../contracts/streams.ts";
import { measure } from "../../runtime/measure.ts";

const EVERY_MS = 15_000;

export function watchBacklog(nc: NatsConnection): AsyncDisposable {
  const look = async () => {
    const manager = await jetstreamManager(nc, { timeout: 2_000, checkAPI: false });
    const { num_pending, num_ack_pending } = await manager.consumers.info(
      consumers.fanout.stream,
      consumers.fanout.name,
    );
    measure().fanoutBacklog.record(num_pending + num_ack_pending);
  };
  let looking = Promise.resolve();
  // A broker that does not answer is told of elsewhere.
  const timer = setInterval(() => looking = looking.then(look).catch(() => {}), EVERY_MS);
  return {
    async [Symbol.asyncDispose]() {
      clearInterval(timer);
      await looking;
    },
  };
}
