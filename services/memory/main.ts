/** The memory service's wiring, top to bottom. */
import { connectBus } from "../../runtime/bus.ts";
import { migrate, openDatabase } from "../../runtime/database.ts";
import { readEnv } from "../../runtime/env.ts";
import type { App } from "../../runtime/lifecycle.ts";
import type { Log } from "../../runtime/log.ts";
import { serve } from "../../runtime/serve.ts";
import { runService } from "../../runtime/service.ts";
import { startChores } from "./chores.ts";
import { chooseEmbedder } from "./embed/choose.ts";
import { MemoryEnv } from "./env.ts";
import { openIndex } from "./index/open.ts";
import { watchLag } from "./lag.ts";
import { LEXICON } from "./lexical.ts";
import { memory } from "./memory.ts";
import { preparer } from "./prepare.ts";
import { startRenewal } from "./renew.ts";
import { searcher } from "./search.ts";
import { indexRows } from "./store/index-rows.ts";
import { caseCollation, memoryStore } from "./store/memories.ts";
import { relationshipStore } from "./store/relationships.ts";

/** A request that keeps or searches goes on without an embedder that takes longer. */
const EMBEDDER_PATIENCE_MS = 3_000;

export async function start(
  app: App,
  log: Log,
  source: Record<string, string | undefined> = process.env,
): Promise<void> {
  const env = readEnv(MemoryEnv, source);
  const embedder = await chooseEmbedder(env);
  const { sql } = app.use(openDatabase(env.DATABASE_URL, "memory"));
  await migrate(sql, "memory", new URL("./schema/", import.meta.url));
  const rows = indexRows(sql, embedder.model);
  const generation = await rows.claimRecipe(LEXICON);
  const { index, keeper, kind } = await openIndex({ app, env, embedder, rows, log });
  const memories = memoryStore(sql, { collation: await caseCollation(sql), outbox: kind === "qdrant" });
  const relationships = relationshipStore(sql);
  const chores = app.use(startChores(memories, log));
  const patienceMs = EMBEDDER_PATIENCE_MS;
  const preparing = preparer({ embedder, generation: () => renewal.generation, patienceMs, log });
  const renewal = app.use(startRenewal({ rows, preparer: preparing, model: embedder.model, generation, log }));
  app.use(
    watchLag({
      rows,
      model: embedder.model,
      generation: () => renewal.generation,
      outbox: kind === "qdrant",
      log,
    }),
  );
  const bus = app.use(await connectBus(env, "memory", log));
  app.use(
    await serve({
      nc: bus.nc,
      service: "memory",
      handlers: memory({
        memories,
        relationships,
        rows,
        index,
        keeper,
        kind,
        chores,
        preparer: preparing,
        model: embedder.model,
        search: searcher({ memories, index, keeper, embedder, patienceMs, log }),
        trouble: () => renewal.trouble() ?? keeper.trouble(),
      }),
      // The index is left out: without it memories are kept and found all the same, by words.
      checks: { postgres: () => sql`select 1` },
      log,
    }),
  );
}

if (import.meta.main) await runService("memory", start);
