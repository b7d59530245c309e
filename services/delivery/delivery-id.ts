/** What a delivery is called: enough to find it without a look-up, bound to one agent so that no other can use it. */
import { createHmac, type KeyObject, timingSafeEqual } from "node:crypto";

export interface AgentRef {
  readonly tenant: string;
  readonly agent: string;
}

/** What an id carries. A replay moves the delivery elsewhere in its stream; its handle stays what it was at first. */
export interface Handle {
  /** Place in the agent's delivery stream. */
  readonly seq: number;
  /** When it was queued, in ms since 1970. First in the id, so ids sort by creation. */
  readonly at: number;
  readonly tier: number;
  /** Sequence of the event in EVENTS. */
  readonly event: number;
}

export interface DeliveryIds {
  idOf(owner: AgentRef, handle: Handle): string;
  /** Undefined for an id of another agent, as for one that never was. */
  handleOf(owner: AgentRef, id: string): Handle | undefined;
}

const PREFIX = "dlv_";
/** 80 bits: a forger who may try a million ids a second would need some ten thousand million years. */
const MAC_BYTES = 10;
const TIME_BYTES = 6;

export function deliveryIds(key: KeyObject): DeliveryIds {
  const macOf = ({ tenant, agent }: AgentRef, fields: Uint8Array) =>
    createHmac("sha256", key).update(`${tenant} ${agent} `).update(fields).digest().subarray(0, MAC_BYTES);
  return {
    idOf(owner, handle) {
      const fields = packed(handle);
      return PREFIX + base32(fields) + base32(macOf(owner, fields));
    },
    handleOf(owner, id) {
      if (!id.startsWith(PREFIX) || id.length <= PREFIX.length + MAC_LETTERS || id.length > 96) return undefined;
      const fields = unbase32(id.slice(PREFIX.length, -MAC_LETTERS));
      const mac = unbase32(id.slice(-MAC_LETTERS));
      if (!fields || !mac || !timingSafeEqual(mac, macOf(owner, fields))) return undefined;
      return unpacked(fields);
    },
  };
}

function packed({ seq, at, tier, event }: Handle): Uint8Array {
  const bytes: number[] = [];
  for (let left = at, i = 0; i < TIME_BYTES; i++, left = Math.floor(left / 256)) bytes.unshift(left % 256);
  for (let left of [seq, tier, event]) {
    for (; left >= 128; left = Math.floor(left / 128)) bytes.push(left % 128 + 128);
    bytes.push(left);
  }
  return Uint8Array.from(bytes);
}

function unpacked(bytes: Uint8Array): Handle {
  let place = TIME_BYTES;
  const next = () => {
    let value = 0;
    for (let scale = 1;; scale *= 128) {
      const byte = bytes[place++] ?? 0;
      value += (byte % 128) * scale;
      if (byte < 128) return value;
    }
  };
  const at = bytes.subarray(0, TIME_BYTES).reduce((sum, byte) => sum * 256 + byte, 0);
  return { at, seq: next(), tier: next(), event: next() };
}

// Crockford's letters are in the order of their codes, so what sorts as bytes sorts as text.
const letters = "0123456789abcdefghjkmnpqrstvwxyz";
const values = new Map([...letters].map((letter, value) => [letter, value]));
const MAC_LETTERS = Math.ceil(MAC_BYTES * 8 / 5);

function base32(bytes: Uint8Array): string {
  let text = "";
  let held = 0;
  let bits = 0;
  for (const byte of bytes) {
    held = (held << 8) | byte;
    for (bits += 8; bits >= 5; bits -= 5) text += letters[(held >>> (bits - 5)) & 31];
    held &= 31;
  }
  return bits > 0 ? text + letters[(held << (5 - bits)) & 31] : text;
}

/** Undefined for anything `base32` does not write: one delivery has one id. */
function unbase32(text: string): Uint8Array | undefined {
  const bytes: number[] = [];
  let held = 0;
  let bits = 0;
  for (const letter of text) {
    const value = values.get(letter);
    if (value === undefined) return undefined;
    held = (held << 5) | value;
    bits += 5;
    if (bits >= 8) bytes.push((held >>> (bits -= 8)) & 255);
    held &= 255;
  }
  return bits < 5 && (held & ((1 << bits) - 1)) === 0 ? Uint8Array.from(bytes) : undefined;
}
