/**
 * Server-sent events. The service is asked for the next deliveries only when the reader has taken the last ones, so a
 * slow reader holds no memory and no more leases than one round of them. A delivery is acknowledged by request as ever:
 * what a reader did not get, because it left or its line broke, comes again, on this stream or the next.
 */
import type { Delivery } from "../contracts/deliveries.ts";
import { newId, type TenantCaller, ulid } from "../contracts/identity.ts";
import type { Input, OperationName } from "../contracts/operations.ts";
import type { Bus } from "../runtime/bus.ts";

export interface StreamOptions {
  readonly bus: Pick<Bus, "ask" | "giveUp">;
  readonly name: OperationName;
  readonly input: Input<OperationName>;
  /** What each item is called. */
  readonly event: string;
  readonly origin: { readonly caller: TenantCaller; readonly requestId: string };
  /** Asked before anything is handed over: a token may be revoked while its stream is open. */
  readonly isStillAllowed: () => Promise<boolean>;
  readonly stopping: AbortSignal;
}

export const streamHeaders = {
  "content-type": "text/event-stream; charset=utf-8",
  "cache-control": "no-store",
  // A proxy that collects the answer before passing it on would pass on nothing.
  "x-accel-buffering": "no",
};

const HEARTBEAT_SECONDS = 15;
const PAUSE_MS = 1_000;

/** Answers once the service has agreed to a first round. */
export async function openStream(options: StreamOptions): Promise<ReadableStream<Uint8Array>> {
  const { bus, name, input, event, origin, isStillAllowed, stopping } = options;
  const left = new AbortController();
  let seed = "";
  let unsent: Delivery[] = [];

  const round = async (wait: number): Promise<Delivery[]> => {
    seed = ulid();
    const asked = { ...input, query: { ...input.query, wait } };
    const answer = await bus.ask("delivery.stream", asked as Input<"delivery.stream">, { ...origin, seed });
    return answer.read().deliveries;
  };
  /** What was never written is free for the next reader at once. */
  const release = async (deliveries: readonly Delivery[]) => {
    if (deliveries.length === 0) return;
    const body = { delivery_ids: deliveries.map(({ id }) => id), delay_seconds: 0 };
    const seeded = { ...origin, requestId: newId("request"), seed: ulid() };
    await bus.ask("delivery.nack", { path: {}, query: {}, body }, seeded).catch(() => {});
  };
  const leave = () => {
    if (left.signal.aborted) return;
    left.abort();
    bus.giveUp(name, seed);
  };
  stopping.addEventListener("abort", leave, { once: true });

  unsent = await round(0);
  let greeted = false;
  return new ReadableStream<Uint8Array>({
    async pull(controller) {
      if (!greeted) {
        greeted = true;
        return controller.enqueue(encoder.encode(": open\n\n"));
      }
      const waited = unsent.length === 0;
      if (waited) unsent = await round(HEARTBEAT_SECONDS).catch(() => pause(left.signal));
      if (left.signal.aborted || !await isStillAllowed()) {
        await release(unsent.splice(0));
        stopping.removeEventListener("abort", leave);
        return controller.close();
      }
      const next = unsent.shift();
      if (next) {
        controller.enqueue(encoder.encode(`id: ${next.id}\nevent: ${event}\ndata: ${JSON.stringify(next)}\n\n`));
      } else controller.enqueue(encoder.encode(": still here\n\n"));
    },
    async cancel() {
      stopping.removeEventListener("abort", leave);
      leave();
      await release(unsent.splice(0));
    },
  }, { highWaterMark: 0 });
}

const encoder = new TextEncoder();

/** The service is away: the reader is told that the line stands, and a moment later it is asked again. */
const pause = (signal: AbortSignal): Promise<Delivery[]> =>
  new Promise((done) => {
    const timer = setTimeout(() => done([]), PAUSE_MS);
    signal.addEventListener("abort", () => (clearTimeout(timer), done([])), { once: true });
  });
