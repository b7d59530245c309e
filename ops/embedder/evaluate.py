"""STS-B Spearman, nDCG@10 on a BEIR-style folder, and how much of the teacher's neighbourhood a student keeps."""

import json, math, re
from pathlib import Path

import numpy as np

K1, B, AVERAGE_LENGTH = 1.2, 0.75, 256


def sts(path: Path) -> tuple[list[str], list[str], np.ndarray]:
    rows = [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines() if line]
    return [r[5] for r in rows], [r[6] for r in rows], np.array([float(r[4]) for r in rows])


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.corrcoef(ranks(a), ranks(b))[0, 1])


def ranks(x: np.ndarray) -> np.ndarray:
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return ((ends - counts + ends - 1) / 2)[inverse]


def beir(path: Path):
    corpus = [json.loads(line) for line in (path / "corpus.jsonl").read_text().splitlines()]
    queries = [json.loads(line) for line in (path / "queries.jsonl").read_text().splitlines()]
    qrels: dict[str, dict[str, int]] = {}
    for line in (path / "qrels.tsv").read_text().splitlines()[1:]:
        q, d, s = line.split("\t")
        qrels.setdefault(q, {})[d] = int(s)
    return corpus, queries, qrels


def ndcg(scores: np.ndarray, corpus, queries, qrels, k: int = 10) -> float:
    ids = [d["_id"] for d in corpus]
    values = []
    for row, query in enumerate(queries):
        wanted = qrels.get(query["_id"])
        if not wanted:
            continue
        top = np.argsort(-scores[row], kind="stable")[:k]
        gain = sum(wanted.get(ids[d], 0) / math.log2(i + 2) for i, d in enumerate(top))
        best = sum(s / math.log2(i + 2) for i, s in enumerate(sorted(wanted.values(), reverse=True)[:k]))
        values.append(gain / best)
    return float(np.mean(values))


STOP = set(
    "a an and are as at be but by for from had has have he her his i if in into is it its my no not of on or our she so such "
    "that the their them then there these they this to was we were what when where which who will with you your".split()
)


def words(text: str) -> list[str]:
    return [w for w in re.findall(r"[a-z0-9]+", text.lower()) if w not in STOP]


def bm25(corpus, queries) -> np.ndarray:
    docs = [words(f"{d.get('title', '')} {d['text']}") for d in corpus]
    average = np.mean([len(d) for d in docs])
    postings: dict[str, dict[int, int]] = {}
    for i, doc in enumerate(docs):
        for w in doc:
            postings.setdefault(w, {})[i] = postings.get(w, {}).get(i, 0) + 1
    scores = np.zeros((len(queries), len(corpus)))
    for row, query in enumerate(queries):
        for w in words(query["text"]):
            found = postings.get(w, {})
            idf = math.log(1 + (len(docs) - len(found) + 0.5) / (len(found) + 0.5))
            for i, tf in found.items():
                scores[row, i] += idf * tf * (K1 + 1) / (tf + K1 * (1 - B + B * len(docs[i]) / average))
    return scores


def fused(lexical: np.ndarray, dense: np.ndarray, weight: float) -> np.ndarray:
    scale = lambda x: (x - x.min(1, keepdims=True)) / (x.max(1, keepdims=True) - x.min(1, keepdims=True) + 1e-9)
    return weight * scale(lexical) + (1 - weight) * scale(dense)
