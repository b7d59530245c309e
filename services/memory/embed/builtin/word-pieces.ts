import type { Artifact, CodePoints } from "./artifact.ts";

/** Ids of a text's word pieces, valid until the next call: the array is reused. */
export interface Pieces {
  ids: Int32Array;
  count: number;
}

const LETTER = 0;
const ISOLATED = 1;
const REMOVED = 2;
const SPACE = 3;

const UNKNOWN = 100;
const MAX_WORD_CODE_POINTS = 100;
const SPECIAL = /\[(?:PAD|UNK|CLS|SEP|MASK)\]/g;
const HANGUL_FIRST = 0xac00;
const HANGUL_LAST = 0xd7a3;

/**
 * BERT's uncased tokenizer, id for id (Hugging Face tokenizers, without [CLS] and [SEP]).
 *
 * It asks the engine for nothing that depends on its Unicode version: normalize(), toLowerCase() beyond ASCII and
 * property escapes differ between releases, and with them the vectors would.
 */
export function wordPieces(
  { vocabulary, unicode }: Pick<Artifact, "vocabulary" | "unicode">,
): (text: string) => Pieces {
  const whole = new Map<string, number>();
  const inner = new Map<string, number>();
  let longest = 0;
  vocabulary.forEach((piece, id) => {
    const continues = piece.startsWith("##") && piece.length > 2;
    (continues ? inner : whole).set(continues ? piece.slice(2) : piece, id);
    longest = Math.max(longest, piece.length);
  });
  const { kinds, mapped } = codePoints(unicode);
  const pieces: Pieces = { ids: new Int32Array(1024), count: 0 };

  return (text) => {
    pieces.count = 0;
    if (text.includes("[")) {
      let from = 0;
      for (const special of text.matchAll(SPECIAL)) {
        split(normal(text.slice(from, special.index)));
        push(whole.get(special[0]) ?? UNKNOWN);
        from = special.index + special[0].length;
      }
      split(normal(from === 0 ? text : text.slice(from)));
    } else {
      split(normal(text));
    }
    return pieces;
  };

  /** Lower case without accents, each isolated character beyond ASCII between spaces. */
  function normal(text: string): string {
    for (let i = 0; i < text.length; i++) {
      const code = text.charCodeAt(i);
      if (code >= 128 || kinds[code] === REMOVED) return normalSlowly(text, i);
    }
    return text.toLowerCase();
  }

  function normalSlowly(text: string, from: number): string {
    let out = text.slice(0, from).toLowerCase();
    let plain = from;
    for (let i = from; i < text.length;) {
      const code = text.codePointAt(i)!;
      const width = code > 0xffff ? 2 : 1;
      const kind = kinds[code]!;
      // Runs of what stays as it is, or only changes to ASCII lower case, are copied in one piece.
      if (kind !== LETTER && code >= 128 || kind === REMOVED) {
        out += asciiLower(text.slice(plain, i));
        if (kind === ISOLATED) out += ` ${text.slice(i, i + width)} `;
        else if (kind === SPACE) out += " ";
        else if (kind !== REMOVED) out += code >= HANGUL_FIRST && code <= HANGUL_LAST ? hangul(code) : mapped.get(code);
        plain = i + width;
      }
      i += width;
    }
    return out + asciiLower(text.slice(plain));
  }

  function split(text: string): void {
    let start = -1;
    for (let i = 0; i < text.length; i++) {
      const code = text.charCodeAt(i);
      const kind = code < 128 ? kinds[code]! : LETTER;
      if (kind === SPACE || kind === ISOLATED) {
        if (start >= 0) word(text.slice(start, i));
        start = -1;
        if (kind === ISOLATED) push(whole.get(text[i]!) ?? UNKNOWN);
      } else if (start < 0) {
        start = i;
      }
    }
    if (start >= 0) word(text.slice(start));
  }

  /** Longest match first; a word with any part unknown is unknown as a whole. */
  function word(text: string): void {
    const known = whole.get(text);
    if (known !== undefined) return push(known);
    if (text.length > MAX_WORD_CODE_POINTS && isTooLong(text)) return push(UNKNOWN);
    const before = pieces.count;
    let at = 0;
    while (at < text.length) {
      const entries = at === 0 ? whole : inner;
      let end = Math.min(text.length, at + longest);
      let id: number | undefined;
      for (; end > at; end--) {
        id = entries.get(text.slice(at, end));
        if (id !== undefined) break;
      }
      if (id === undefined) {
        pieces.count = before;
        return push(UNKNOWN);
      }
      push(id);
      at = end;
    }
  }

  function push(id: number): void {
    if (pieces.count === pieces.ids.length) {
      const larger = new Int32Array(pieces.ids.length * 2);
      larger.set(pieces.ids);
      pieces.ids = larger;
    }
    pieces.ids[pieces.count++] = id;
  }
}

function codePoints({ runs, mapped }: CodePoints): { kinds: Uint8Array; mapped: Map<number, string> } {
  const kinds = new Uint8Array(0x110000);
  for (const [first, last, kind] of runs) kinds.fill(kind, first, last + 1);
  // ASCII capitals are mapped too, but by asciiLower and toLowerCase.
  kinds.fill(LETTER, 0x41, 0x5b);
  return { kinds, mapped: new Map(Object.entries(mapped).map(([char, to]) => [char.codePointAt(0)!, to])) };
}

function asciiLower(text: string): string {
  return text.replace(/[A-Z]+/g, (capitals) => capitals.toLowerCase());
}

/** A Hangul syllable as its letters, by the rule of the Unicode standard. */
function hangul(code: number): string {
  const index = code - HANGUL_FIRST;
  const last = index % 28;
  return String.fromCharCode(0x1100 + Math.floor(index / 588), 0x1161 + Math.floor((index % 588) / 28)) +
    (last === 0 ? "" : String.fromCharCode(0x11a7 + last));
}

function isTooLong(text: string): boolean {
  let count = 0;
  for (const _ of text) if (++count > MAX_WORD_CODE_POINTS) return true;
  return false;
}
