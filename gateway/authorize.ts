/** Who may do what, by the table alone. */
import { Fault } from "../contracts/errors.ts";
import { holds, type TenantCaller } from "../contracts/identity.ts";
import type { Access } from "../contracts/operation.ts";

/** Throws `insufficient_scope` unless the caller may. `id` is the `{id}` of the path, which may be the caller itself. */
export function authorize(access: Access, caller: TenantCaller, id: string | undefined): void {
  const needed = typeof access === "object"
    ? (caller.kind === "agent" && caller.id === id ? access.self : access.other)
    : access;
  if (needed === "token" || needed === "public") return;
  if (needed === "operator" || needed === "service") {
    throw new Error(`An operation for the bus alone was routed: ${needed}`);
  }
  if (holds(caller, needed)) return;
  throw new Fault("insufficient_scope", `This needs the scope ${needed}`, { required_scope: needed });
}
