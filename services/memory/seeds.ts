/** Several ids from the one seed of a request, the same each time it is tried. */

const digits = "0123456789abcdefghjkmnpqrstvwxyz";

/** The seed counted on by `n`, so that ids of one request sort in its order. */
export function nthSeed(seed: string, n: number): string {
  const letters = [...seed];
  let carry = n;
  for (let i = letters.length - 1; i >= 0 && carry > 0; i--) {
    const sum = Math.max(0, digits.indexOf(letters[i]!)) + carry;
    letters[i] = digits[sum % 32]!;
    carry = Math.floor(sum / 32);
  }
  return letters.join("");
}
