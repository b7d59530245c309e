/** Announcements about whom to trust. What only matters while a token may live carries its own end. */
import type { JWK } from "jose";
import { trustKeys } from "../../contracts/subjects.ts";
import { TOKEN_SECONDS } from "../../contracts/tokens.ts";
import type { Announcement } from "./announce.ts";

/** A retired key is trusted until the last token signed with it has surely expired. */
export const RETIRED_SECONDS = TOKEN_SECONDS + 600;
const REFUSED_SECONDS = TOKEN_SECONDS + 60;

export const signingTrust = (
  { kid, public_jwk }: { kid: string; public_jwk: JWK },
  isRetired: boolean,
): Announcement => ({
  bucket: "trust",
  key: trustKeys.signing(kid),
  value: { jwk: public_jwk },
  ...(isRetired ? { ttlSeconds: RETIRED_SECONDS } : {}),
});

export const revocation = (keyId: string): Announcement => ({
  bucket: "trust",
  key: trustKeys.revokedKey(keyId),
  value: {},
  ttlSeconds: REFUSED_SECONDS,
});

/** While an agent is stopped its tokens are refused. */
export const stopped = (agent: string): Announcement => ({
  bucket: "trust",
  key: trustKeys.stoppedAgent(agent),
  value: {},
  ttlSeconds: REFUSED_SECONDS,
});
