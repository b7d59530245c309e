/** Turns what a schema refused into words a caller can act on: which field, what came, what was expected, an example. */
import { z } from "zod";
import { Fault, invalid, type Violation } from "./errors.ts";

type Schema = z.core.$ZodType;

/** Reads `value` as `schema` says, or throws `validation_failed` for the first thing wrong. */
export function parse<S extends z.ZodType>(schema: S, value: unknown, at: PropertyKey[] = []): z.output<S> {
  const result = schema.safeParse(value);
  if (result.success) return result.data;
  throw invalid(violationOf(schema, value, result.error, at));
}

/** The first violation. `at` names where `value` stands in a larger whole, such as the body of one item of a batch. */
export function violationOf(
  schema: Schema,
  value: unknown,
  error: z.core.$ZodError,
  at: PropertyKey[] = [],
): Violation {
  const issue = deepest(error.issues[0]!);
  const leaf = schemaAt(schema, issue.path);
  const came = issue.path.reduce<unknown>((v, key) => (v as Record<PropertyKey, unknown> | undefined)?.[key], value);
  return {
    field: fieldName([...at, ...issue.path]),
    value: isSecret(leaf) ? "(left out)" : shown(came),
    expected: expectedBy(issue, leaf),
    example: exampleOf(leaf ?? schema),
  };
}

/** `items[0].name`, as one would write it in code. */
export const fieldName = (path: PropertyKey[]): string =>
  path.reduce<string>(
    (name, key) => typeof key === "number" ? `${name}[${key}]` : name ? `${name}.${String(key)}` : String(key),
    "",
  );

/** What came, short enough to print: nothing is longer than 200 characters. */
export function shown(value: unknown): unknown {
  if (value === undefined) return null;
  if (typeof value === "string") return value.length > 200 ? value.slice(0, 200) : value;
  if (typeof value !== "object" || value === null) return value;
  const text = JSON.stringify(value);
  return text.length > 200 ? text.slice(0, 200) : value;
}

/** A union reports its members' issues inside; the first member's first one says the most. */
function deepest(issue: z.core.$ZodIssue): z.core.$ZodIssue {
  if (issue.code !== "invalid_union") return issue;
  const inner = issue.errors.find((issues) => issues.some((i) => i.path.length > 0))?.[0];
  return inner ? deepest({ ...inner, path: [...issue.path, ...inner.path] } as z.core.$ZodIssue) : issue;
}

type Def = {
  type: string;
  innerType?: Schema;
  in?: Schema;
  out?: Schema;
  shape?: Record<string, Schema>;
  element?: Schema;
  valueType?: Schema;
  options?: Schema[];
  entries?: Record<string, string>;
  values?: unknown[];
  defaultValue?: unknown;
};
const defOf = (schema: Schema): Def => schema._zod.def as unknown as Def;

/** Past optional, nullable, default and transforms, to the schema that says what is wanted. */
function bare(schema: Schema): Schema {
  const { innerType, type, in: from, out: to } = defOf(schema);
  if (innerType) return bare(innerType);
  if (type === "pipe") return bare(defOf(from!).type === "transform" ? to! : from!);
  return schema;
}

function schemaAt(schema: Schema, path: PropertyKey[]): Schema | undefined {
  let here: Schema | undefined = schema;
  for (const key of path) {
    if (!here) return undefined;
    const def: Def = defOf(bare(here));
    here = def.shape ? def.shape[String(key)] : def.element ?? def.valueType;
  }
  return here;
}

/** What was noted on the schema with `.meta`, or on what it wraps. */
function noted(schema: Schema | undefined): Record<string, unknown> {
  if (!schema) return {};
  const { innerType, in: from } = defOf(schema);
  return { ...noted(innerType ?? from), ...z.globalRegistry.get(schema as z.ZodType) };
}
const isSecret = (schema: Schema | undefined) => noted(schema).secret === true;

export function exampleOf(schema: Schema): unknown {
  const { examples } = noted(schema);
  if (Array.isArray(examples)) return examples[0];
  const def = defOf(bare(schema));
  switch (def.type) {
    case "enum":
      return Object.values(def.entries!)[0];
    case "literal":
      return def.values![0];
    case "boolean":
      return true;
    case "number":
      return (bare(schema)._zod.bag as { minimum?: number }).minimum ?? 1;
    case "array":
      return [exampleOf(def.element!)];
    case "object":
      return Object.fromEntries(
        Object.entries(def.shape!).filter(([, s]) => s._zod.optin !== "optional").map(([k, s]) => [k, exampleOf(s)]),
      );
    case "union":
      return exampleOf(def.options![0]!);
    case "record":
      return {};
    default:
      return "text";
  }
}

function expectedBy(issue: z.core.$ZodIssue, leaf: Schema | undefined): string {
  const { expected } = noted(leaf);
  if (typeof expected === "string") return expected;
  switch (issue.code) {
    case "invalid_type":
      return withArticle(issue.expected === "int" ? "integer" : issue.expected);
    case "invalid_value":
      return issue.values.length === 1
        ? `exactly ${String(issue.values[0])}`
        : `one of ${issue.values.map(String).join(", ")}`;
    case "too_small":
      return `at least ${issue.minimum}${unit(issue.origin, issue.minimum)}`;
    case "too_big":
      return `at most ${issue.maximum}${unit(issue.origin, issue.maximum)}`;
    case "invalid_format":
      return issue.format === "regex" ? issue.message : formats[issue.format] ?? `a valid ${issue.format}`;
    case "not_multiple_of":
      return `a multiple of ${issue.divisor}`;
    default:
      return issue.message;
  }
}

const formats: Record<string, string> = {
  url: "an absolute URI",
  datetime: "an ISO 8601 date-time",
};
const unit = (origin: string, count: number | bigint) => {
  const noun = origin === "string" ? "character" : origin === "array" ? "item" : undefined;
  return noun ? ` ${noun}${Number(count) === 1 ? "" : "s"}` : "";
};
const withArticle = (noun: string) => `${/^[aeiou]/.test(noun) ? "an" : "a"} ${noun}`;

export const isValidation = (thrown: unknown): thrown is Fault<"validation_failed"> =>
  thrown instanceof Fault && thrown.code === "validation_failed";
