/** Signatures of pushed deliveries, as Standard Webhooks has them. */
import { createHmac, type KeyObject } from "node:crypto";
import type { PushState } from "../../contracts/pipeline.ts";
import { keyedHash } from "../../runtime/secret.ts";
import type { AgentRef } from "./delivery-id.ts";

const OVERLAP_MS = 24 * 3_600_000;

/** Derived, never stored: who has the server secret and the number of the secret can tell it. */
export const secretOf = (key: KeyObject, { tenant, agent }: AgentRef, number: number): string =>
  `whsec_${keyedHash(key, `${tenant} ${agent} ${number}`).toString("base64")}`;

/** The secrets to sign with now, newest first. */
export function secretsOf(key: KeyObject, owner: AgentRef, state: PushState | undefined, nowMs: number): string[] {
  const { secret = 1, rotated_at } = state ?? {};
  const overlaps = secret > 1 && rotated_at !== undefined && nowMs - Date.parse(rotated_at) < OVERLAP_MS;
  return (overlaps ? [secret, secret - 1] : [secret]).map((number) => secretOf(key, owner, number));
}

export function signatureHeaders(
  secrets: readonly string[],
  { id, body, nowMs }: { readonly id: string; readonly body: string; readonly nowMs: number },
): Record<string, string> {
  const timestamp = String(Math.floor(nowMs / 1_000));
  const sign = (secret: string) =>
    createHmac("sha256", Buffer.from(secret.slice("whsec_".length), "base64"))
      .update(`${id}.${timestamp}.${body}`).digest("base64");
  return {
    "webhook-id": id,
    "webhook-timestamp": timestamp,
    "webhook-signature": secrets.map((secret) => `v1,${sign(secret)}`).join(" "),
  };
}
