/** Keys derived from the one server secret: each purpose has its own, so none can stand in for another. */
import {
  createCipheriv,
  createDecipheriv,
  createHmac,
  createSecretKey,
  hkdfSync,
  type KeyObject,
  randomBytes,
} from "node:crypto";

export const deriveKey = (serverSecret: string, purpose: string): KeyObject =>
  createSecretKey(Buffer.from(hkdfSync("sha256", serverSecret, "sensorium", purpose, 32)));

export const keyedHash = (key: KeyObject, text: string): Buffer => createHmac("sha256", key).update(text).digest();

/** AES-256-GCM: nonce, tag, ciphertext. */
export function seal(key: KeyObject, plain: Uint8Array): Buffer {
  const nonce = randomBytes(12);
  const cipher = createCipheriv("aes-256-gcm", key, nonce);
  const body = Buffer.concat([cipher.update(plain), cipher.final()]);
  return Buffer.concat([nonce, cipher.getAuthTag(), body]);
}

export function unseal(key: KeyObject, sealed: Uint8Array): Buffer {
  const decipher = createDecipheriv("aes-256-gcm", key, sealed.subarray(0, 12));
  decipher.setAuthTag(sealed.subarray(12, 28));
  return Buffer.concat([decipher.update(sealed.subarray(28)), decipher.final()]);
}
