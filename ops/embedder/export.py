"""Writes what the TypeScript encoder reads: model.bin, its checksum, and the lines that prove the tokenizer.

model.bin, little endian:
  4 bytes   length of the header
  header    JSON: model, dimension, firstId, pairs, and the byte length of each section, in this order
  vocabulary  word pieces, one a line, the line number is the id
  unicode     JSON: what the reference tokenizer does with each code point (see code_points)
  scales      float32 a row
  pairs       two uint16 a pair of neighbouring word pieces, sorted
  rows        int8; first the pieces from firstId on, then the pairs
"""

import gzip, hashlib, json, random, struct
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

FIRST_ID = 999  # what lies below are special and unused entries
LETTER, ISOLATED, REMOVED, SPACE, MAPPED = range(5)


def artifact(weights: Path, teacher: Path, out: Path, name: str) -> None:
    from teacher import tokenizer

    data = np.load(weights)
    q, scale, pairs = data["q"], data["scale"].reshape(-1), data["pairs"]
    pieces = [t for t, _ in sorted(tokenizer(teacher).get_vocab().items(), key=lambda item: item[1])]
    rows = np.concatenate([q[FIRST_ID : len(pieces)], q[len(pieces) :]]).astype(np.int8)
    scales = np.concatenate([scale[FIRST_ID : len(pieces)], scale[len(pieces) :]]).astype("<f4")
    both = np.stack([pairs // 32768, pairs % 32768], 1).astype("<u2")
    sections = {
        "vocabulary": "\n".join(pieces).encode(),
        "unicode": json.dumps(code_points(tokenizer(teacher)), ensure_ascii=True, separators=(",", ":")).encode(),
        "scales": scales.tobytes(),
        "pairs": both.tobytes(),
        "rows": rows.tobytes(),
    }
    header = {
        "format": 1,
        "model": name,
        "dimension": int(q.shape[1]),
        "firstId": FIRST_ID,
        "sections": {k: len(v) for k, v in sections.items()},
    }
    head = json.dumps(header).encode()
    content = struct.pack("<I", len(head)) + head + b"".join(sections.values())
    out.mkdir(parents=True, exist_ok=True)
    (out / "model.bin").write_bytes(content)
    print(f"model.bin {len(content)} bytes sha256 {hashlib.sha256(content).hexdigest()}")


def code_points(tok: Tokenizer) -> dict:
    """Runs [first, last, kind] of code points, and the replacement of each mapped one; spaces in it part words.

    Taken from the reference itself rather than from Unicode's tables: the reference has its own, older ones.
    """
    runs: list[list[int]] = []
    mapped: dict[str, str] = {}
    for cp in range(0x110000):
        kind = REMOVED
        if not 0xD800 <= cp <= 0xDFFF:
            char = chr(cp)
            text = tok.normalizer.normalize_str(char)
            parts = [w for w, _ in tok.pre_tokenizer.pre_tokenize_str(f"a{text}a")]
            if text == "":
                kind = REMOVED
            elif parts == ["a", "a"]:
                kind = SPACE
            elif parts == [f"a{char}a"]:
                kind = LETTER
            elif parts == ["a", char, "a"]:
                kind = ISOLATED
            elif 0xAC00 <= cp <= 0xD7A3:
                assert parts == [f"a{hangul(cp)}a"], cp
                kind = MAPPED  # by rule, see hangul
            else:
                kind = MAPPED
                glued = " ".join(parts)
                mapped[char] = glued[1:-1]
        if runs and runs[-1][2] == kind:
            runs[-1][1] = cp
        else:
            runs.append([cp, cp, kind])
    return {"runs": [r for r in runs if r[2] != LETTER], "mapped": mapped}


def hangul(cp: int) -> str:
    index = cp - 0xAC00
    out = chr(0x1100 + index // 588) + chr(0x1161 + index % 588 // 28)
    return out + chr(0x11A7 + index % 28) if index % 28 else out


def parity_lines(teacher: Path, out: Path) -> None:
    """Generated lines with the reference's ids, for the test of the TypeScript tokenizer."""
    from teacher import tokenizer

    tok = tokenizer(teacher)
    rng = random.Random(7)
    pieces = [t for t in tok.get_vocab() if not t.startswith("[")]
    pieces.sort()
    whole = [t for t in pieces if not t.startswith("##")]
    lines: list[str] = []
    # Every code point of the planes in use, between letters and alone.
    for first in (*range(0, 0xD800, 24), *range(0xE000, 0x10000, 96), *range(0x10000, 0x20000, 96), *range(0x20000, 0x32000, 512), *range(0xE0000, 0xE0200, 16)):
        step = 24 if first < 0xD800 else 12
        lines.append(" ".join(f"a{chr(cp)}B {chr(cp)}" for cp in range(first, min(first + step, 0x110000)) if not 0xD800 <= cp <= 0xDFFF))
    for _ in range(2500):
        words = [rng.choice(whole) for _ in range(rng.randint(1, 14))]
        words = [w.capitalize() if rng.random() < 0.3 else w.upper() if rng.random() < 0.1 else w for w in words]
        lines.append(rng.choice([" ", "  ", "\t", " \n", ", ", "-", "_", "/", "."]).join(words) + rng.choice(["", ".", "?!", "…", "。"]))
    for _ in range(1200):  # words the vocabulary must split
        lines.append(" ".join("".join(p.removeprefix("##") for p in rng.sample(pieces, rng.randint(2, 5))) for _ in range(4)))
    for _ in range(800):
        first = rng.choice([0x4E00, 0x3040, 0x30A0, 0xAC00, 0x0400, 0x0590, 0x0600, 0x0900, 0x0E00, 0x1100, 0x1E00, 0x2000, 0x2190, 0x1F300, 0x1F600, 0xFF00, 0x20000, 0x1D400])
        lines.append("".join(rng.choice([chr(first + rng.randrange(200)), rng.choice(whole), " ", chr(0x300 + rng.randrange(0x70))]) for _ in range(24)))
    faces = ["👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "❤️", "🇩🇪", "1️⃣", "🧑🏿‍🚀", "☃", "😀"]
    for _ in range(400):
        lines.append(" ".join(rng.choice(faces + whole[:4000]) for _ in range(8)) + "".join(rng.sample(faces, 3)))
    for _ in range(900):
        a, b, c = (rng.choice(whole) for _ in range(3))
        lines.append(rng.choice([
            f"https://{a}.example/{b}?{c}={rng.randrange(10**6)}&x=%20#{a}-{b}",
            f"{a}.{b}@{c}.org", f"const {a}{b.capitalize()} = await {b}({{ {c}: [{rng.random()}] }}); // {a}",
            f"def {a}_{b}(self, *{c}): return self._{a}[{rng.randrange(99)}:-1] != \"{b}\\n\"",
            f"SELECT {a}, count(*) FROM {b} WHERE {c} <> '{a}' -- {b}", f"<{a} class='{b}'>{c}&nbsp;</{a}>",
            f"/usr/{a}/{b}.{c}:{rng.randrange(999)}", f"{rng.randrange(10**9):,}.{rng.randrange(99)}€ {rng.randrange(40)}°C ±{rng.random():.4f}",
            f"[CLS] {a} [SEP] {b} [MASK][PAD] [UNK] [unused1] [cls] [MASK", f"{a}\u200b{b}\u00ad{c}\ufeff{a}\u0000{b}\ufffd{c}\u2028{a}\u0085{b}\x0b{c}\x7f",
        ]))
    lines.extend(["", " ", "a" * 100, "a" * 101, "é" * 100, "é" * 101, "😀" * 101, "İIıi ẞß ΣΑΣ ǅ ﬁ Å Ⅷ ½ K", "x" * 5000, "\u0301\u0302", "한국어 텍스트", "日本語テキスト", "naïve café résumé Ångström"])
    with gzip.GzipFile(out, "wb", mtime=0) as sink:
        for line in lines:
            ids = tok.encode(line, add_special_tokens=False).ids
            sink.write((json.dumps([line, ids], ensure_ascii=True, separators=(",", ":")) + "\n").encode())
    print(f"{len(lines)} lines, {out.stat().st_size} bytes")
