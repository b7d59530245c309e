import { createHash } from "node:crypto";
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";
import { gunzipSync } from "node:zlib";
import fc from "fast-check";
import { beforeAll, describe, expect, test } from "vitest";
import { readArtifact } from "../../services/memory/embed/builtin/artifact.ts";
import { wordPieces } from "../../services/memory/embed/builtin/word-pieces.ts";
import { loadBuiltin } from "../../services/memory/embed/builtin.ts";
import type { Embedder } from "../../services/memory/embed/embedder.ts";

const embed = new URL("../../services/memory/embed/", import.meta.url);
const fixtures = new URL("./fixtures/embedder/", import.meta.url);
const cosine = (a: Float32Array, b: Float32Array) => a.reduce((sum, x, d) => sum + x * b[d]!, 0);

let builtin: Embedder;
beforeAll(async () => {
  builtin = await loadBuiltin();
});

describe("the tokenizer", () => {
  test("gives the reference's ids on every generated line: Unicode, CJK, emoji, code, addresses", async () => {
    const tokenize = wordPieces(await readArtifact(new URL("builtin/model.bin", embed)));
    const lines = gunzipSync(readFileSync(new URL("parity.jsonl.gz", fixtures))).toString("utf8").trim().split("\n");
    const wrong: unknown[] = [];
    for (const line of lines) {
      const [text, ids] = JSON.parse(line);
      const pieces = tokenize(text);
      if (pieces.ids.subarray(0, pieces.count).join() !== ids.join()) wrong.push(text);
    }
    expect(lines.length).toBeGreaterThan(9_000);
    expect(wrong).toEqual([]);
  });

  test("takes any string, lone surrogates too", async () => {
    const tokenize = wordPieces(await readArtifact(new URL("builtin/model.bin", embed)));
    fc.assert(fc.property(fc.string({ unit: fc.integer({ min: 0, max: 0xffff }).map(String.fromCharCode) }), (text) => {
      const { ids, count } = tokenize(text);
      expect(ids.subarray(0, count).every((id) => id >= 0 && id < 30_522)).toBe(true);
    }));
  });
});

describe("the builtin embedder", () => {
  test("is the artifact its model card describes, and no larger than 12 MB", async () => {
    const bytes = await readFile(new URL("builtin/model.bin", embed));
    const card = await readFile(new URL("builtin/MODEL.md", embed), "utf8");
    expect(bytes.length).toBeLessThanOrEqual(12_000_000);
    expect(card).toContain(createHash("sha256").update(bytes).digest("hex"));
    expect(card).toContain(builtin.model);
  });

  test("gives vectors of length 1 for every text, the empty and the unknown too", async () => {
    const texts = ["", " ", "\u0000", "a".repeat(101), "one", "Where did Ana move to?", "日本語", "👍🏽", "ᚠᚢᚦ"];
    for (const vector of await builtin.embed(texts)) {
      expect(vector.length).toBe(builtin.dimension);
      expect(cosine(vector, vector)).toBeCloseTo(1, 5);
    }
  });

  test("gives each text its own vector, whatever stands beside it in the batch", async () => {
    const texts = ["the cat sat on the mat", "", "a much longer text ".repeat(400), "the cat sat on the mat"];
    const together = await builtin.embed(texts);
    for (const [i, text] of texts.entries()) expect((await builtin.embed([text]))[0]).toEqual(together[i]);
  });

  test.each([
    ["She works as a nurse at the city hospital.", "What is her job?", "What colour is the car?"],
    ["We had dinner at an Italian restaurant on Friday.", "Where did they eat?", "Which laptop should I buy?"],
    ["The build fails because the disk is full.", "no space left on the drive", "The weather was lovely in May."],
    ["My brother is allergic to peanuts.", "food allergies in the family", "train timetable to Berlin"],
  ])("puts “%s” nearer to “%s” than to “%s”", async (text, near, far) => {
    const [a, b, c] = await builtin.embed([text, near, far]);
    expect(cosine(a!, b!)).toBeGreaterThan(cosine(a!, c!) + 0.1);
  });

  test("gives the same bits as it gave where the model was made, on this engine and on Deno", async () => {
    const { texts, digest } = JSON.parse(await readFile(new URL("vectors.json", fixtures), "utf8"));
    expect(digestOf(await builtin.embed(texts))).toBe(digest);
    const deno = fileURLToPath(new URL("../../node_modules/.bin/deno", import.meta.url));
    const said = execFileSync(deno, ["run", "-A", fileURLToPath(new URL("digest.ts", fixtures))], { encoding: "utf8" });
    expect(said.trim()).toBe(digest);
  });

  test("a batch of long texts leaves turns to others and heeds its signal", async () => {
    const long = "word piece ".repeat(3_000).slice(0, 32_768);
    let turns = 0;
    const timer = setInterval(() => turns++, 1);
    await builtin.embed(Array.from({ length: 100 }, () => long));
    clearInterval(timer);
    expect(turns).toBeGreaterThan(10);

    const stop = new AbortController();
    const work = builtin.embed(Array.from({ length: 100_000 }, () => long), stop.signal);
    setTimeout(() => stop.abort(new Error("enough")), 5);
    await expect(work).rejects.toThrow("enough");
  });

  // Thirty times what a memory may hold: what costs the square of a text's length would not end within the test's time.
  const MANY = 1_000_000;
  test.each([
    ["letters without a space", "a"],
    ["one character a word", "日"],
    ["only marks", "\u0301"],
    ["words that must be split", "zyxwvut".repeat(14).concat(" ")],
    ["brackets", "["],
    ["almost special", "[CLS"],
  ])("a text of a million characters is read to its end: %s", async (_, part) => {
    const [vector] = await builtin.embed([part.repeat(MANY / part.length)]);
    expect(vector!.every(Number.isFinite)).toBe(true);
  });
});

function digestOf(vectors: Float32Array[]): string {
  const hash = createHash("sha256");
  for (const vector of vectors) hash.update(new Uint8Array(vector.buffer));
  return hash.digest("hex");
}
