/** What a row of the table of operations says, and what follows from it alone. */
import type { z } from "zod";
import type { ErrorCode } from "./errors.ts";
import type { Scope } from "./identity.ts";

/** Those without which an instance is not ready. */
export const services = ["registry", "ingest", "fanout", "delivery", "memory"] as const;
/** A connector reads when it can: nothing else waits for it. */
export type ServiceName = (typeof services)[number] | "connector";

export type Method = "GET" | "POST" | "PATCH" | "DELETE";

/**
 * Who may ask: anyone, an operator or another service over the bus, any valid token, a scope, or one thing for the
 * agent named by `{id}` itself and another for everybody else.
 */
export type Access = "public" | "operator" | "service" | "token" | Scope | {
  readonly self: Scope | "token";
  readonly other: Scope;
};

export interface Operation {
  readonly service: ServiceName;
  readonly summary: string;
  /** Absent: reachable over the bus alone, for operators and other services. */
  readonly http?: readonly [Method, string];
  readonly access: Access;
  readonly path?: z.ZodObject;
  readonly query?: z.ZodObject;
  readonly body?: z.ZodType;
  /** Absent: the answer has no body. */
  readonly output?: z.ZodType;
  readonly success: 200 | 201 | 202 | 204;
  /** Where the answer itself decides between two successes; absent, it is always `success`. */
  readonly statusOf?: (output: unknown) => 200 | 201 | 202;
  /** The body is a CloudEvent, in structured or in binary mode. */
  readonly cloudEvent?: true;
  /** A body of this content type is a list, and goes to that operation instead. */
  readonly batch?: { readonly contentType: string; readonly operation: string };
  /** The answer may be held back for a while; should the client leave meanwhile, the service is told. */
  readonly waits?: (query: Record<string, unknown>) => boolean;
  /** Asked again and again while the client listens: each item of the answers is an event of this name. */
  readonly stream?: { readonly event: string };
  /** Beyond what every operation of its shape can answer; see `faultsOf`. */
  readonly faults?: readonly ErrorCode[];
  /** The answer carries a secret shown once, so a kept copy of it is sealed. */
  readonly secret?: true;
  readonly deadlineMs?: number;
  readonly maxBodyBytes?: number;
}

export const deadlineOf = (operation: Operation): number => operation.deadlineMs ?? 5_000;
export const maxBodyOf = (operation: Operation): number => operation.maxBodyBytes ?? 256 * 1024;
/** Whether an Idempotency-Key means anything: for what changes something and is not idempotent by its nature. */
export const isKeyedMethod = (method: string | undefined): boolean => method === "POST" || method === "PATCH";
export const isKeyed = (operation: Operation): boolean =>
  operation.access !== "public" && isKeyedMethod(operation.http?.[0]);

/** Every code an operation may answer with: what its shape implies, and what its row adds. */
export function faultsOf(operation: Operation): ErrorCode[] {
  const codes = new Set<ErrorCode>(["internal_error", "service_unavailable"]);
  if (operation.access !== "public") codes.add("authentication_failed").add("rate_limited");
  if (operation.access !== "public" && operation.access !== "token") codes.add("insufficient_scope");
  if (operation.path || operation.query || operation.body) codes.add("validation_failed");
  if (operation.path) codes.add("not_found");
  if (operation.body) codes.add("payload_too_large");
  if (isKeyed(operation)) codes.add("conflict");
  for (const code of operation.faults ?? []) codes.add(code);
  return [...codes];
}
