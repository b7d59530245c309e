import type { Artifact } from "./artifact.ts";
import type { Pieces } from "./word-pieces.ts";

/**
 * The sum of the rows of a text's word pieces and known pairs, scaled to length 1.
 *
 * Sums run in a fixed order in double precision and use only +, × and sqrt, which IEEE 754 defines to the bit: every
 * engine on every processor gives the same vector.
 */
export function summation(
  { dimension, firstId, vocabulary, scales, pairs, rows }: Artifact,
): (p: Pieces) => Float32Array {
  const rowOfPair = pairRows(pairs, vocabulary.length - firstId);
  const total = new Float64Array(dimension);
  // Rows wait here until there are four: adding them at once reads and writes the sums a quarter as often.
  const waiting = new Int32Array(4);

  return ({ ids, count }) => {
    total.fill(0);
    let held = 0;
    let before = 0;
    for (let i = 0; i < count; i++) {
      const id = ids[i]!;
      if (id >= firstId) {
        waiting[held++] = id - firstId;
        if (held === 4) held = addAll();
        const pair = before >= firstId ? rowOfPair(before, id) : -1;
        if (pair >= 0) waiting[held++] = pair;
        if (held === 4) held = addAll();
      }
      before = id;
    }
    for (let i = 0; i < held; i++) add(waiting[i]!);
    return unit(total);
  };

  function addAll(): 0 {
    const a = waiting[0]!, b = waiting[1]!, c = waiting[2]!, d = waiting[3]!;
    const scaleA = scales[a]!, scaleB = scales[b]!, scaleC = scales[c]!, scaleD = scales[d]!;
    const atA = a * dimension, atB = b * dimension, atC = c * dimension, atD = d * dimension;
    for (let i = 0; i < dimension; i++) {
      total[i]! += scaleA * rows[atA + i]! + scaleB * rows[atB + i]! + scaleC * rows[atC + i]! +
        scaleD * rows[atD + i]!;
    }
    return 0;
  }

  function add(row: number): void {
    const scale = scales[row]!;
    const at = row * dimension;
    for (let i = 0; i < dimension; i++) total[i]! += scale * rows[at + i]!;
  }
}

/** A hash table without objects: one probe for nearly every pair of a text, as most pairs are not known. */
function pairRows(pairs: Uint16Array, firstRow: number): (left: number, right: number) => number {
  let size = 1;
  while (size < pairs.length * 2) size *= 2;
  const keys = new Int32Array(size).fill(-1);
  const rows = new Int32Array(size);
  const slot = (key: number) => {
    let at = (Math.imul(key, 0x9e3779b1) >>> 7) & (size - 1);
    while (keys[at] !== -1 && keys[at] !== key) at = (at + 1) & (size - 1);
    return at;
  };
  for (let i = 0; i < pairs.length; i += 2) {
    const key = (pairs[i]! << 15) | pairs[i + 1]!;
    const at = slot(key);
    keys[at] = key;
    rows[at] = firstRow + i / 2;
  }
  return (left, right) => {
    const at = slot((left << 15) | right);
    return keys[at] === -1 ? -1 : rows[at]!;
  };
}

function unit(total: Float64Array): Float32Array {
  let squares = 0;
  for (let d = 0; d < total.length; d++) squares += total[d]! * total[d]!;
  const vector = new Float32Array(total.length);
  if (squares === 0) {
    // Nothing known in the text. Indexes by cosine need a direction; the last one says least about any other text.
    vector[total.length - 1] = 1;
    return vector;
  }
  const length = Math.sqrt(squares);
  for (let d = 0; d < total.length; d++) vector[d] = total[d]! / length;
  return vector;
}
