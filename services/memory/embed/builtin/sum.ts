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

  return ({ ids, count }) => {
    total.fill(0);
    let before = -1;
    for (let i = 0; i < count; i++) {
      const id = ids[i]!;
      if (id >= firstId) add(id - firstId);
      if (before >= firstId && id >= firstId) {
        const row = rowOfPair(before, id);
        if (row >= 0) add(row);
      }
      before = id;
    }
    return unit(total);
  };

  function add(row: number): void {
    const scale = scales[row]!;
    const from = row * dimension;
    for (let d = 0; d < dimension; d++) total[d]! += scale * rows[from + d]!;
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
