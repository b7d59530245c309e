/** The index that the environment asks for, and what keeps it abreast. */
import type { App } from "../../../runtime/lifecycle.ts";
import type { Log } from "../../../runtime/log.ts";
import { pause } from "../../../runtime/pause.ts";
import type { Embedder } from "../embed/embedder.ts";
import type { MemoryEnv } from "../env.ts";
import type { IndexRows } from "../store/index-rows.ts";
import { embeddedIndex } from "./embedded.ts";
import { follower } from "./follow.ts";
import type { Keeper } from "./keeper.ts";
import type { MemoryIndex } from "./port.ts";

/** Reading a tenant takes about 20 µs a memory. Whoever asks for a larger one too early is answered by words alone. */
const PATIENCE_MS = 3_000;

const WARMED = 50;

export interface OpenIndex {
  readonly kind: "embedded" | "qdrant";
  readonly index: MemoryIndex;
  readonly keeper: Keeper;
}

export async function openIndex(deps: {
  readonly app: App;
  readonly env: MemoryEnv;
  readonly embedder: Embedder;
  readonly rows: IndexRows;
  readonly log: Log;
}): Promise<OpenIndex> {
  const { app, env, embedder, rows, log } = deps;
  if (env.QDRANT_URL) {
    const { qdrantIndex } = await import("./qdrant.ts");
    const { pusher } = await import("./push.ts");
    const { withUntold } = await import("./untold.ts");
    const index = app.use(
      qdrantIndex({ url: env.QDRANT_URL, ...(env.QDRANT_API_KEY ? { apiKey: env.QDRANT_API_KEY } : {}), embedder }),
    );
    await rows.claimIndex(index.name);
    const keeper = app.use(pusher({ index, rows, log }));
    // So that a replica's first searches are whole ones where the service is well.
    await Promise.race([keeper.looked, pause(PATIENCE_MS, app.signal)]);
    return { kind: "qdrant", index: withUntold(index, rows, embedder.dimension), keeper };
  }
  await rows.claimIndex("embedded");
  const index = app.use(embeddedIndex(embedder.dimension));
  const idleMs = env.MEMORY_INDEX_IDLE_MINUTES * 60_000;
  const keeper = app.use(follower({ index, rows, log, patienceMs: PATIENCE_MS, idleMs }));
  app.watch(warm(keeper, rows, app.signal, log));
  return { kind: "embedded", index, keeper };
}

/** Reads the first tenants before anybody asks. With few it is all of them; with many, each is read when it is needed. */
async function warm(keeper: Keeper, rows: IndexRows, signal: AbortSignal, log: Log): Promise<void> {
  try {
    for (const tenant of (await rows.tenants()).slice(0, WARMED)) {
      if (signal.aborted) return;
      await keeper.ready(tenant);
    }
  } catch (error) {
    log.warn("memory.index_cold", { error });
  }
}
