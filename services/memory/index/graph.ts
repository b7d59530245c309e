/** The graph of near neighbours, and a thread of its own to build a large one in: adding a vector takes 0.3 ms. */
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Worker } from "node:worker_threads";
import { Index, MetricKind, ScalarKind } from "usearch";

const CONNECTIVITY = 16;
const EXPANSION_ADD = 128;
/**
 * How widely the graph is searched. 256 found all of the ten nearest on sentences of people and 0.95 of them on 100,000
 * texts of random words, which no graph likes; twice as much finds those too, for another half of a millisecond.
 */
const EXPANSION_SEARCH = 512;

export const newGraph = (dimension: number): Index =>
  new Index({
    metric: MetricKind.IP,
    dimensions: dimension,
    quantization: ScalarKind.F16,
    connectivity: CONNECTIVITY,
    expansion_add: EXPANSION_ADD,
    expansion_search: EXPANSION_SEARCH,
    multi: false,
  });

/** Vectors as a partition keeps them: those of `slots`, one after another, at 8 bits with one step for all. */
export interface Vectors {
  readonly dimension: number;
  readonly step: number;
  readonly slots: Uint32Array;
  readonly dense: Int8Array;
}

export function addAll(graph: Index, { dimension, step, slots, dense }: Vectors, from: number, count: number): void {
  const until = Math.min(slots.length, from + count);
  if (until <= from) return;
  const keys = BigUint64Array.from(slots.subarray(from, until), BigInt);
  graph.add(keys, Float32Array.from(dense.subarray(from * dimension, until * dimension), (value) => value * step), 1);
}

export interface BuildOrder {
  readonly vectors: Vectors;
  readonly path: string;
}

/** Builds a graph in another thread. It comes back through a file, which is all the library can move it by. */
export async function buildApart(vectors: Vectors, signal: AbortSignal): Promise<Index> {
  const path = join(tmpdir(), `sensorium-graph-${randomUUID()}`);
  const order: BuildOrder = { vectors, path };
  const worker = new Worker(new URL("./graph-worker.ts", import.meta.url), {
    workerData: order,
    transferList: [vectors.slots.buffer as ArrayBuffer, vectors.dense.buffer as ArrayBuffer],
    execArgv: [],
  });
  const stop = () => void worker.terminate();
  signal.addEventListener("abort", stop, { once: true });
  try {
    const [code] = await once(worker, "exit") as [number];
    signal.throwIfAborted();
    if (code !== 0) throw new Error(`The thread that builds graphs ended with ${code}`);
    const graph = newGraph(vectors.dimension);
    graph.load(path);
    return graph;
  } finally {
    signal.removeEventListener("abort", stop);
    await rm(path, { force: true });
  }
}
