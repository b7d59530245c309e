/** How an index is kept abreast of Postgres: by following it (in this process), or by being told (a service apart). */
import type { Entry } from "./port.ts";

export interface Keeper extends AsyncDisposable {
  /** After a commit and before its answer. Never fails: what could not be told now is told later. */
  written(tenant: string, ids: readonly string[]): Promise<void>;
  /**
   * Before a search. Once it has answered `ready`, the index knows all that was committed before the call, but for what
   * is in `missing`. `away`: it could not get there in time.
   */
  ready(tenant: string): Promise<Readiness>;
  /** Brings the index to what Postgres says, for what is found to differ. */
  repair(tenant: string, ids: readonly string[], gone: readonly string[]): Promise<void>;
  /** Tenants this process answers for; a service apart has them all. */
  tenants(): Promise<string[]>;
  /** Why it is behind, in words; undefined when it is not. */
  trouble(): string | undefined;
}

export type Readiness =
  | { readonly state: "ready"; readonly missing: readonly Entry[]; readonly gone: ReadonlySet<string> }
  | { readonly state: "away" };
