/** How each kind of sender signs what it sends. Pure but for the hash itself. */
import { createHmac, type KeyObject, timingSafeEqual } from "node:crypto";
import type { Preset } from "../../contracts/ingestion.ts";

export type Headers = Readonly<Record<string, string>>;

/** A signed moment further away than this, either way, is a request recorded earlier. Stripe and Slack both say so. */
export const TOLERANCE_SECONDS = 300;
/** A sender that changes its secret signs with both; more than a few is somebody who makes us work. */
const MAX_SIGNATURES = 4;

/** What a request claims: these are the HMAC of `before` and the body. */
interface Claim {
  readonly before: string;
  readonly signatures: readonly string[];
}

interface Scheme {
  claim(headers: Headers, nowSeconds: number): Claim | undefined;
  sign(hmac: (before: string) => string, nowSeconds: number): Headers;
}

const hex = /^[0-9a-f]{64}$/;
const isFresh = (seconds: string, now: number) =>
  /^\d{1,12}$/.test(seconds) && Math.abs(now - Number(seconds)) <= TOLERANCE_SECONDS;

const own: Scheme = {
  claim: ({ "x-service-signature": header }) => {
    const signature = header?.startsWith("sha256=") ? header.slice(7) : header;
    return signature && hex.test(signature) ? { before: "", signatures: [signature] } : undefined;
  },
  sign: (hmac) => ({ "x-service-signature": `sha256=${hmac("")}` }),
};

const schemes: Record<Preset, Scheme> = {
  custom: own,
  cloudevents: own,
  github: {
    claim: ({ "x-hub-signature-256": header }) => {
      const [, signature] = /^sha256=([0-9a-f]{64})$/.exec(header ?? "") ?? [];
      return signature ? { before: "", signatures: [signature] } : undefined;
    },
    sign: (hmac) => ({ "x-hub-signature-256": `sha256=${hmac("")}` }),
  },
  stripe: {
    claim: ({ "stripe-signature": header }, now) => {
      const pairs = (header ?? "").split(",").map((pair) => pair.trim().split("=", 2));
      const time = pairs.find(([name]) => name === "t")?.[1] ?? "";
      const signatures = pairs.filter(([name, value]) => name === "v1" && hex.test(value ?? "")).map(([, v]) => v!);
      if (!isFresh(time, now) || signatures.length === 0 || signatures.length > MAX_SIGNATURES) return undefined;
      return { before: `${time}.`, signatures };
    },
    sign: (hmac, now) => ({ "stripe-signature": `t=${now},v1=${hmac(`${now}.`)}` }),
  },
  slack: {
    claim: ({ "x-slack-signature": header, "x-slack-request-timestamp": time = "" }, now) => {
      const [, signature] = /^v0=([0-9a-f]{64})$/.exec(header ?? "") ?? [];
      return signature && isFresh(time, now) ? { before: `v0:${time}:`, signatures: [signature] } : undefined;
    },
    sign: (hmac, now) => ({
      "x-slack-signature": `v0=${hmac(`v0:${now}:`)}`,
      "x-slack-request-timestamp": String(now),
    }),
  },
};

export interface Signed {
  readonly headers: Headers;
  readonly body: Uint8Array;
  readonly nowSeconds: number;
}

/** Undefined when the request does not even claim to be signed this way, now. */
export function verify(preset: Preset, key: KeyObject, { headers, body, nowSeconds }: Signed): boolean | undefined {
  const claim = schemes[preset].claim(headers, nowSeconds);
  if (!claim) return undefined;
  const expected = hmacOf(key, claim.before, body);
  // Every one is compared, and each in a time that does not depend on where it differs.
  return claim.signatures.map((given) => timingSafeEqual(Buffer.from(given, "hex"), expected)).includes(true);
}

/** The headers a sender of this kind would put beside the body. */
export const sign = (preset: Preset, key: KeyObject, body: Uint8Array, nowSeconds: number): Headers =>
  schemes[preset].sign((before) => hmacOf(key, before, body).toString("hex"), nowSeconds);

export const hmacOf = (key: KeyObject, before: string, body: Uint8Array): Buffer =>
  createHmac("sha256", key).update(before).update(body).digest();
