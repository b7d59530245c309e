/** How a process starts, notices that it must stop, and stops: what started first stops last. */
import process from "node:process";
import { readEnv } from "./env.ts";
import type { Checks } from "./health.ts";
import { HealthEnv, serveHealth } from "./health-server.ts";

export interface App {
  /** Aborts when the process begins to stop. */
  readonly signal: AbortSignal;
  /**
   * Takes charge of a thing: it is closed when the process stops, in reverse order. What it can say of itself, its
   * `checks` and its `exposition`, is what the process answers to whoever asks for its health.
   */
  use<T extends AsyncDisposable>(thing: T): T;
  /** Takes charge of a task: its failure stops the process, and a stopping process waits for its end. */
  watch(task: Promise<unknown>): void;
}

export interface Running extends AsyncDisposable {
  readonly checks: Checks;
  /** What was measured, by everything started so far. */
  exposition(): Promise<string>;
  /** Settles when the signal aborts; rejects when a watched task failed. */
  readonly stopped: Promise<void>;
}

/** Starts `start` and hands back the means to stop it; what had started is closed when a later step fails. */
export async function begin(start: (app: App) => Promise<void>, signal?: AbortSignal): Promise<Running> {
  const stop = new AbortController();
  signal?.addEventListener("abort", () => stop.abort(signal.reason), { once: true });
  const stack = new AsyncDisposableStack();
  const checks: Checks = {};
  const expositions: (() => Promise<string>)[] = [];
  const app: App = {
    signal: stop.signal,
    use(thing) {
      if ("checks" in thing) Object.assign(checks, thing.checks);
      if ("exposition" in thing) expositions.push(thing.exposition as () => Promise<string>);
      return stack.use(thing);
    },
    watch(task) {
      const ended = task.catch((error) => stop.abort(error));
      stack.defer(async () => void await ended);
    },
  };
  try {
    await start(app);
  } catch (error) {
    stop.abort(error);
    await stack.disposeAsync();
    throw error;
  }
  const stopped = new Promise<void>((resolve, reject) => {
    const settle = () =>
      stop.signal.reason instanceof Error && stop.signal.reason.name !== "AbortError"
        ? reject(stop.signal.reason)
        : resolve();
    if (stop.signal.aborted) settle();
    else stop.signal.addEventListener("abort", settle, { once: true });
  });
  stopped.catch(() => {}); // whoever awaits it is told; nobody waiting is no crash
  return {
    checks,
    exposition: async () => (await Promise.all(expositions.map((each) => each()))).join(""),
    stopped,
    async [Symbol.asyncDispose]() {
      stop.abort();
      await stack.disposeAsync();
    },
  };
}

/** The whole life of a process. A failed start is one line and exit code 1; a second signal ends it at once. */
export async function run(start: (app: App) => Promise<void>): Promise<void> {
  const stop = new AbortController();
  const onSignal = (name: NodeJS.Signals) => {
    if (stop.signal.aborted) process.exit(name === "SIGINT" ? 130 : 143);
    stop.abort();
  };
  process.on("SIGINT", onSignal);
  process.on("SIGTERM", onSignal);
  let started = false;
  try {
    const { HEALTH_PORT, HEALTH_HOST } = readEnv(HealthEnv);
    const self: { running?: Running } = {};
    // Before anything else, so that a process that is slow to start is seen to be alive.
    await using _health = HEALTH_PORT === 0 ? undefined : await serveHealth(HEALTH_PORT, HEALTH_HOST, {
      isReady: () => self.running !== undefined && !stop.signal.aborted,
      get checks() {
        return self.running?.checks ?? {};
      },
      exposition: async () => await self.running?.exposition() ?? "",
    });
    await using running = await begin(start, stop.signal);
    self.running = running;
    started = true;
    await running.stopped;
  } catch (error) {
    if (!stop.signal.aborted || started) {
      process.exitCode = 1;
      console.error(started || process.env.LOG_LEVEL === "debug" ? error : firstLine(error));
    }
  } finally {
    process.off("SIGINT", onSignal);
    process.off("SIGTERM", onSignal);
  }
}

const firstLine = (error: unknown): string => {
  const message = error instanceof Error ? error.message : String(error);
  return message.startsWith("Cannot start") ? message : `Cannot start: ${message}`;
};
