/**
 * The table of operations: the one place that says which requests exist, who answers them, who may ask, and in what
 * shape. Routes, scope checks, subjects, validation, handler types, OpenAPI and the client are derived from it. Its
 * rows stand in `operations/`, a file for each service.
 */
import type { z } from "zod";
import type { Caller } from "./identity.ts";
import type { Operation, ServiceName } from "./operation.ts";
import { deliveryOperations } from "./operations/delivery.ts";
import { fanoutOperations } from "./operations/fanout.ts";
import { ingestOperations } from "./operations/ingest.ts";
import { ingestionOperations } from "./operations/ingestion.ts";
import { memoryOperations } from "./operations/memory.ts";
import { registryOperations } from "./operations/registry.ts";

export const operations = {
  ...registryOperations,
  ...ingestOperations,
  ...ingestionOperations,
  ...fanoutOperations,
  ...deliveryOperations,
  ...memoryOperations,
} as const satisfies Record<string, Operation>;

export type OperationName = keyof typeof operations;
export const operationNames = Object.keys(operations) as OperationName[];
export const operationOf = (name: OperationName): Operation => operations[name];

type Part<O, P extends "path" | "query" | "body"> = O extends { readonly [K in P]: infer S extends z.ZodType }
  ? z.output<S>
  : Record<never, never>;
type SentPart<O, P extends "path" | "query" | "body"> = O extends { readonly [K in P]: infer S extends z.ZodType }
  ? z.input<S>
  : Record<never, never>;
type Row<N extends OperationName> = (typeof operations)[N];

/** A request as its handler receives it, read and checked. */
export type Input<N extends OperationName> = {
  path: Part<Row<N>, "path">;
  query: Part<Row<N>, "query">;
  body: Part<Row<N>, "body">;
};
/** A request as a client writes it: what has a default may be left out. */
export type Sent<N extends OperationName> =
  & {
    [P in "path" | "query" | "body" as Record<never, never> extends SentPart<Row<N>, P> ? never : P]: SentPart<
      Row<N>,
      P
    >;
  }
  & {
    [P in "path" | "query" | "body" as Record<never, never> extends SentPart<Row<N>, P> ? P : never]?: SentPart<
      Row<N>,
      P
    >;
  };
export type Output<N extends OperationName> = Row<N> extends { readonly output: infer S extends z.ZodType }
  ? z.output<S>
  : void;

export type NamesOf<S extends ServiceName> = {
  [N in OperationName]: Row<N>["service"] extends S ? N : never;
}[OperationName];

/** What every handler is told about the request beside its input. */
export interface Call<C extends Caller = Caller> {
  readonly caller: C;
  readonly requestId: string;
  /**
   * Chosen once per request and the same when the request is tried again under its Idempotency-Key: what a handler
   * creates is named by it, so a second run meets what the first one left.
   */
  readonly seed: string;
  readonly signal: AbortSignal;
}

/** The caller an operation is promised: the gateway has let nobody else through. */
export type CallerOf<N extends OperationName> = Row<N>["access"] extends "public"
  ? Extract<Caller, { kind: "anonymous" }>
  : Row<N>["access"] extends "operator" ? Extract<Caller, { kind: "operator" }>
  : Row<N>["access"] extends "service" ? Extract<Caller, { kind: "service" }>
  : Extract<Caller, { kind: "agent" | "org_admin" }>;

/** What a service must answer. A new row in the table stops its service from compiling until it does. */
export type Handlers<S extends ServiceName> = {
  [N in NamesOf<S>]: (input: Input<N>, call: Call<CallerOf<N>>) => Promise<Output<N>>;
};
