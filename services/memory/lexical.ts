/**
 * Reading words: a text becomes a sparse vector of weighted terms (BM25's document side), a query a set of terms. Every
 * script is read: what has no spaces between words is read as pairs of letters.
 */
import { stem } from "./porter.ts";

/** Whoever changes what a text is read as raises this, and every memory is read anew in the background. */
export const LEXICON = 2;

/** Term → weight, in two columns. A term is a 32-bit hash: a collision costs a wrong hint, never a wrong answer. */
export interface SparseVector {
  readonly terms: Uint32Array;
  readonly weights: Float32Array;
}

const K1 = 1.2;
/** Conversations put long answers beside short remarks; a smaller B lets the long ones win by having more words. */
const B = 0.9;
/** Fixed rather than measured: better than the true average for short texts, and no text's weights depend on others. */
const AVERAGE_LENGTH = 128;

export function sparseOf(title: string, content: string): SparseVector {
  const counts = new Map<number, number>();
  let length = 0;
  for (const text of [title, content]) {
    for (const word of wordsOf(text)) {
      length++;
      if (isStopWord(word)) continue;
      const term = termOf(word);
      counts.set(term, (counts.get(term) ?? 0) + 1);
    }
  }
  const terms = new Uint32Array(counts.size);
  const weights = new Float32Array(counts.size);
  const norm = K1 * (1 - B + B * length / AVERAGE_LENGTH);
  let i = 0;
  for (const [term, count] of counts) {
    terms[i] = term;
    weights[i++] = count * (K1 + 1) / (count + norm);
  }
  return { terms, weights };
}

/** The most words of a query that count; a longer one is a document, and its rarest words are not its first. */
const MAX_QUERY_TERMS = 256;

/** Each term once, with how often it was said. Empty when the query has no word that any memory is indexed by. */
export function queryTerms(query: string): SparseVector {
  const counts = new Map<number, number>();
  for (const word of wordsOf(query)) {
    if (isStopWord(word)) continue;
    const term = termOf(word);
    counts.set(term, (counts.get(term) ?? 0) + 1);
    if (counts.size >= MAX_QUERY_TERMS) break;
  }
  return { terms: Uint32Array.from(counts.keys()), weights: Float32Array.from(counts.values()) };
}

/** How much a term says that `df` of `all` documents have. */
export const idf = (all: number, df: number): number => Math.log(1 + (all - df + 0.5) / (df + 0.5));

const wordPattern = /[\p{L}\p{N}\p{M}]+(?:['’][\p{L}\p{M}]+)*|\p{Extended_Pictographic}/gu;
/** Scripts that put no space between words. */
const unspaced =
  /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}\p{Script=Lao}\p{Script=Khmer}\p{Script=Myanmar}ー]+/gu;
const plain = /^[a-z0-9]+$/;
const marks = /\p{Mn}/gu;
/** Scripts where a mark is an accent that people leave out when they type; elsewhere it may be a vowel. */
const accented = /^[\p{Script=Latin}\p{Script=Greek}\p{Script=Cyrillic}\p{Mn}\p{N}]+$/u;

/** The words of a text as they are compared: folded, but neither stemmed nor sorted out. */
export function* wordsOf(text: string): Generator<string> {
  for (const [found] of text.normalize("NFKC").toLowerCase().matchAll(wordPattern)) {
    if (plain.test(found)) {
      yield found;
      continue;
    }
    const word = found.replace(/['’]s$/u, "").replace(/['’]/gu, "");
    if (plain.test(word)) {
      yield word;
      continue;
    }
    let end = 0;
    for (const run of word.matchAll(unspaced)) {
      if (run.index > end) yield folded(word.slice(end, run.index));
      yield* pairsOf(run[0]);
      end = run.index + run[0].length;
    }
    if (end < word.length) yield folded(word.slice(end));
  }
}

function folded(word: string): string {
  const apart = word.normalize("NFD");
  return accented.test(apart) ? apart.replace(marks, "").replaceAll("ß", "ss") : word;
}

function* pairsOf(run: string): Generator<string> {
  const letters = [...run];
  if (letters.length === 1) yield run;
  for (let i = 0; i + 1 < letters.length; i++) yield letters[i]! + letters[i + 1]!;
  // Single letters too: a word of one Han letter inside a longer run must be found.
  if (letters.length > 1) yield* letters;
}

export const isStopWord = (word: string): boolean => stopWords.has(word);

/** FNV-1a over the stem's UTF-16 units. */
export function termOf(word: string): number {
  const stemmed = plain.test(word) ? stemOnce(word) : word;
  let hash = 0x811c9dc5;
  for (let i = 0; i < stemmed.length; i++) {
    const unit = stemmed.charCodeAt(i);
    hash = Math.imul(hash ^ (unit & 255), 0x01000193);
    hash = Math.imul(hash ^ (unit >> 8), 0x01000193);
  }
  return hash >>> 0;
}

const stems = new Map<string, string>();

/** Texts repeat their words, and stemming is most of the cost of reading them. */
function stemOnce(word: string): string {
  let known = stems.get(word);
  if (known === undefined) {
    if (stems.size >= 50_000) stems.clear();
    stems.set(word, known = stem(word));
  }
  return known;
}

const stopWords = new Set(
  `a about above after again against all am an and any are arent as at be because been before being below between both
  but by can cant cannot could couldnt did didnt do does doesnt doing dont down during each few for from further had
  hadnt has hasnt have havent having he hed hell her here hers herself hes him himself his how i id if ill im in into
  is isnt it its itself ive just lets me more most my myself no nor not now of off on once only or other our ours
  ourselves out over own same she shed shes should shouldnt so some such than that thats the their theirs them
  themselves then there theres these they theyd theyll theyre theyve this those through to too under until up us very
  was wasnt we wed were werent weve what whats when where which while who whom whos why will with wont would wouldnt
  you youd youll your youre yours yourself yourselves youve`.split(/\s+/),
);

/** Two columns as bytes: all hashes, then all weights at 8 bits; BM25's weights lie between 0 and K1 + 1. */
export function packSparse({ terms, weights }: SparseVector): Uint8Array {
  const bytes = new Uint8Array(terms.length * 5);
  const view = new DataView(bytes.buffer);
  terms.forEach((term, i) => view.setUint32(i * 4, term, true));
  weights.forEach((weight, i) => bytes[terms.length * 4 + i] = Math.max(1, Math.round(weight / (K1 + 1) * 255)));
  return bytes;
}

export function unpackSparse(bytes: Uint8Array): SparseVector {
  const count = bytes.length / 5;
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const terms = new Uint32Array(count);
  const weights = new Float32Array(count);
  for (let i = 0; i < count; i++) {
    terms[i] = view.getUint32(i * 4, true);
    weights[i] = bytes[count * 4 + i]! / 255 * (K1 + 1);
  }
  return { terms, weights };
}
