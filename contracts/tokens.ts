/** What an access token says. Issued by the registry, read by the gateway. */
import { z } from "zod";
import { ParticipantType, Scope, TenantCaller } from "./identity.ts";

export const TOKEN_ISSUER = "sensorium";
export const TOKEN_AUDIENCE = "sensorium-api";
export const TOKEN_SECONDS = 3_600;
export const SIGNING_ALGORITHM = "EdDSA";

export const TokenClaims = z.object({
  sub: z.string(),
  tid: z.string(),
  ptype: ParticipantType,
  team: z.string().optional(),
  scopes: z.array(Scope),
  key_id: z.string(),
  /** When the key it was issued from ends, in seconds; the token ends with it. */
  key_exp: z.number().optional(),
});
export type TokenClaims = z.output<typeof TokenClaims>;

export const callerIn = (claims: TokenClaims): TenantCaller => ({
  kind: claims.ptype,
  id: claims.sub,
  tenant: claims.tid,
  ...(claims.team ? { team: claims.team } : {}),
  scopes: claims.scopes,
  keyId: claims.key_id,
});
