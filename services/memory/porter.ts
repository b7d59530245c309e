/** Porter's stemmer (1980): `connected`, `connecting` and `connection` become `connect`. English, lower case, ASCII. */

const vowel = (word: string, i: number): boolean => {
  const letter = word[i];
  if (letter === "a" || letter === "e" || letter === "i" || letter === "o" || letter === "u") return true;
  return letter === "y" && i > 0 && !vowel(word, i - 1);
};

/** How often a run of vowels is followed by one of consonants: the m of the paper. */
function measure(stem: string): number {
  let m = 0;
  let before = false;
  for (let i = 0; i < stem.length; i++) {
    const now = vowel(stem, i);
    if (before && !now) m++;
    before = now;
  }
  return m;
}

function hasVowel(stem: string): boolean {
  for (let i = 0; i < stem.length; i++) if (vowel(stem, i)) return true;
  return false;
}

const endsDouble = (word: string): boolean => {
  const n = word.length;
  return n > 1 && word[n - 1] === word[n - 2] && !vowel(word, n - 1);
};

/** Consonant, vowel, consonant, and the last one neither w, x nor y. */
function endsCvc(word: string): boolean {
  const n = word.length;
  if (n < 3 || vowel(word, n - 1) || !vowel(word, n - 2) || vowel(word, n - 3)) return false;
  return !"wxy".includes(word[n - 1]!);
}

const step2: readonly [string, string][] = [
  ["ational", "ate"],
  ["tional", "tion"],
  ["enci", "ence"],
  ["anci", "ance"],
  ["izer", "ize"],
  ["abli", "able"],
  ["alli", "al"],
  ["entli", "ent"],
  ["eli", "e"],
  ["ousli", "ous"],
  ["ization", "ize"],
  ["ation", "ate"],
  ["ator", "ate"],
  ["alism", "al"],
  ["iveness", "ive"],
  ["fulness", "ful"],
  ["ousness", "ous"],
  ["aliti", "al"],
  ["iviti", "ive"],
  ["biliti", "ble"],
];
const step3: readonly [string, string][] = [
  ["icate", "ic"],
  ["ative", ""],
  ["alize", "al"],
  ["iciti", "ic"],
  ["ical", "ic"],
  ["ful", ""],
  ["ness", ""],
];
const step4 = [
  "ement",
  "ance",
  "ence",
  "able",
  "ible",
  "ment",
  "ant",
  "ent",
  "ism",
  "ate",
  "iti",
  "ous",
  "ive",
  "ize",
  "ion",
  "al",
  "er",
  "ic",
  "ou",
];

/** The first ending that fits decides, whether or not its condition then holds. */
function replace(word: string, endings: readonly [string, string][]): string {
  for (const [ending, by] of endings) {
    if (!word.endsWith(ending)) continue;
    const stem = word.slice(0, -ending.length);
    return measure(stem) > 0 ? stem + by : word;
  }
  return word;
}

export function stem(word: string): string {
  if (word.length < 3) return word;
  let w = word;

  if (w.endsWith("sses") || w.endsWith("ies")) w = w.slice(0, -2);
  else if (w.endsWith("s") && !w.endsWith("ss")) w = w.slice(0, -1);

  if (w.endsWith("eed")) {
    if (measure(w.slice(0, -3)) > 0) w = w.slice(0, -1);
  } else {
    const cut = w.endsWith("ed") ? w.slice(0, -2) : w.endsWith("ing") ? w.slice(0, -3) : undefined;
    if (cut !== undefined && hasVowel(cut)) {
      w = cut;
      if (w.endsWith("at") || w.endsWith("bl") || w.endsWith("iz")) w += "e";
      else if (endsDouble(w) && !"lsz".includes(w[w.length - 1]!)) w = w.slice(0, -1);
      else if (measure(w) === 1 && endsCvc(w)) w += "e";
    }
  }

  if (w.endsWith("y") && hasVowel(w.slice(0, -1))) w = w.slice(0, -1) + "i";

  w = replace(w, step2);
  w = replace(w, step3);

  for (const ending of step4) {
    if (!w.endsWith(ending)) continue;
    const rest = w.slice(0, -ending.length);
    if (measure(rest) > 1 && (ending !== "ion" || rest.endsWith("s") || rest.endsWith("t"))) w = rest;
    break;
  }

  if (w.endsWith("e")) {
    const rest = w.slice(0, -1);
    const m = measure(rest);
    if (m > 1 || (m === 1 && !endsCvc(rest))) w = rest;
  }
  if (w.endsWith("ll") && measure(w) > 1) w = w.slice(0, -1);
  return w;
}
