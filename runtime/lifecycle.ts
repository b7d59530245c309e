/** How a process starts, notices that it must stop, and stops: what started first stops last. */
import process from "node:process";

export interface App {
  /** Aborts when the process begins to stop. */
  readonly signal: AbortSignal;
  /** Takes charge of a thing: it is closed when the process stops, in reverse order. */
  use<T extends AsyncDisposable>(thing: T): T;
  /** Takes charge of a task: its failure stops the process, and a stopping process waits for its end. */
  watch(task: Promise<unknown>): void;
}

export interface Running extends AsyncDisposable {
  /** Settles when the signal aborts; rejects when a watched task failed. */
  readonly stopped: Promise<void>;
}

/** Starts `start` and hands back the means to stop it; what had started is closed when a later step fails. */
export async function begin(start: (app: App) => Promise<void>, signal?: AbortSignal): Promise<Running> {
  const stop = new AbortController();
  signal?.addEventListener("abort", () => stop.abort(signal.reason), { once: true });
  const stack = new AsyncDisposableStack();
  const app: App = {
    signal: stop.signal,
    use: (thing) => stack.use(thing),
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
    await using running = await begin(start, stop.signal);
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
