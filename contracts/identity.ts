/** Who calls, what they may do, and how things are named. */
import { z } from "zod";

/** An id says what it names. The letters after the underscore are a ULID, so ids sort by creation. */
export const idPrefixes = {
  tenant: "ten",
  agent: "agt",
  org_admin: "adm",
  api_key: "key",
  interest: "int",
  channel: "chn",
  channel_member: "mbr",
  channel_feed: "fed",
  memory: "mem",
  relationship: "rel",
  delivery: "dlv",
  request: "req",
  webhook: "whk",
  connector: "con",
} as const;
export type IdKind = keyof typeof idPrefixes;

/**
 * An id as a client may send it. Deliberately looser than the ids we make: an id that cannot exist is
 * simply not found, and only what no store could hold is refused as malformed.
 */
export const idOf = (kind: IdKind) =>
  z.string().min(1).max(128).regex(/^[\x21-\x7e]+$/, "an opaque id of printable characters")
    .meta({ examples: [`${idPrefixes[kind]}_01jd3v8g4w9qk2m7x5t0r6n1ze`] });

const base32 = "0123456789abcdefghjkmnpqrstvwxyz";

/** 26 letters: 48 bits of time, then 80 random ones. */
export function ulid(nowMs: number = Date.now(), random: Uint8Array = tenRandomBytes()): string {
  let time = "";
  for (let left = nowMs, i = 0; i < 10; i++, left = Math.floor(left / 32)) time = base32[left % 32] + time;
  let tail = "";
  let bits = 0;
  let held = 0;
  for (const byte of random) {
    held = (held << 8) | byte;
    bits += 8;
    while (bits >= 5) {
      bits -= 5;
      tail += base32[(held >> bits) & 31];
    }
  }
  return time + tail;
}

const pool = new Uint8Array(4_000);
let used = pool.length;

/** Asking the system for random bytes costs more than the rest of an id, so it is asked for many at once. */
function tenRandomBytes(): Uint8Array {
  if (used === pool.length) {
    crypto.getRandomValues(pool);
    used = 0;
  }
  return pool.subarray(used, used += 10);
}

export const newId = (kind: IdKind, seed: string = ulid()): string => `${idPrefixes[kind]}_${seed}`;

export const scopes = [
  "send",
  "receive",
  "memory:read",
  "memory:write",
  "admin",
  "channel:read",
  "channel:write",
  "interests:read",
  "interests:write",
] as const;
export const Scope = z.enum(scopes);
export type Scope = z.output<typeof Scope>;

export const ParticipantType = z.enum(["agent", "org_admin"]);
export type ParticipantType = z.output<typeof ParticipantType>;

/** A caller proved by a token: an agent, or an administrator of a whole tenant. */
export const TenantCaller = z.object({
  kind: ParticipantType,
  id: z.string(),
  tenant: z.string(),
  team: z.string().optional(),
  scopes: z.array(Scope),
  keyId: z.string(),
});
export type TenantCaller = z.output<typeof TenantCaller>;

/** Everyone a service may be called by. `anonymous` has shown nothing yet; `operator` holds the bus credentials, as does a `service` that works for nobody in particular. */
export const Caller = z.discriminatedUnion("kind", [
  TenantCaller.extend({ kind: z.literal("agent") }),
  TenantCaller.extend({ kind: z.literal("org_admin") }),
  z.object({ kind: z.literal("anonymous") }),
  z.object({ kind: z.literal("operator") }),
  z.object({ kind: z.literal("service"), name: z.string() }),
]);
export type Caller = z.output<typeof Caller>;

export const holds = (caller: TenantCaller, scope: Scope): boolean =>
  caller.kind === "org_admin" || caller.scopes.includes(scope);
