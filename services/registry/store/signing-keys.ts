/** All SQL over the keys that sign tokens. */
import type { JWK } from "jose";
import type { Sql, Tx } from "../../../runtime/database.ts";

export interface SigningKeyRow {
  readonly kid: string;
  readonly public_jwk: JWK;
  readonly private_sealed: Buffer;
  readonly retired_at: string | null;
}

export function signingKeyStore(sql: Sql) {
  return {
    async current(): Promise<SigningKeyRow | undefined> {
      const [row] = await sql<SigningKeyRow[]>`
        select kid, public_jwk, private_sealed, retired_at from registry.signing_keys where retired_at is null`;
      return row;
    },

    /** The keys in use, locked against another rotation until the transaction ends. */
    async lockAll(tx: Tx): Promise<SigningKeyRow[]> {
      await tx`lock table registry.signing_keys in share row exclusive mode`;
      return await tx<SigningKeyRow[]>`
        select kid, public_jwk, private_sealed, retired_at from registry.signing_keys where retired_at is null`;
    },

    retireAll: (tx: Tx) => tx`update registry.signing_keys set retired_at = now() where retired_at is null`,

    insert: (tx: Tx, key: { kid: string; public_jwk: JWK; private_sealed: Buffer }) =>
      tx`insert into registry.signing_keys (kid, public_jwk, private_sealed)
        values (${key.kid}, ${tx.json(key.public_jwk as never)}, ${key.private_sealed})`,

    /** Every key a live token may still be signed with. */
    trusted: (tx: Tx, retiredSeconds: number): Promise<SigningKeyRow[]> =>
      tx<SigningKeyRow[]>`select kid, public_jwk, private_sealed, retired_at from registry.signing_keys
        where retired_at is null or retired_at > now() - make_interval(secs => ${retiredSeconds})`,
  };
}
export type SigningKeyStore = ReturnType<typeof signingKeyStore>;
