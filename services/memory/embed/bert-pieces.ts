/** The word pieces of BERT-like encoders, from the vocabulary that lies beside their weights. */

export interface Vocabulary {
  /** Piece → id. */
  readonly ids: ReadonlyMap<string, number>;
  readonly isLowerCase: boolean;
}

const LONGEST_WORD = 100;
/** Punctuation and symbols stand alone, and so does every letter of scripts without spaces. */
const apart = /[\p{P}\p{S}]|[\p{Script=Han}]/u;

/** Ids of a text, with the marks of its beginning and end, at most `most` of them. */
export function piecesOf(text: string, { ids, isLowerCase }: Vocabulary, most: number): number[] {
  const id = (piece: string) => ids.get(piece);
  const [first, last, unknown] = [id("[CLS]") ?? 101, id("[SEP]") ?? 102, id("[UNK]") ?? 100];
  const found = [first];
  for (const word of wordsIn(isLowerCase ? folded(text) : text)) {
    if (found.length >= most - 1) break;
    found.push(...piecesOfWord(word, id) ?? [unknown]);
  }
  return [...found.slice(0, most - 1), last];
}

const folded = (text: string): string => text.toLowerCase().normalize("NFD").replace(/\p{Mn}/gu, "");

function* wordsIn(text: string): Generator<string> {
  let word = "";
  for (const letter of text) {
    const isApart = apart.test(letter);
    if (!isApart && !/[\s\p{C}]/u.test(letter)) {
      word += letter;
      continue;
    }
    if (word) yield word;
    word = "";
    if (isApart) yield letter;
  }
  if (word) yield word;
}

/** The longest pieces from the left; undefined when some part is in no piece. */
function piecesOfWord(word: string, id: (piece: string) => number | undefined): number[] | undefined {
  if (word.length > LONGEST_WORD) return undefined;
  const found: number[] = [];
  for (let from = 0; from < word.length;) {
    let until = word.length;
    let known: number | undefined;
    for (; until > from; until--) {
      known = id(from === 0 ? word.slice(0, until) : `##${word.slice(from, until)}`);
      if (known !== undefined) break;
    }
    if (known === undefined) return undefined;
    found.push(known);
    from = until;
  }
  return found;
}

/** From a tokenizer.json of Hugging Face, whose model must be WordPiece. */
export function vocabularyIn(json: unknown): Vocabulary {
  const { model, normalizer } = json as {
    model?: { type?: string; vocab?: Record<string, number> };
    normalizer?: { lowercase?: boolean };
  };
  if (!model?.vocab || (model.type !== undefined && model.type !== "WordPiece")) {
    throw new Error(`its tokenizer is of type ${model?.type ?? "unknown"}; only WordPiece is read`);
  }
  return { ids: new Map(Object.entries(model.vocab)), isLowerCase: normalizer?.lowercase ?? true };
}
