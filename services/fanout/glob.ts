/** Shell-style patterns over event types: `*` any run of characters, `?` one, `[abc]` one of a set. Pure. */

export interface Glob {
  /** What every matching type begins with. */
  readonly prefix: string;
  /** Without wildcards: only the prefix itself matches. */
  readonly isExact: boolean;
  matches(type: Letters): boolean;
}

/** A type as code points, made once per event and read by many patterns. */
export type Letters = readonly number[];
export const lettersOf = (type: string): Letters => Array.from(type, (letter) => letter.codePointAt(0)!);

/** A letter, `STAR`, `ANY`, or a set. */
type Item = number | LetterSet;
/** `[a-cx]`, or `[!a-cx]` for every other letter. */
interface LetterSet {
  readonly ranges: readonly (readonly [number, number])[];
  readonly negated: boolean;
}
const STAR = -1;
const ANY = -2;

export function compileGlob(glob: string): Glob {
  const items = itemsOf(lettersOf(glob));
  const wild = items.findIndex((item) => typeof item !== "number" || item < 0);
  const literal = wild < 0 ? items : items.slice(0, wild);
  const prefix = String.fromCodePoint(...literal as number[]);
  return { prefix, isExact: wild < 0, matches: (type) => isMatch(items, type) };
}

function itemsOf(glob: Letters): Item[] {
  const items: Item[] = [];
  for (let i = 0; i < glob.length; i++) {
    const letter = glob[i]!;
    const end = letter === code("[") ? glob.indexOf(code("]"), i + 1) : -1;
    if (end > i + 1) {
      items.push(setOf(glob.slice(i + 1, end)));
      i = end;
    } else if (letter === code("?")) items.push(ANY);
    else if (letter !== code("*")) items.push(letter);
    // Two stars mean what one means.
    else if (items.at(-1) !== STAR) items.push(STAR);
  }
  return items;
}

function setOf(letters: Letters): LetterSet {
  const negated = letters.length > 1 && letters[0] === code("!");
  const ranges: [number, number][] = [];
  for (let i = negated ? 1 : 0; i < letters.length; i++) {
    const isRange = letters[i + 1] === code("-") && i + 2 < letters.length;
    ranges.push([letters[i]!, letters[isRange ? i + 2 : i]!]);
    if (isRange) i += 2;
  }
  return { ranges, negated };
}

/**
 * After a mismatch only the last star is tried one letter further on: an earlier one could find nothing that the last
 * does not. So the work is at most the product of both lengths, whatever a tenant writes.
 */
function isMatch(items: readonly Item[], type: Letters): boolean {
  let item = 0;
  let letter = 0;
  let star = -1;
  let resume = 0;
  while (letter < type.length) {
    const wanted = items[item];
    if (wanted === STAR) {
      star = item++;
      resume = letter;
    } else if (wanted !== undefined && fits(wanted, type[letter]!)) {
      item++;
      letter++;
    } else if (star >= 0) {
      item = star + 1;
      letter = ++resume;
    } else return false;
  }
  if (items[item] === STAR) item++;
  return item === items.length;
}

function fits(item: Item, letter: number): boolean {
  if (typeof item === "number") return item === letter || item === ANY;
  return item.ranges.some(([from, to]) => from <= letter && letter <= to) !== item.negated;
}

const code = (letter: string) => letter.codePointAt(0)!;
