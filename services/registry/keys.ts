/** API keys: how they look, and how they are kept. */
import { type KeyObject, randomInt } from "node:crypto";
import { keyedHash } from "../../runtime/secret.ts";

const base62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const PREFIX_LENGTH = 12;

export interface FreshKey {
  readonly plaintext: string;
  readonly prefix: string;
  readonly hash: Buffer;
}

/** `ak_live_` and 32 random base62 characters: 190 bits. */
export function freshKey(hashKey: KeyObject): FreshKey {
  let plaintext = "ak_live_";
  for (let i = 0; i < 32; i++) plaintext += base62[randomInt(62)];
  return { plaintext, prefix: plaintext.slice(0, PREFIX_LENGTH), hash: hashOf(hashKey, plaintext) };
}

/** Looking a key up by its keyed hash tells an observer nothing about the key, however long the lookup takes. */
export const hashOf = (hashKey: KeyObject, plaintext: string): Buffer => keyedHash(hashKey, plaintext);
