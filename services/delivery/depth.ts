/** How much is queued, and for how long: measured now and then, for whoever watches. */
import { deliveryStreamName } from "../../contracts/streams.ts";
import type { Log } from "../../runtime/log.ts";
import { measure } from "../../runtime/measure.ts";
import type { Wire } from "./wire.ts";

const EVERY_MS = 15_000;

export function watchDepth(wire: Wire, shards: number, log: Log): AsyncDisposable {
  const look = async () => {
    let pending = 0;
    let oldest = Date.now();
    for (let shard = 0; shard < shards; shard++) {
      const info = await wire.api<{ state: { messages: number; first_ts: string } }>(
        `STREAM.INFO.${deliveryStreamName(shard)}`,
        {},
      );
      if ("error" in info || info.state.messages === 0) continue;
      pending += info.state.messages;
      oldest = Math.min(oldest, Date.parse(info.state.first_ts));
    }
    measure().pending.record(pending);
    measure().oldestPending.record(Math.max(0, (Date.now() - oldest) / 1_000));
  };
  let looking = Promise.resolve();
  const timer = setInterval(() => {
    looking = looking.then(look).catch((error) => log.debug("depth.unknown", { error }));
  }, EVERY_MS);
  return {
    async [Symbol.asyncDispose]() {
      clearInterval(timer);
      await looking;
    },
  };
}
