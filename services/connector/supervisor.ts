/** Keeps every connector that is announced, not paused and not owned by another process running here. */
import { ConnectorLoad, type ConnectorRoute, type ConnectorStatus } from "../../contracts/ingestion.ts";
import type { Log } from "../../runtime/log.ts";
import { measure } from "../../runtime/measure.ts";
import type { Claim, Ownership } from "./ownership.ts";
import type { Outcome, Reader, ReaderDeps } from "./reader.ts";

export interface Supervisor extends AsyncDisposable {
  /** What the registry announced; undefined when the connector is gone. */
  apply(id: string, route: ConnectorRoute | undefined): void;
}

interface Running {
  readonly claim: Claim;
  readonly reader: Reader;
  readonly pulse: ReturnType<typeof setInterval>;
  readonly labels: Labels;
}

const KEPT_REJECTIONS = 20;
const WRITE_MS = 1_000;
/** However long the lease: an entry older than a few of these has no owner any more. */
const PULSE_MS = 15_000;

export function supervise(options: {
  readonly ownership: Ownership;
  readonly leaseMs: number;
  readonly startReader: (id: string, route: ConnectorRoute, note: ReaderDeps["note"], log: Log) => Reader;
  readonly log: Log;
}): Supervisor {
  const { ownership, leaseMs, startReader, log } = options;
  const routes = new Map<string, ConnectorRoute>();
  const running = new Map<string, Running>();
  /** One thing at a time for each connector, so that a pause and a take-over cannot cross. */
  const queues = new Map<string, Promise<void>>();
  let isStopping = false;

  const inTurn = (id: string, work: () => Promise<void>): Promise<void> => {
    const next = (queues.get(id) ?? Promise.resolve()).then(work)
      .catch((error) => log.warn("connector.supervision_failed", { connector: id, error }))
      .finally(() => {
        if (queues.get(id) === next) queues.delete(id);
      });
    queues.set(id, next);
    return next;
  };

  /** Brings what runs here in line with what is announced. */
  const settle = async (id: string): Promise<void> => {
    const route = routes.get(id);
    const isWanted = route !== undefined && !route.paused && !isStopping;
    if (!isWanted) {
      await stop(id, route?.paused ? "paused" : "waiting");
      if (!route && !isStopping) await ownership.forget(id);
    } else if (!running.has(id)) {
      const claim = await ownership.claim(id);
      if (claim) start(id, route, claim);
    }
  };

  const start = (id: string, route: ConnectorRoute, claim: Claim) => {
    const own = log.with({ connector: id, tenant: route.tenant });
    const labels = { tenant: route.tenant, source: route.source, connector: id };
    let isDirty = true;
    let writtenAt = performance.now();
    const note: ReaderDeps["note"] = {
      status(status, error) {
        if (claim.state.status === status && error === undefined) return;
        claim.state = { ...claim.state, status, ...(error === undefined ? {} : { last_error: error }) };
        isDirty = true;
      },
      reconnected() {
        claim.state = { ...claim.state, reconnects: claim.state.reconnects + 1 };
        isDirty = true;
        measure().connectorReconnects.add(1, labels);
      },
      received() {
        const { received } = claim.state;
        claim.state = { ...claim.state, received: received + 1, last_message_at: new Date().toISOString() };
        isDirty = true;
        measure().connectorReceived.add(1, labels);
      },
      settled(outcome, messageId) {
        claim.state = counted(claim.state, outcome, messageId);
        isDirty = true;
        const label = typeof outcome === "string" ? outcome : "rejected";
        measure().connectorMessages.add(1, { tenant: route.tenant, source: route.source, outcome: label });
        if (typeof outcome === "object") own.warn("connector.rejected", { reason: outcome.rejected });
      },
    };
    const reader = startReader(id, route, note, own);
    const lose = (why: string) => {
      own.warn("connector.lost", { why });
      clearInterval(pulse);
      void inTurn(id, async () => {
        if (running.get(id)?.claim !== claim) return;
        running.delete(id);
        await reader[Symbol.asyncDispose]();
        tell(labels, "waiting");
      });
    };
    let isWriting = false;
    const pulse = setInterval(async () => {
      tell(labels, claim.state.status, reader.load());
      if (isWriting || (!isDirty && performance.now() - writtenAt < Math.min(PULSE_MS, leaseMs / 3))) return;
      isWriting = true;
      isDirty = false;
      claim.state = { ...claim.state, ...reader.load() };
      try {
        if (await claim.write()) writtenAt = performance.now();
        else lose("another process has taken it over");
      } catch (error) {
        isDirty = true;
        // Unheard for a whole lease, we must suppose that we are replaced.
        if (performance.now() - writtenAt > leaseMs) lose(`the bus is away: ${(error as Error).message}`);
      } finally {
        isWriting = false;
      }
    }, Math.min(WRITE_MS, leaseMs / 4));
    running.set(id, { claim, reader, pulse, labels });
    own.info("connector.owned");
  };

  const stop = async (id: string, status: "waiting" | "paused") => {
    const here = running.get(id);
    if (!here) return;
    running.delete(id);
    clearInterval(here.pulse);
    await here.reader[Symbol.asyncDispose]();
    tell(here.labels, status);
    await here.claim.release(status);
  };

  const looking = setInterval(() => {
    for (const id of routes.keys()) if (!running.has(id) && !queues.has(id)) void inTurn(id, () => settle(id));
  }, leaseMs / 4);

  return {
    apply(id, route) {
      if (route) routes.set(id, route);
      else routes.delete(id);
      void inTurn(id, () => settle(id));
    },
    async [Symbol.asyncDispose]() {
      isStopping = true;
      clearInterval(looking);
      await Promise.all([...running.keys(), ...queues.keys()].map((id) => inTurn(id, () => settle(id))));
    },
  };
}

type Labels = Readonly<Record<"tenant" | "source" | "connector", string>>;

/** A gauge keeps its last value: what is no longer read here must not look like something that stands still. */
function tell(labels: Labels, status: ConnectorStatus, load: ConnectorLoad = ConnectorLoad.parse({})): void {
  const { unsettled, oldest_unsettled_at, waiting } = load;
  const ageMs = oldest_unsettled_at === null ? 0 : Date.now() - Date.parse(oldest_unsettled_at);
  measure().connectorDown.record(status === "connecting" ? 1 : 0, labels);
  measure().connectorUnsettled.record(unsettled, labels);
  measure().connectorOldestUnsettled.record(Math.max(0, ageMs / 1_000), labels);
  measure().connectorWaiting.record(waiting ?? 0, labels);
}

function counted(state: Claim["state"], outcome: Outcome, messageId: string | null): Claim["state"] {
  if (typeof outcome === "string") return { ...state, [outcome]: state[outcome] + 1 };
  const latest = { at: new Date().toISOString(), message_id: messageId, reason: outcome.rejected };
  const rejections = [latest, ...state.rejections].slice(0, KEPT_REJECTIONS);
  return { ...state, rejected: state.rejected + 1, rejections };
}
