/** What travels beside every message on the bus. Only this file reads or writes these header names. */
import { headers, type MsgHdrs } from "@nats-io/nats-core";
import { type Details, type ErrorCode, Fault } from "../contracts/errors.ts";
import { Caller } from "../contracts/identity.ts";
import type { Call } from "../contracts/operations.ts";
import { injectTrace } from "./telemetry.ts";

/** What a request says about itself, before a deadline is put on it. */
export type Origin = Pick<Call, "caller" | "requestId" | "seed">;

export function toHeaders({ caller, requestId, seed }: Origin, deadlineMs: number): Record<string, string> {
  const fields: Record<string, string> = {
    Caller: JSON.stringify(caller),
    "Request-Id": requestId,
    Seed: seed,
    // How long is left, not until when: the clocks of two machines differ.
    "Deadline-Ms": String(Math.max(1, Math.round(deadlineMs))),
  };
  injectTrace((name, value) => fields[name] = value);
  return fields;
}

/** Requests whose handlers would like to know when their caller leaves, by seed. */
export type Abandonable = Map<string, AbortController>;

export function fromHeaders(
  h: MsgHdrs | undefined,
  abandonable?: Abandonable,
): { call: Call; read: (name: string) => string | undefined } {
  const read = (name: string) => h?.get(name) || undefined;
  return { call: new ReceivedCall(read, abandonable), read };
}

/** A handler that never waits never asks for the signal, and then no timer is made for it. */
class ReceivedCall implements Call {
  readonly caller: Caller;
  readonly requestId: string;
  readonly seed: string;
  readonly #startedAt = performance.now();
  readonly #deadlineMs: number;
  readonly #abandonable: Abandonable | undefined;
  #signal: AbortSignal | undefined;
  constructor(read: (name: string) => string | undefined, abandonable?: Abandonable) {
    this.#abandonable = abandonable;
    this.caller = Caller.parse(JSON.parse(read("Caller") ?? "null"));
    this.requestId = read("Request-Id") ?? "";
    this.seed = read("Seed") ?? "";
    this.#deadlineMs = Number(read("Deadline-Ms") ?? 5_000);
  }
  get signal(): AbortSignal {
    if (this.#signal) return this.#signal;
    const left = this.#deadlineMs - (performance.now() - this.#startedAt);
    const abandoned = new AbortController();
    this.#abandonable?.set(this.seed, abandoned);
    return this.#signal = AbortSignal.any([AbortSignal.timeout(Math.max(0, Math.round(left))), abandoned.signal]);
  }
}

const FAULT = "Fault";

export function faultReply(fault: Fault): { headers: MsgHdrs; body: string } {
  const h = headers();
  h.set(FAULT, fault.code);
  return { headers: h, body: JSON.stringify({ message: fault.message, details: fault.details }) };
}

export function faultIn(msg: { headers?: MsgHdrs; json<T>(): T }): Fault | undefined {
  const code = msg.headers?.get(FAULT);
  if (!code) return undefined;
  const { message, details } = msg.json<{ message: string; details: Details<ErrorCode> }>();
  return new Fault(code as ErrorCode, message, details);
}
