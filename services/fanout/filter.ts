/** Filters as routes use them: compiled once however many interests share one, and asked once per event. */
import { compileFilter, type Filter, type FilterScope, type Verdict } from "../../runtime/cel.ts";

export interface SharedFilter {
  verdict(event: FilterScope): Verdict;
}

export interface Filters {
  /** The filter with this source; every `take` is given back with `release`. */
  take(source: string): SharedFilter;
  release(source: string): void;
}

export function filters(compile: (source: string) => Filter = compileFilter): Filters {
  const shared = new Map<string, { filter: SharedFilter; users: number }>();
  return {
    take(source) {
      const known = shared.get(source);
      if (known) known.users++;
      else shared.set(source, { filter: share(source, compile), users: 1 });
      return shared.get(source)!.filter;
    },
    release(source) {
      const known = shared.get(source);
      if (known && --known.users === 0) shared.delete(source);
    },
  };
}

function share(source: string, compile: (source: string) => Filter): SharedFilter {
  // Compiled when first asked: a start with ten thousand filters would otherwise begin with half a second of it.
  let ask: Filter | undefined;
  let lastEvent: FilterScope | undefined;
  let lastVerdict: Verdict = "error";
  return {
    verdict(event) {
      if (event === lastEvent) return lastVerdict;
      ask ??= compiled(source, compile);
      lastEvent = event;
      return lastVerdict = ask(event);
    },
  };
}

/** The registry refuses what does not compile; one that an older release let through matches nothing. */
function compiled(source: string, compile: (source: string) => Filter): Filter {
  try {
    return compile(source);
  } catch {
    return () => "error";
  }
}
