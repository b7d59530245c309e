/** The closed catalogue of failures a caller can meet, and the one exception that carries them. */
import { z } from "zod";

/** What the caller sent that could not be read, and what would have been right. */
const Violation = z.object({
  field: z.string(),
  value: z.unknown(),
  expected: z.string(),
  example: z.unknown(),
  /** Where inside a text the fault is, counted from 0. */
  position: z.number().optional(),
});
export type Violation = z.output<typeof Violation>;

export const catalogue = {
  validation_failed: { status: 400, retryable: false, details: Violation },
  invalid_event: { status: 400, retryable: false, details: Violation.omit({ example: true, position: true }) },
  authentication_failed: { status: 401, retryable: false, details: z.object({}) },
  insufficient_scope: { status: 403, retryable: false, details: z.object({ required_scope: z.string() }) },
  not_found: {
    status: 404,
    retryable: false,
    details: z.object({ resource_type: z.string(), resource_id: z.string() }),
  },
  conflict: {
    status: 409,
    retryable: false,
    details: z.object({
      idempotency_key: z.string().nullable(),
      existing_resource_id: z.string().nullable(),
      retry_after_seconds: z.number().optional(),
    }),
  },
  payload_too_large: {
    status: 413,
    retryable: false,
    details: z.object({ actual_size: z.number(), max_size: z.number() }),
  },
  business_rule_violation: {
    status: 422,
    retryable: false,
    details: z.looseObject({ rule: z.string(), message: z.string() }),
  },
  rate_limited: {
    status: 429,
    retryable: true,
    details: z.object({ retry_after_seconds: z.number(), limit: z.number(), window_seconds: z.number() }),
  },
  internal_error: { status: 500, retryable: true, details: z.object({}) },
  service_unavailable: { status: 503, retryable: true, details: z.object({ retry_after_seconds: z.number() }) },
} as const satisfies Record<string, { status: number; retryable: boolean; details: z.ZodObject }>;

export type ErrorCode = keyof typeof catalogue;
export type Details<C extends ErrorCode> = z.output<(typeof catalogue)[C]["details"]>;

export const ErrorEnvelope = z.object({
  error: z.object({
    code: z.enum(Object.keys(catalogue) as [ErrorCode, ...ErrorCode[]]),
    message: z.string(),
    request_id: z.string(),
    details: z.record(z.string(), z.unknown()),
  }),
});

/** Ends the current request. Message and details are for the caller; the cause reaches only our logs. */
export class Fault<C extends ErrorCode = ErrorCode> extends Error {
  readonly code: C;
  readonly details: Details<C>;
  constructor(code: C, message: string, details: Details<C>, options?: { cause?: unknown }) {
    super(message, options);
    this.name = "Fault";
    this.code = code;
    this.details = details;
  }
}

export const faultFrom = (thrown: unknown): Fault =>
  thrown instanceof Fault
    ? thrown as Fault
    : new Fault("internal_error", "The request failed on our side; it is safe to retry", {}, {
      cause: thrown,
    }) as Fault;

export const notFound = (resource_type: string, resource_id: string) =>
  new Fault("not_found", `There is no ${resource_type} ${resource_id}`, { resource_type, resource_id });

/** `ids` name what the rule is about, such as the interest already there. */
export const ruleBroken = (rule: string, message: string, ids: Record<string, string> = {}) =>
  new Fault("business_rule_violation", message, { rule, message, ...ids });

export const taken = (message: string, existing_resource_id: string | null) =>
  new Fault("conflict", message, { idempotency_key: null, existing_resource_id });

export const unavailable = (message: string, cause?: unknown, retry_after_seconds = 1) =>
  new Fault("service_unavailable", message, { retry_after_seconds }, { cause });

export const invalid = (violation: Violation) =>
  new Fault(
    "validation_failed",
    `${violation.field || "The body"} is not valid: expected ${violation.expected}`,
    violation,
  );

export const unauthenticated = (message: string, cause?: unknown) =>
  new Fault("authentication_failed", message, {}, { cause });
