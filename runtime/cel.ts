/**
 * Filters: CEL conditions over an event, compiled once and bounded on every side, because tenants write them and every
 * event meets them. The library is fast but open where an author could hurt others; what is closed here is listed below.
 */
import { type ASTNode, Environment } from "@marcbachmann/cel-js";
import { RE2JS } from "re2js";

/** What a filter can see. Absent attributes are null, so a filter can ask for them without failing. */
export interface FilterScope {
  readonly data: unknown;
  readonly type: string;
  readonly source: string;
  readonly subject: string | null;
  readonly id: string;
  readonly time: string | null;
}

export type Verdict = "match" | "no-match" | "error";
export type Filter = (event: FilterScope) => Verdict;

export class FilterFault extends Error {
  override readonly name = "FilterFault";
  /** Where in the source the trouble begins, counted from 0. */
  readonly position: number;
  constructor(message: string, position: number) {
    super(message);
    this.position = position;
  }
}

const MAX_SOURCE = 2_048;
const MAX_NODES = 200;
const MAX_DEPTH = 24;
/** A comprehension inside another is quadratic in data the author does not control. */
const MAX_MACRO_NESTING = 1;
/** A comprehension over a longer list is an error at run time, which is no match. */
const MAX_ITERATED = 1_000;
const macros = new Set(["all", "exists", "exists_one", "map", "filter", "existsOne", "transformList", "transformMap"]);

// `type` is a CEL name already (of the type of types), so the event's own is bound under another.
const EVENT_TYPE = "event_type";
// The library's own `matches` is a backtracking RegExp: 28 characters can hold the process for seconds.
const SAFE_MATCHES = "safeMatches";

let environment: Environment | undefined;

function environmentOnce(): Environment {
  if (environment) return environment;
  const env = new Environment({
    homogeneousAggregateLiterals: false,
    limits: {
      maxAstNodes: MAX_NODES,
      maxDepth: MAX_DEPTH,
      maxListElements: 100,
      maxMapEntries: 50,
      maxCallArguments: 8,
    },
  });
  env.registerVariable("data", "dyn").registerVariable(EVENT_TYPE, "string").registerVariable("source", "string")
    .registerVariable("subject", "dyn").registerVariable("id", "string").registerVariable("time", "dyn");
  env.registerFunction(
    `string.${SAFE_MATCHES}(string): bool`,
    (text: string, pattern: string) => matches(text, pattern),
  );
  // JSON numbers are doubles and literals are ints; without these `data.n + 1` would be an error.
  const arithmetic: Record<string, (a: number, b: number) => number> = {
    "+": (a, b) => a + b,
    "-": (a, b) => a - b,
    "*": (a, b) => a * b,
    "/": (a, b) => a / b,
    "%": (a, b) => a % b,
  };
  for (const [op, apply] of Object.entries(arithmetic)) {
    const mixed = (a: number | bigint, b: number | bigint) => apply(Number(a), Number(b));
    env.registerOperator(`int ${op} double: double`, mixed);
    env.registerOperator(`double ${op} int: double`, mixed);
  }
  env.registerOperator("double % double: double", (a: number, b: number) => a % b);
  return environment = env;
}

/** Throws `FilterFault` with the position of what is wrong. */
export function compileFilter(source: string): Filter {
  if (source.length > MAX_SOURCE) throw new FilterFault(`longer than ${MAX_SOURCE} characters`, MAX_SOURCE);
  const program = parsed(source);
  const iterates = prepare(program.ast);
  const { valid, type, error } = program.check();
  if (!valid) throw faultOf(error);
  if (type !== "bool" && type !== "dyn") throw new FilterFault(`a condition is wanted, but this gives a ${type}`, 0);
  return (event) => {
    if (iterates && longestList(event.data) > MAX_ITERATED) return "error";
    try {
      const { type, ...rest } = event;
      const result: unknown = program({ ...rest, [EVENT_TYPE]: type });
      return result === true ? "match" : result === false ? "no-match" : "error";
    } catch {
      return "error";
    }
  };
}

function parsed(source: string) {
  try {
    return environmentOnce().parse(source);
  } catch (error) {
    throw faultOf(error);
  }
}

const faultOf = (error: unknown): FilterFault => {
  const { summary, message, range } = error as { summary?: string; message?: string; range?: { start: number } };
  return new FilterFault(summary ?? message ?? "not a CEL expression", range?.start ?? 0);
};

type Writable = { op: string; args: unknown; start: number };

/** Renames what must be renamed, refuses what nests too deep, and answers whether there is any comprehension. */
function prepare(node: ASTNode, nesting = 0): boolean {
  const here = node as unknown as Writable;
  if (here.op === "id" && here.args === "type") here.args = EVENT_TYPE;
  let isMacro = false;
  if (here.op === "rcall") {
    const args = here.args as [string, ...unknown[]];
    if (args[0] === "matches") args[0] = SAFE_MATCHES;
    isMacro = macros.has(args[0]);
  }
  if (isMacro && nesting === MAX_MACRO_NESTING) {
    throw new FilterFault("a comprehension inside another is not allowed", here.start);
  }
  const inside = childrenOf(here.args).map((child) => prepare(child, nesting + (isMacro ? 1 : 0)));
  return isMacro || inside.includes(true);
}

function childrenOf(args: unknown): ASTNode[] {
  if (Array.isArray(args)) return args.flatMap(childrenOf);
  return typeof args === "object" && args !== null && "op" in args ? [args as ASTNode] : [];
}

const patterns = new Map<string, RE2JS>();

/** RE2: linear in the text, whatever the pattern. */
function matches(text: string, pattern: string): boolean {
  let compiled = patterns.get(pattern);
  if (!compiled) {
    if (patterns.size >= 1_000) patterns.clear();
    patterns.set(pattern, compiled = RE2JS.compile(pattern));
  }
  return compiled.matcher(text).find();
}

const lengths = new WeakMap<object, number>();

function longestList(data: unknown): number {
  if (typeof data !== "object" || data === null) return 0;
  let longest = lengths.get(data);
  if (longest === undefined) {
    longest = Array.isArray(data) ? data.length : Object.keys(data).length;
    for (const value of Object.values(data)) longest = Math.max(longest, longestList(value));
    lengths.set(data, longest);
  }
  return longest;
}
