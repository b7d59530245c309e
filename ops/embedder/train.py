"""Trains the table of token vectors whose sums point where the teacher's sentence vectors point.

A text's vector is the sum of the rows of its word pieces and of its known pairs of neighbouring pieces, scaled to
length 1. How much a token counts is the length of its row, so the weights need no table of their own.
"""

import argparse, json, lzma, random, time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

import evaluate
from teacher import Teacher, token_ids

SEED = 20261115
UNK = 100
VOCAB = 30522


@dataclass
class Config:
    name: str
    dimension: int = 256
    bits: int = 8
    pairs: int = 0
    epochs: int = 24
    batch: int = 8192
    rate: float = 3e-3
    cosine: float = 1.0
    matrix: float = 20.0
    ranking: float = 0.0
    temperature: float = 0.05
    token_dropout: float = 0.0
    quantise_from: float = 0.75
    local: float = 0.0
    block: int = 16
    pair_choice: str = "cohesion"
    norm_power: float = 0.85
    flatten: float = 0.25


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--teacher", type=Path, required=True)
    parser.add_argument("--evaluation", type=Path, help="folder with stsb/ and judged sets, for measuring only")
    parser.add_argument("--cache", type=Path, help="keeps the teacher's vectors between runs")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--config", action="append", default=[], help="JSON of Config; several are trained in turn")
    parser.add_argument("--until", type=float, default=1e9, help="start no further config after so many seconds")
    args = parser.parse_args()
    began = time.time()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    teacher = Teacher(args.teacher, device)
    data = Data.load(args.cache) if args.cache and (args.cache / "ids.npy").exists() else None
    if data is None:
        data = prepare(args.corpus, teacher)
        if args.cache:
            data.save(args.cache)
    say(began, f"{len(data.lengths)} texts, {len(data.flat)} tokens, vectors ready on {device}")
    tests = Tests(args.evaluation, teacher, data) if args.evaluation else None
    if tests:
        say(began, "teacher " + tests.report(tests.teacher_scores()))
    args.out.mkdir(parents=True, exist_ok=True)
    for text in args.config or ['{"name": "default"}']:
        if time.time() - began > args.until:
            say(began, f"no time for {text}")
            continue
        config = Config(**json.loads(text))
        started = time.time()
        table, pairs = train(config, data, teacher, device, lambda m: say(began, f"{config.name}: {m}"))
        say(began, f"{config.name} {json.dumps(asdict(config))} {time.time() - started:.0f} s")
        if tests:
            for power, flatten in sorted({(1.0, 0.0), (0.85, 0.0), (1.0, 0.25), (config.norm_power, config.flatten)}):
                done = finished(table, data, replace(config, norm_power=power, flatten=flatten))
                print(f"   {power:.2f} {flatten:.2f} " + tests.report(tests.student_scores(done, pairs)))
        q, scale = quantise(finished(table, data, config), config.bits)
        np.savez_compressed(
            args.out / f"{config.name}.npz",
            q=q.cpu().numpy().astype(np.int8),
            scale=scale.cpu().numpy().astype(np.float32),
            pairs=pairs,
            bits=config.bits,
        )


def say(began: float, message: str) -> None:
    print(f"[{time.time() - began:6.1f} s] {message}", flush=True)


# --- texts -----------------------------------------------------------------------------------------------------------


class Data:
    """Flat token ids with lengths, the teacher's vector of each text, and which texts are held out."""

    def __init__(self, flat, lengths, vectors, held):
        self.flat, self.lengths, self.vectors, self.held = flat, lengths, vectors, held
        self.starts = np.concatenate([[0], np.cumsum(lengths)])[:-1]

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("lengths", "held"):
            np.save(folder / f"{name}.npy", getattr(self, name))
        np.save(folder / "vectors.npy", self.vectors.cpu().numpy())
        np.save(folder / "ids.npy", self.flat)

    @staticmethod
    def load(folder: Path) -> "Data":
        get = lambda name: np.load(folder / f"{name}.npy")
        device = "cuda" if torch.cuda.is_available() else "cpu"
        return Data(get("ids"), get("lengths"), torch.from_numpy(get("vectors")).to(device), get("held"))


def prepare(path: Path, teacher: Teacher) -> Data:
    rng = random.Random(SEED)
    opener = lzma.open if path.suffix == ".xz" else open
    documents, weight = [], 1
    with opener(path, "rt", encoding="utf-8") as file:
        for block in file.read().strip().split("\n\n"):
            if block.startswith("\x01"):
                weight = int(block[1:].split(" ")[0])
            else:
                documents.append((block.split("\n"), weight))
    rng.shuffle(documents)
    cut = len(documents) // 100
    texts, held = [], []
    for number, (document, weight) in enumerate(documents):
        group = varied(document, weight, rng)
        texts.extend(group)
        held.extend([number < cut] * len(group))
    # Every vocabulary entry by itself, so that rows the corpus never meets are trained too.
    vocabulary = teacher.tokenizer.get_vocab()
    alone = sorted(t for t in vocabulary if not t.startswith(("##", "[")) and len(t) > 1)
    rng.shuffle(alone)
    texts.extend(alone)
    held.extend([False] * len(alone))
    ids = token_ids(teacher.tokenizer, texts)
    pieces = sorted(i for t, i in vocabulary.items() if t.startswith("##"))
    ids.extend(np.array([i], dtype=np.int32) for i in pieces)
    held.extend([False] * len(pieces))
    keep = [i for i, row in enumerate(ids) if len(row)]
    ids = [ids[i][:254] for i in keep]
    held = np.array([held[i] for i in keep])
    return Data(np.concatenate(ids), np.array([len(r) for r in ids]), teacher.encode(ids), held)


def varied(document: list[str], weight: int, rng: random.Random) -> list[str]:
    """A document's texts; some of them with words lost or exchanged, so that the teacher shows what each word is worth;
    short spans that look like queries; runs of them joined into passages."""
    out = []
    for at, text in enumerate(document):
        out.append(text)
        words = text.split(" ")
        for _ in range(weight):
            if len(words) >= 4 and rng.random() < 0.3:
                other = document[rng.randrange(len(document))].split(" ")
                changed = [w for w in words if rng.random() > 0.15]
                for _ in range(rng.randint(0, 2)):
                    if changed:
                        changed[rng.randrange(len(changed))] = rng.choice(other)
                out.append(" ".join(changed))
            if rng.random() < 0.3:
                size = rng.randint(1, 7)
                start = rng.randint(0, max(0, len(words) - size))
                span = " ".join(words[start : start + size])
                if any(c.isalpha() for c in span):
                    out.append(span)
        if at % 4 == 0 and at + 1 < len(document) and rng.random() < 0.5:
            out.append(" ".join(document[at : at + rng.randint(2, 7)]))
    return out


# --- pairs of neighbouring pieces ------------------------------------------------------------------------------------


def frequent_pairs(data: Data, count: int, choice: str) -> np.ndarray:
    if not count:
        return np.zeros(0, dtype=np.int64)
    flat = data.flat.astype(np.int64)
    keys = flat[:-1] * 32768 + flat[1:]
    inside = np.ones(len(keys), dtype=bool)
    inside[(data.starts[1:] - 1)] = False
    held = np.repeat(data.held, data.lengths)[:-1]
    found, counts = np.unique(keys[inside & ~held], return_counts=True)
    # Punctuation and brackets say little about their neighbours.
    words = (found // 32768 >= 1996) & (found % 32768 >= 1996) & (counts >= 20)
    found, counts = found[words], counts[words].astype(np.float64)
    if choice == "cohesion":
        # How much more often than chance: "of the" is frequent and means nothing, "new york" does.
        single = np.bincount(data.flat, minlength=VOCAB).astype(np.float64)
        chance = single[found // 32768] * single[found % 32768] / single.sum()
        counts = np.sqrt(counts) * np.log(np.maximum(counts / chance, 1.0))
    top = np.argsort(-counts, kind="stable")[:count]
    return np.sort(found[top])


def with_pairs(flat: np.ndarray, lengths: np.ndarray, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The feature ids of every text: its pieces, then its known pairs."""
    text = np.repeat(np.arange(len(lengths)), lengths)
    if not len(pairs):
        return flat.astype(np.int32), lengths
    keys = flat[:-1].astype(np.int64) * 32768 + flat[1:]
    at = np.searchsorted(pairs, keys)
    at[at == len(pairs)] = 0
    hit = (pairs[at] == keys) & (text[:-1] == text[1:])
    features = np.concatenate([flat.astype(np.int32), (VOCAB + at[hit]).astype(np.int32)])
    owner = np.concatenate([text, text[:-1][hit]])
    order = np.argsort(owner, kind="stable")
    return features[order], lengths + np.bincount(text[:-1][hit], minlength=len(lengths))


# --- training --------------------------------------------------------------------------------------------------------


def train(config: Config, data: Data, teacher: Teacher, device: str, log):
    torch.manual_seed(SEED)
    rng = np.random.default_rng(SEED)
    pairs = frequent_pairs(data, config.pairs, config.pair_choice)
    flat, lengths = with_pairs(data.flat, data.lengths, pairs)
    starts = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)])[:-1]).to(device)
    flat, lengths = torch.from_numpy(flat).to(device), torch.from_numpy(lengths).to(device)
    basis = principal(data, config.dimension)
    table = torch.nn.Parameter(start_table(config, data, teacher, basis, len(pairs), device))
    moments = torch.optim.Adam([table], lr=config.rate, betas=(0.9, 0.99))
    training = np.flatnonzero(~data.held)
    blocks = len(training) // config.block
    training = training[: blocks * config.block].reshape(blocks, config.block)
    per_step = config.batch // config.block
    steps = config.epochs * (blocks // per_step)
    step = 0
    for epoch in range(config.epochs):
        order = rng.permutation(blocks)
        total = 0.0
        for at in range(blocks // per_step):
            rows = torch.from_numpy(training[order[at * per_step : (at + 1) * per_step]].reshape(-1)).to(device)
            progress = step / steps
            moments.param_groups[0]["lr"] = config.rate * min(1, step / 200) * (0.5 + 0.5 * np.cos(np.pi * progress)) + 1e-6
            used = fake_quantised(table, config.bits) if progress >= config.quantise_from else table
            student = F.normalize(pooled(used, flat, starts[rows], lengths[rows], config.token_dropout), dim=-1)
            wanted = data.vectors[rows].float()
            loss = losses(student, wanted, wanted @ basis, config)
            moments.zero_grad(set_to_none=True)
            loss.backward()
            moments.step()
            step += 1
            if at % 50 == 0:
                total = float(loss.detach())
        log(f"epoch {epoch + 1} loss {total:.4f}")
    return table.detach(), pairs


def finished(table: torch.Tensor, data: Data, config: Config) -> torch.Tensor:
    """Evens out the weights of tokens and the spread of dimensions a little: the corpus is not the user's text."""
    norms = table.norm(dim=1, keepdim=True).clamp_min(1e-9)
    table = table * norms ** (config.norm_power - 1)
    spread = (data.vectors[::50].float() @ principal(data, config.dimension)).square().mean(0).sqrt()
    table = table * (spread / spread.mean()) ** -config.flatten
    return dequantised(*quantise(table, config.bits))


def losses(student, wanted, projected, config: Config):
    loss = config.cosine * (1 - (student * F.normalize(projected, dim=-1)).sum(-1)).mean()
    with torch.autocast(student.device.type, dtype=torch.bfloat16, enabled=False):
        if config.matrix or config.ranking:
            mine, theirs = student @ student.T, wanted @ wanted.T
        if config.matrix:
            loss = loss + config.matrix * F.mse_loss(mine, theirs)
        if config.local:
            groups = student.view(-1, config.block, student.shape[1])
            theirs_near = wanted.view(-1, config.block, wanted.shape[1])
            near = groups @ groups.transpose(1, 2) - theirs_near @ theirs_near.transpose(1, 2)
            loss = loss + config.local * near.square().mean()
        if config.ranking:
            hide = torch.eye(len(mine), device=mine.device, dtype=torch.bool)
            a = (mine / config.temperature).masked_fill(hide, -1e4).log_softmax(-1)
            b = (theirs / config.temperature).masked_fill(hide, -1e4).log_softmax(-1)
            loss = loss + config.ranking * F.kl_div(a, b, log_target=True, reduction="batchmean")
    return loss


def pooled(table, flat, starts, lengths, dropout: float = 0.0):
    ends = torch.cumsum(lengths, 0)
    offsets = ends - lengths
    index = torch.arange(int(ends[-1]), device=flat.device) + torch.repeat_interleave(starts - offsets, lengths)
    features = flat[index].long()
    if dropout:
        keep = (torch.rand(len(features), device=flat.device) >= dropout).float()
        return F.embedding_bag(features, table, offsets, mode="sum", per_sample_weights=keep)
    return F.embedding_bag(features, table, offsets, mode="sum")


def principal(data: Data, dimension: int) -> torch.Tensor:
    """Directions that keep most of the teacher's inner products (not centred: cosine is measured from the origin)."""
    sample = data.vectors[:: max(1, len(data.vectors) // 400_000)].float()
    _, vectors = torch.linalg.eigh(sample.T @ sample)
    return vectors.flip(1)[:, :dimension].contiguous()


def start_table(config, data, teacher, basis, pairs: int, device: str) -> torch.Tensor:
    alone = teacher.encode([np.array([i], dtype=np.int32) for i in range(VOCAB)]).float() @ basis
    counts = torch.from_numpy(np.bincount(data.flat, minlength=VOCAB)).to(device).float() + 1
    weight = 1e-3 / (1e-3 + counts / counts.sum())
    table = F.normalize(alone, dim=-1) * weight[:, None]
    table[:999], table[UNK] = 0, 0
    return torch.cat([table, torch.zeros(pairs, config.dimension, device=device)])


def quantise(table: torch.Tensor, bits: int):
    top = 2 ** (bits - 1) - 1
    scale = table.abs().amax(1, keepdim=True).clamp_min(1e-8) / top
    return (table / scale).round().clamp(-top, top), scale


def dequantised(q, scale):
    return q * scale


def fake_quantised(table, bits: int):
    with torch.no_grad():
        error = dequantised(*quantise(table, bits)) - table
    return table + error


# --- measuring -------------------------------------------------------------------------------------------------------


class Tests:
    def __init__(self, folder: Path, teacher: Teacher, data: Data):
        self.teacher = teacher
        self.sts = {}
        for part in ("dev", "test"):
            a, b, gold = evaluate.sts(folder / "stsb" / f"sts-{part}.csv")
            self.sts[part] = (token_ids(teacher.tokenizer, a), token_ids(teacher.tokenizer, b), gold)
        self.collections = {}
        for path in sorted(folder.glob("*/corpus.jsonl")):
            collection = evaluate.beir(path.parent)
            documents = token_ids(teacher.tokenizer, [f"{d.get('title', '')} {d['text']}" for d in collection[0]])
            queries = token_ids(teacher.tokenizer, [q["text"] for q in collection[1]])
            self.collections[path.parent.name] = (collection, documents, queries)
        rows = np.flatnonzero(data.held)[:20000]
        self.held = [data.flat[data.starts[r] : data.starts[r] + data.lengths[r]] for r in rows]
        self.held_near = nearest(data.vectors[torch.from_numpy(rows).to(data.vectors.device)].float())

    def scores(self, encode) -> dict:
        out = {}
        for part, (a, b, gold) in self.sts.items():
            out[part] = evaluate.spearman((encode(a) * encode(b)).sum(-1).cpu().numpy(), gold)
        for name, (collection, documents, queries) in self.collections.items():
            dense = (encode(queries) @ encode(documents).T).cpu().numpy()
            out[name] = evaluate.ndcg(dense, *collection)
        near = nearest(encode(self.held))
        out["near"] = float(np.mean([len(set(a) & set(b)) / 10 for a, b in zip(near.tolist(), self.held_near.tolist())]))
        return out

    def teacher_scores(self):
        return self.scores(lambda ids: self.teacher.encode(ids).float())

    def student_scores(self, table, pairs):
        def encode(ids):
            lengths = np.array([len(r) for r in ids])
            flat, lengths = with_pairs(np.concatenate(ids), lengths, pairs)
            starts = torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)])[:-1]).to(table.device)
            rows = pooled(table, torch.from_numpy(flat).to(table.device), starts, torch.from_numpy(lengths).to(table.device))
            return F.normalize(rows, dim=-1)

        return self.scores(encode)

    def report(self, s: dict) -> str:
        return " ".join(f"{k} {v:.4f}" for k, v in s.items())


def nearest(vectors: torch.Tensor) -> torch.Tensor:
    out = []
    for part in vectors.split(2000):
        out.append((part @ vectors.T).topk(11, dim=-1).indices[:, 1:])
    return torch.cat(out).cpu()


if __name__ == "__main__":
    torch.backends.cuda.matmul.allow_tf32 = True
    main()
