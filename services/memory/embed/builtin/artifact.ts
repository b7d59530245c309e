import { readFile } from "node:fs/promises";

/** The parts of model.bin, as ops/embedder/export.py writes them. */
export interface Artifact {
  model: string;
  dimension: number;
  /** The word piece of the first row; those below it (special, unused) have none. */
  firstId: number;
  /** Word pieces; the position is the id. */
  vocabulary: string[];
  unicode: CodePoints;
  /** The rows' factors: value = scale × int8. */
  scales: Float32Array;
  /** Pairs of neighbouring word pieces that have a row of their own, two ids each. */
  pairs: Uint16Array;
  rows: Int8Array;
}

/** What the reference tokenizer does with each code point; those in no run are letters. */
export interface CodePoints {
  runs: [first: number, last: number, kind: number][];
  mapped: Record<string, string>;
}

export async function readArtifact(file: URL): Promise<Artifact> {
  const bytes = await readFile(file);
  const headerEnd = 4 + bytes.readUInt32LE(0);
  const header = JSON.parse(bytes.toString("utf8", 4, headerEnd));
  if (header.format !== 1) throw new Error(`Cannot read ${file}: format ${header.format}, expected 1`);

  let at = headerEnd;
  const section = (name: string) => bytes.subarray(at, at += header.sections[name]);
  const vocabulary = section("vocabulary").toString("utf8").split("\n");
  const unicode = JSON.parse(section("unicode").toString("utf8"));
  const scales = littleEndian(section("scales"), 4, (view, i) => view.getFloat32(i, true), Float32Array);
  const pairs = littleEndian(section("pairs"), 2, (view, i) => view.getUint16(i, true), Uint16Array);
  const rows = section("rows");
  if (at !== bytes.length) throw new Error(`Cannot read ${file}: ${bytes.length} bytes found, ${at} expected`);
  return {
    model: header.model,
    dimension: header.dimension,
    firstId: header.firstId,
    vocabulary,
    unicode,
    scales,
    pairs,
    rows: new Int8Array(rows.buffer, rows.byteOffset, rows.length),
  };
}

/** Copies numbers out of the file: sections start at any byte, typed arrays do not. */
function littleEndian<T extends Float32Array | Uint16Array>(
  bytes: Uint8Array,
  width: number,
  read: (view: DataView, offset: number) => number,
  kind: new (length: number) => T,
): T {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const numbers = new kind(bytes.length / width);
  for (let i = 0; i < numbers.length; i++) numbers[i] = read(view, i * width);
  return numbers;
}
