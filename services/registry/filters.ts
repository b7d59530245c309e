/** A filter is tried where it is stored, so that a mistake is told to its author and not met by every event. */
import { invalid } from "../../contracts/errors.ts";
import { shown } from "../../contracts/validation.ts";
import { compileFilter, FilterFault } from "../../runtime/cel.ts";

export function assertFilter(filter: string | null): void {
  if (filter === null) return;
  try {
    compileFilter(filter);
  } catch (error) {
    if (!(error instanceof FilterFault)) throw error;
    throw invalid({
      field: "filter_expression",
      value: shown(filter),
      expected: `a CEL condition; at position ${error.position}: ${error.message}`,
      example: "data.total > 100",
      position: error.position,
    });
  }
}
