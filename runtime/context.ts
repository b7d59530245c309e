/** What travels beside every message on the bus. Only this file reads or writes these header names. */
import { headers, type MsgHdrs } from "@nats-io/nats-core";
import { type Details, type ErrorCode, Fault } from "../contracts/errors.ts";
import { Caller } from "../contracts/identity.ts";
import type { Call } from "../contracts/operations.ts";
import { injectTrace } from "./telemetry.ts";

/** What a request says about itself, before a deadline is put on it. */
export type Origin = Pick<Call, "caller" | "requestId" | "seed">;

export function toHeaders({ caller, requestId, seed }: Origin, deadlineMs: number): MsgHdrs {
  const h = headers();
  h.set("Caller", JSON.stringify(caller));
  h.set("Request-Id", requestId);
  h.set("Seed", seed);
  // How long is left, not until when: the clocks of two machines differ.
  h.set("Deadline-Ms", String(Math.max(1, Math.round(deadlineMs))));
  injectTrace((name, value) => h.set(name, value));
  return h;
}

export function fromHeaders(h: MsgHdrs | undefined): { call: Call; read: (name: string) => string | undefined } {
  const read = (name: string) => h?.get(name) || undefined;
  const caller = Caller.parse(JSON.parse(read("Caller") ?? "null"));
  const deadlineMs = Number(read("Deadline-Ms") ?? 5_000);
  const call = {
    caller,
    requestId: read("Request-Id") ?? "",
    seed: read("Seed") ?? "",
    signal: AbortSignal.timeout(deadlineMs),
  };
  return { call, read };
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
