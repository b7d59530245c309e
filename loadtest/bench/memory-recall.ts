/** How many of the ten nearest memories the index finds, held against itself comparing every vector. */
import type { MemoryIndex } from "../../services/memory/index/port.ts";
import { loadBuiltin } from "../../services/memory/embed/builtin.ts";
import { embeddedIndex } from "../../services/memory/index/embedded.ts";
import { sparseOf } from "../../services/memory/lexical.ts";
import { memoryOf, textOf } from "./memory-texts.ts";

const AT_ONCE = 1_000;
const QUESTIONS = 200;

export async function recall(memories: number): Promise<number> {
  const embedder = await loadBuiltin();
  await using shipped = embeddedIndex(embedder.dimension);
  await using exact = embeddedIndex(embedder.dimension, { codesLimit: Infinity });
  const nowMs = Date.now();
  for (let from = 0; from < memories; from += AT_ONCE) {
    const some = Array.from({ length: Math.min(AT_ONCE, memories - from) }, memoryOf);
    const vectors = await embedder.embed(some.map(({ title, content }) => `${title}\n${content}`));
    const entries = some.map(({ title, content }, i) => ({
      id: String(from + i),
      version: 1,
      agent: "a",
      team: null,
      scope: "institutional" as const,
      type: "semantic" as const,
      confidence: 1,
      importance: 1,
      freshAt: nowMs,
      expiresAt: null,
      dense: vectors[i]!,
      sparse: sparseOf(title, content),
    }));
    for (const index of [shipped, exact]) await index.upsert("t", entries);
  }
  const questions = await embedder.embed(Array.from({ length: QUESTIONS }, () => textOf(6)));
  const nearest = async (index: MemoryIndex, dense: Float32Array) => {
    const reach = { agent: "a", scopes: ["institutional" as const] };
    const found = await index.search("t", { reach, nowMs, dense, count: 100 });
    return found.sort((a, b) => b.similarity! - a.similarity!).slice(0, 10).map(({ id }) => id);
  };
  let shared = 0;
  for (const dense of questions) {
    const [found, wanted] = [await nearest(shipped, dense), await nearest(exact, dense)];
    shared += found.filter((id) => wanted.includes(id)).length / wanted.length;
  }
  return shared / QUESTIONS;
}
