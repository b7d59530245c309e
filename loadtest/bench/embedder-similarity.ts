/** The STS benchmark: rank correlation of the cosine of two sentences' vectors with people's judgement. */

export interface Pair {
  left: string;
  right: string;
  score: number;
}

export function readPairs(file: string): Pair[] {
  return file.split("\n").filter(Boolean).map((line) => {
    const [, , , , score, left, right] = line.split("\t");
    return { left: left!, right: right!, score: Number(score) };
  });
}

export async function spearmanOfCosine(
  pairs: Pair[],
  embed: (texts: string[]) => Promise<ArrayLike<number>[]>,
): Promise<number> {
  const vectors = await embed(pairs.flatMap(({ left, right }) => [left, right]));
  const cosines = pairs.map((_, i) => cosine(vectors[2 * i]!, vectors[2 * i + 1]!));
  return correlation(ranks(cosines), ranks(pairs.map(({ score }) => score)));
}

export function cosine(a: ArrayLike<number>, b: ArrayLike<number>): number {
  let ab = 0, aa = 0, bb = 0;
  for (let d = 0; d < a.length; d++) {
    ab += a[d]! * b[d]!;
    aa += a[d]! * a[d]!;
    bb += b[d]! * b[d]!;
  }
  return ab / Math.sqrt(aa * bb);
}

/** Ranks from 0; equal values share the mean of theirs. */
function ranks(values: number[]): number[] {
  const order = values.map((_, i) => i).sort((a, b) => values[a]! - values[b]!);
  const out = new Array<number>(values.length);
  for (let from = 0; from < order.length;) {
    let to = from;
    while (to + 1 < order.length && values[order[to + 1]!] === values[order[from]!]) to++;
    for (let i = from; i <= to; i++) out[order[i]!] = (from + to) / 2;
    from = to + 1;
  }
  return out;
}

function correlation(a: number[], b: number[]): number {
  const mean = (x: number[]) => x.reduce((sum, value) => sum + value, 0) / x.length;
  const [meanA, meanB] = [mean(a), mean(b)];
  let ab = 0, aa = 0, bb = 0;
  for (let i = 0; i < a.length; i++) {
    ab += (a[i]! - meanA) * (b[i]! - meanB);
    aa += (a[i]! - meanA) ** 2;
    bb += (b[i]! - meanB) ** 2;
  }
  return ab / Math.sqrt(aa * bb);
}
