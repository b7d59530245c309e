/** How an index is kept abreast of Postgres: by following it (in this process), or by being told (a service apart). */
export interface Keeper extends AsyncDisposable {
  /** After a commit and before its answer. Never fails: what could not be told now is told later. */
  written(tenant: string, ids: readonly string[]): Promise<void>;
  /** Before a search. `true`: what was committed before the call will be found. `false`: it could not get there in time. */
  ready(tenant: string): Promise<boolean>;
  /** Brings the index to what Postgres says, for what is found to differ. */
  repair(tenant: string, ids: readonly string[], gone: readonly string[]): Promise<void>;
  /** Tenants this process answers for; a service apart has them all. */
  tenants(): Promise<string[]>;
  /** Why it is behind, in words; undefined when it is not. */
  trouble(): string | undefined;
}
