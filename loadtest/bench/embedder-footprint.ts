/** Says how long the builtin embedder takes to its first vector in a fresh process, and the memory it adds. */
import { loadBuiltin } from "../../services/memory/embed/builtin.ts";

(globalThis as { gc?: () => void }).gc?.();
const before = process.memoryUsage.rss();
const start = performance.now();
const builtin = await loadBuiltin();
await builtin.embed(["ready"]);
const ms = performance.now() - start;
await builtin.embed(Array.from({ length: 1_000 }, (_, i) => `a text of some words, number ${i}`));
(globalThis as { gc?: () => void }).gc?.();
console.log(JSON.stringify({ ms, mb: (process.memoryUsage.rss() - before) / 1e6 }));
