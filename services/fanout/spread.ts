/**
 * One batch of events, spread to whoever cares. Nothing here is kept: a process that dies at any line leaves its events
 * unacknowledged, and the next one does the same again under the same names, which stores nothing twice.
 */
import type { CloudEvent } from "../../contracts/events.ts";
import type { Input } from "../../contracts/operations.ts";
import { eventHeaders } from "../../contracts/pipeline.ts";
import { parseEvent } from "../../contracts/subjects.ts";
import type { FilterScope } from "../../runtime/cel.ts";
import { type ConsumeOptions, delayAfter, type Outcome, type Taken } from "../../runtime/consume.ts";
import type { Log } from "../../runtime/log.ts";
import { measure } from "../../runtime/measure.ts";
import { processing, sending } from "../../runtime/messaging.ts";
import { pause } from "../../runtime/pause.ts";
import { traceIn } from "../../runtime/telemetry.ts";
import type { Enqueue } from "./enqueue.ts";
import type { Progress } from "./progress.ts";
import type { Barrier, Routes } from "./routes.ts";

/** An event nobody could be told of, for the tenant's dead letters. */
export type Letter = Input<"delivery.bury">["body"];

export interface SpreadDeps {
  readonly routes: Pick<Routes, "barrier" | "of">;
  readonly progress: Progress;
  readonly enqueue: Enqueue;
  readonly bury: (letter: Letter) => Promise<void>;
  readonly log: Log;
}

/** With the delays between them about four minutes: less than the window in which a repeated delivery is recognised. */
export const MAX_ATTEMPTS = 10;
/** From here on an event is worked alone, so that one which kills its process takes no others with it. */
const SUSPECT_ATTEMPT = 3;
/** Recipients in hand; events for everyone in a large tenant must not fill the memory by the batch. */
const MAX_LOAD = 10_000;

interface Load {
  /** How many a batch has matched and not yet queued. */
  recipients: number;
  /** Sequences of the events whose deliveries are all queued. */
  readonly queued: number[];
}

export function spreader(deps: SpreadDeps): ConsumeOptions["work"] {
  return async (batch, signal) => {
    const ground = await firmGround(deps, batch, signal);
    if (!ground) return batch.map(() => ({ retryInMs: 0 }));
    const { barrier, fanned } = ground;
    const left = batch.filter(({ seq }) => !fanned.has(seq));
    const outcomes = new Map<Taken, Promise<Outcome>>();
    const load: Load = { recipients: 0, queued: [] };
    for (const taken of left.filter((taken) => taken.attempt < SUSPECT_ATTEMPT)) {
      if (load.recipients > MAX_LOAD) await Promise.all(outcomes.values());
      if (!barrier.isHeld()) await barrier.again();
      outcomes.set(taken, spread(deps, taken, load));
    }
    await Promise.all(outcomes.values());
    for (const taken of left.filter((taken) => taken.attempt >= SUSPECT_ATTEMPT)) {
      if (!barrier.isHeld()) await barrier.again();
      outcomes.set(taken, spread(deps, taken, load));
      await outcomes.get(taken);
    }
    await deps.progress.note(load.queued);
    measure().fanoutLag.record(Math.max(0, Date.now() - Math.min(...batch.map((taken) => taken.storedAtMs))) / 1_000);
    return Promise.all(batch.map((taken) => outcomes.get(taken) ?? "done"));
  };
}

/**
 * What a batch stands on: routes that are up to date, and what was fanned out before. Without them no event can go
 * anywhere, so the batch waits for them as long as it takes. Giving it back would use up the attempts of events that
 * have nothing wrong with them.
 */
async function firmGround(
  { routes, progress, log }: SpreadDeps,
  batch: readonly Taken[],
  signal: AbortSignal,
): Promise<{ barrier: Barrier; fanned: ReadonlySet<number> } | undefined> {
  for (let failures = 1; !signal.aborted; failures++) {
    try {
      const fanned = await progress.fannedAmong(batch);
      return { barrier: await routes.barrier(), fanned };
    } catch (error) {
      log.warn("fanout.waits", { failures, error });
      await pause(Math.min(2_000, delayAfter(failures)), signal);
    }
  }
  return undefined;
}

/** Runs up to its first wait in the breath of the barrier: parsing and matching come before anything is awaited. */
async function spread(deps: SpreadDeps, taken: Taken, load: Load): Promise<Outcome> {
  const tenant = parseEvent(taken.subject)?.tenant;
  const event = tenant ? readEvent(taken.body) : undefined;
  if (!tenant || !event) return await bury(deps, taken, tenant, "It is stored in a form that cannot be read");
  if (taken.attempt > MAX_ATTEMPTS) {
    return await bury(deps, taken, tenant, `Fan-out did not come to an end in ${MAX_ATTEMPTS} attempts`);
  }
  let width = 0;
  try {
    const target = taken.headers?.get(eventHeaders.target) || undefined;
    const found = deps.routes.of(tenant)?.recipients(scopeOf(event), taken.storedAtMs, target);
    if (!found) return "done";
    if (found.filterErrors > 0) measure().filterErrors.add(found.filterErrors, { tenant });
    width = found.recipients.length;
    if (width === 0) return "done";
    load.recipients += width;
    await processing(
      "EVENTS",
      "fanout",
      traceIn(taken.headers),
      () =>
        sending(
          "DELIVERIES",
          { count: width },
          (trace) => deps.enqueue({ tenant, seq: taken.seq, id: event.id, trace }, found.recipients),
        ),
    );
    load.queued.push(taken.seq);
    measure().queued.add(width, { tenant });
    return "done";
  } catch (error) {
    deps.log.warn("fanout.failed", { tenant, seq: taken.seq, attempt: taken.attempt, error });
    if (taken.attempt < MAX_ATTEMPTS) return { retryInMs: delayAfter(taken.attempt) };
    const reason = error instanceof Error ? error.message : String(error);
    return await bury(deps, taken, tenant, `Fan-out failed ${taken.attempt} times; the last time: ${reason}`);
  } finally {
    load.recipients -= width;
  }
}

/** Only what has arrived among the dead letters may leave the stream's hands. */
async function bury(
  { bury, log }: SpreadDeps,
  taken: Taken,
  tenant: string | undefined,
  reason: string,
): Promise<Outcome> {
  if (!tenant) {
    log.error("fanout.stray_message", { subject: taken.subject, seq: taken.seq });
    return "drop";
  }
  try {
    await bury({ tenant, seq: taken.seq, agent: null, attempts: taken.attempt, reason });
    log.error("fanout.buried", { tenant, seq: taken.seq, attempt: taken.attempt, reason });
    measure().buried.add(1, { tenant });
    return "done";
  } catch (error) {
    log.warn("fanout.bury_failed", { tenant, seq: taken.seq, attempt: taken.attempt, error });
    return { retryInMs: delayAfter(taken.attempt) };
  }
}

const decoder = new TextDecoder();

export function readEvent(body: Uint8Array): CloudEvent | undefined {
  try {
    const event: unknown = JSON.parse(decoder.decode(body));
    const { id, type } = event as Partial<CloudEvent>;
    return typeof id === "string" && typeof type === "string" ? event as CloudEvent : undefined;
  } catch {
    return undefined;
  }
}

export const scopeOf = ({ data, type, source, subject, id, time }: CloudEvent): FilterScope => ({
  data: data ?? null,
  type,
  source,
  subject: subject ?? null,
  id,
  time: time ?? null,
});
