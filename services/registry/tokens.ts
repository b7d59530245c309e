/** Access tokens: signed here with a rotating key set, verified at the gateway with the announced public halves. */
import type { KeyObject } from "node:crypto";
import { type CryptoKey, exportJWK, generateKeyPair, importJWK, type JWK, SignJWT } from "jose";
import { ulid } from "../../contracts/identity.ts";
import { SIGNING_ALGORITHM, TOKEN_AUDIENCE, TOKEN_ISSUER, TOKEN_SECONDS } from "../../contracts/tokens.ts";
import type { TokenClaims } from "../../contracts/tokens.ts";
import { deriveKey, seal, unseal } from "../../runtime/secret.ts";
import type { Announcer } from "./announce.ts";
import type { SigningKeyRow, SigningKeyStore } from "./store/signing-keys.ts";
import { signingTrust } from "./trust.ts";

export interface Tokens {
  issue(claims: TokenClaims): Promise<{ token: string; expiresAt: Date }>;
  /** A new key signs from now on. Tokens of the old one stay valid for their hour. */
  rotate(): Promise<string>;
}

/** How long this replica signs with a key before it looks whether another replica has rotated. */
const REFRESH_MS = 5_000;

/** Seals the private halves. */
export const sealingKeyOf = (serverSecret: string): KeyObject => deriveKey(serverSecret, "signing keys");

export function tokens(deps: { store: SigningKeyStore; announcer: Announcer; sealingKey: KeyObject }): Tokens {
  const { store, announcer, sealingKey } = deps;
  let held: { kid: string; key: CryptoKey; at: number } | undefined;

  const current = async () => {
    if (held && Date.now() - held.at < REFRESH_MS) return held;
    const row = await store.current();
    if (!row) {
      await rotate(true);
      return await current();
    }
    if (row.kid === held?.kid) {
      held.at = Date.now();
      return held;
    }
    return held = { kid: row.kid, key: await privateKeyOf(row, sealingKey), at: Date.now() };
  };

  const rotate = async (onlyIfNone = false): Promise<string> => {
    const pair = await generateKeyPair(SIGNING_ALGORITHM, { extractable: true });
    const kid = ulid();
    const publicJwk = { ...await exportJWK(pair.publicKey), kid, alg: SIGNING_ALGORITHM, use: "sig" };
    const sealed = seal(sealingKey, Buffer.from(JSON.stringify(await exportJWK(pair.privateKey))));
    const used = await announcer.change(async (tx, announce) => {
      const before = await store.lockAll(tx);
      if (onlyIfNone && before[0]) return before[0].kid;
      await store.retireAll(tx);
      for (const old of before) announce(signingTrust(old, true));
      await store.insert(tx, { kid, public_jwk: publicJwk, private_sealed: sealed });
      announce(signingTrust({ kid, public_jwk: publicJwk }, false));
      return kid;
    });
    held = undefined;
    return used;
  };

  return {
    async issue(claims) {
      const { kid, key } = await current();
      const issuedAt = Math.floor(Date.now() / 1_000);
      const token = await new SignJWT({ ...claims })
        .setProtectedHeader({ alg: SIGNING_ALGORITHM, kid, typ: "JWT" })
        .setIssuer(TOKEN_ISSUER).setAudience(TOKEN_AUDIENCE).setJti(ulid())
        .setIssuedAt(issuedAt).setExpirationTime(issuedAt + TOKEN_SECONDS)
        .sign(key);
      return { token, expiresAt: new Date((issuedAt + TOKEN_SECONDS) * 1_000) };
    },
    rotate: () => rotate(),
  };
}

async function privateKeyOf(row: SigningKeyRow, sealingKey: KeyObject): Promise<CryptoKey> {
  const jwk = JSON.parse(unseal(sealingKey, row.private_sealed).toString("utf8")) as JWK;
  return await importJWK(jwk, SIGNING_ALGORITHM) as CryptoKey;
}
