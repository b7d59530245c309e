/** Whether the pipeline can take more: how many events wait for fan-out, asked of the broker twice a second. */
import { jetstreamManager } from "@nats-io/jetstream";
import type { NatsConnection } from "@nats-io/nats-core";
import { consumers } from "../../contracts/streams.ts";
import type { Log } from "../../runtime/log.ts";

export interface Pressure extends AsyncDisposable {
  /** True while too many wait, and while nobody can tell. */
  isHigh(): boolean;
  /** Called whenever there is room again. */
  onEase(listener: () => void): { stop(): void };
}

const ASK_MS = 500;

export async function watchPressure(nc: NatsConnection, maxBehind: number, log: Log): Promise<Pressure> {
  const manager = await jetstreamManager(nc, { timeout: 2_000, checkAPI: false });
  const listeners = new Set<() => void>();
  let high = true;
  const look = async () => {
    const behind = await manager.consumers.info(consumers.fanout.stream, consumers.fanout.name).then(
      ({ num_pending, num_ack_pending }) => num_pending + num_ack_pending,
      // Before the first fan-out there is nobody to be behind of.
      (error) => isMissing(error) ? 0 : Infinity,
    );
    const was = high;
    // Open again at half, so that it does not flutter around the mark.
    high = behind > (was ? maxBehind / 2 : maxBehind);
    if (high !== was) log.info("connector.pressure", { high, behind: Number.isFinite(behind) ? behind : "unknown" });
    if (was && !high) { for (const listener of listeners) listener(); }
  };
  await look();
  const asking = setInterval(() => void look(), ASK_MS);
  return {
    isHigh: () => high,
    onEase(listener) {
      listeners.add(listener);
      return { stop: () => listeners.delete(listener) };
    },
    async [Symbol.asyncDispose]() {
      clearInterval(asking);
    },
  };
}

/** No such consumer (10014) or no such stream (10059). */
const isMissing = (error: unknown): boolean => [10014, 10059].includes((error as { code?: number }).code ?? 0);
