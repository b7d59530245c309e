/** Bearer token → caller. Verified tokens are remembered; revocations are watched and looked at on every request. */
import type { NatsConnection } from "@nats-io/nats-core";
import { errors, importJWK, type JWK, jwtVerify } from "jose";
import { unauthenticated, unavailable } from "../contracts/errors.ts";
import type { TenantCaller } from "../contracts/identity.ts";
import { buckets } from "../contracts/streams.ts";
import { parseTrustKey, trustKeys } from "../contracts/subjects.ts";
import { callerIn, SIGNING_ALGORITHM, TOKEN_AUDIENCE, TOKEN_ISSUER, TokenClaims } from "../contracts/tokens.ts";
import { isLive, openBucket, watchBucket } from "../runtime/buckets.ts";
import type { Log } from "../runtime/log.ts";

export interface Authenticator extends AsyncDisposable {
  /** The caller behind an Authorization header, or `authentication_failed`. */
  authenticate(authorization: string | undefined): Promise<TenantCaller>;
  /** The public keys in force, as other parties read them. */
  jwks(): { keys: JWK[] };
}

interface Verified {
  readonly caller: TenantCaller;
  readonly expiresAtMs: number;
}

/** Tokens remembered at most; the oldest goes first. A token is about 600 bytes. */
const MAX_REMEMBERED = 50_000;

export async function startAuthenticator(nc: NatsConnection, log: Log): Promise<Authenticator> {
  const trust = trustList();
  const kv = await openBucket(nc, buckets.trust);
  const watch = watchBucket({
    nc,
    bucket: buckets.trust,
    log,
    apply: (entry) => trust.apply(entry.key, isLive(entry) ? entry.json() : undefined),
  });
  await watch.ready;

  const remembered = new Map<string, Verified>();

  /** A key announced a moment ago may not have come through the watch yet. */
  const learn = async (kid: string) => {
    const key = trustKeys.signing(kid);
    const entry = /^[\w-]{1,64}$/.test(kid)
      ? await kv.get(key).catch((error) => {
        throw unavailable("The signing keys cannot be read; try again shortly", error);
      })
      : null;
    if (isLive(entry)) trust.apply(key, entry.json());
  };

  const verify = async (token: string): Promise<Verified> => {
    try {
      const { payload } = await jwtVerify(token, async (header) => {
        const kid = header.kid ?? "";
        if (!trust.signing.has(kid)) await learn(kid);
        const jwk = trust.signing.get(kid);
        if (!jwk) throw new errors.JWKSNoMatchingKey();
        return await importJWK(jwk, SIGNING_ALGORITHM);
      }, {
        algorithms: [SIGNING_ALGORITHM],
        issuer: TOKEN_ISSUER,
        audience: TOKEN_AUDIENCE,
        requiredClaims: ["exp", "iat", "sub", "jti"],
      });
      const claims = TokenClaims.parse(payload);
      // The token ends with the key it was issued from, should that be sooner.
      const expiresAt = Math.min(payload.exp!, claims.key_exp ?? Infinity);
      return { caller: callerIn(claims), expiresAtMs: expiresAt * 1_000 };
    } catch (error) {
      if (error instanceof errors.JOSEError || (error as Error)?.name === "ZodError") {
        throw unauthenticated("The access token is malformed, expired or not ours; exchange the API key again", error);
      }
      throw error;
    }
  };

  return {
    async authenticate(authorization) {
      const token = /^Bearer ([\w-]+\.[\w-]+\.[\w-]+)$/i.exec(authorization ?? "")?.[1];
      if (!token) throw unauthenticated("A bearer token is required: exchange an API key at POST /v1/auth/token");
      let verified = remembered.get(token);
      if (!verified) {
        verified = await verify(token);
        if (remembered.size >= MAX_REMEMBERED) remembered.delete(remembered.keys().next().value!);
        remembered.set(token, verified);
      }
      const { caller, expiresAtMs } = verified;
      if (expiresAtMs <= Date.now()) {
        remembered.delete(token);
        throw unauthenticated("The access token has expired; exchange the API key again");
      }
      if (trust.revoked.has(caller.keyId) || trust.stopped.has(caller.id)) {
        throw unauthenticated("The access token was revoked");
      }
      return caller;
    },
    jwks: () => ({ keys: [...trust.signing.values()] }),
    [Symbol.asyncDispose]: () => watch[Symbol.asyncDispose](),
  };
}

/** What the trust bucket says, as sets that are quick to ask. */
function trustList() {
  const signing = new Map<string, JWK>();
  const revoked = new Set<string>();
  const stopped = new Set<string>();
  return {
    signing,
    revoked,
    stopped,
    apply(key: string, value: { jwk?: JWK } | undefined) {
      const parsed = parseTrustKey(key);
      if (!parsed) return;
      const { kind, id } = parsed;
      if (kind === "signing") value?.jwk ? signing.set(id, value.jwk) : signing.delete(id);
      else {
        const set = kind === "revoked" ? revoked : stopped;
        value ? set.add(id) : set.delete(id);
      }
    },
  };
}
