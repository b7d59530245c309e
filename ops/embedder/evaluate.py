"""STS-B Spearman and nDCG@10 on BEIR-style folders."""

import json, math
from pathlib import Path

import numpy as np


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
        if int(s) > 0:
            qrels.setdefault(q, {})[d] = int(s)
    return corpus, queries, qrels


def ndcg(scores: np.ndarray, corpus, queries, qrels, k: int = 10) -> float:
    """A query with a group is asked of that group's documents only: of one conversation among many."""
    members: dict[str, list[int]] = {}
    for i, document in enumerate(corpus):
        members.setdefault(document.get("group", ""), []).append(i)
    values = []
    for row, query in enumerate(queries):
        wanted = qrels.get(query["_id"])
        if not wanted:
            continue
        own = np.array(members[query.get("group", "")])
        top = own[np.argsort(-scores[row][own], kind="stable")[:k]]
        gain = sum(wanted.get(corpus[d]["_id"], 0) / math.log2(i + 2) for i, d in enumerate(top))
        best = sum(s / math.log2(i + 2) for i, s in enumerate(sorted(wanted.values(), reverse=True)[:k]))
        values.append(gain / best)
    return float(np.mean(values))
