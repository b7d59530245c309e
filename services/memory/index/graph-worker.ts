/** The thread that builds a graph: everything comes in with its start, and goes out as a file. */
import { workerData } from "node:worker_threads";
import { addAll, type BuildOrder, newGraph } from "./graph.ts";

const AT_ONCE = 256;

const { vectors, path } = workerData as BuildOrder;
const graph = newGraph(vectors.dimension);
for (let from = 0; from < vectors.slots.length; from += AT_ONCE) addAll(graph, vectors, from, AT_ONCE);
graph.save(path);
