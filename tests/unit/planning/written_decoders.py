"""Decoders as modules of PyTorch usually write them: one operation a kernel, norms of Llama in 32 bits."""

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from trimaran import Job

LENGTH = 512


@dataclasses.dataclass(frozen=True)
class Written:
    """A decoder, and the same as a configuration of transformers."""

    model_type: str
    width: int = 1024
    inner: int = 4096
    layers: int = 4
    heads: int = 16
    kv_heads: int = 16
    words: int = 16384
    head_norm: bool = False

    @property
    def configuration(self) -> dict[str, Any]:
        names = {"hidden_size": self.width, "num_hidden_layers": self.layers, "num_attention_heads": self.heads}
        if self.model_type == "gpt2":
            names = {"n_embd": self.width, "n_layer": self.layers, "n_head": self.heads, "n_positions": LENGTH}
            return names | {"model_type": "gpt2", "vocab_size": self.words, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
        values: dict[str, Any] = {"intermediate_size": self.inner, "num_key_value_heads": self.kv_heads}
        values |= {"model_type": self.model_type, "vocab_size": self.words, "tie_word_embeddings": False}
        return names | values | {"max_position_embeddings": LENGTH, "head_dim": self.width // self.heads}


class WideNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, states: Tensor) -> Tensor:
        wide = states.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        return self.weight * wide.to(states.dtype)


def _rotated(heads: Tensor, angles: Tensor) -> Tensor:
    low, high = heads.chunk(2, dim=-1)
    return heads * angles.cos() + torch.cat((-high, low), dim=-1) * angles.sin()


def _gelu(states: Tensor) -> Tensor:
    return 0.5 * states * (1.0 + torch.tanh(0.7978845608 * (states + 0.044715 * torch.pow(states, 3.0))))


class Block(nn.Module):
    def __init__(self, size: Written) -> None:
        super().__init__()
        self.size, head = size, size.width // size.heads
        self.gated = size.model_type != "gpt2"
        norm = WideNorm if self.gated else nn.LayerNorm
        self.norm1, self.norm2 = norm(size.width), norm(size.width)
        shared = size.kv_heads * head
        if self.gated:
            self.q, self.k, self.v = (nn.Linear(size.width, each, bias=False) for each in (size.width, shared, shared))
            self.gate, self.up = (nn.Linear(size.width, size.inner, bias=False) for _ in range(2))
        else:
            self.qkv, self.up = nn.Linear(size.width, 3 * size.width), nn.Linear(size.width, size.inner)
        self.head_norms = nn.ModuleList(WideNorm(head) for _ in range(2 * size.head_norm))
        self.out = nn.Linear(size.width, size.width, bias=not self.gated)
        self.down = nn.Linear(size.inner, size.width, bias=not self.gated)

    def forward(self, states: Tensor, angles: Tensor) -> Tensor:
        seen = self.norm1(states)
        parts = (self.q(seen), self.k(seen), self.v(seen)) if self.gated else self.qkv(seen).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (-1, self.size.width // self.size.heads)) for part in parts)
        if self.size.head_norm:
            query, key = self.head_norms[0](query), self.head_norms[1](key)
        query, key, value = query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)
        if self.gated:
            query, key = _rotated(query, angles), _rotated(key, angles)
        few = self.size.kv_heads != self.size.heads
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=few)
        states = states + self.out(mixed.transpose(1, 2).flatten(-2))
        seen = self.norm2(states)
        inner = functional.silu(self.gate(seen)) * self.up(seen) if self.gated else _gelu(self.up(seen))
        changed: Tensor = states + self.down(inner)
        return changed


class Decoder(nn.Module):
    def __init__(self, size: Written) -> None:
        super().__init__()
        self.size = size
        self.words = nn.Embedding(size.words, size.width)
        self.places = nn.Embedding(LENGTH, size.width) if size.model_type == "gpt2" else None
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = WideNorm(size.width) if size.model_type != "gpt2" else nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, size.words, bias=False)
        if size.model_type == "gpt2":
            self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        states, at = self.words(tokens), torch.arange(tokens.shape[1], device=tokens.device)
        if self.places is not None:
            states = states + self.places(at)
        angles = at[:, None].to(states.dtype) * torch.ones(self.size.width // self.size.heads, device=tokens.device)
        for block in self.blocks:
            states = block(states, angles.to(states.dtype))
        scores: Tensor = self.head(self.norm(states))
        return scores


SIZES = {
    "llama": Written("llama", inner=2816, kv_heads=4),
    "wide": Written("mistral", width=2048, inner=5632, layers=2, kv_heads=8),
    "head_norms": Written("qwen3", inner=3072, kv_heads=8, head_norm=True),
    "gpt2": Written("gpt2"),
}


def job(size: Written) -> Job:
    def loss(scores: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(scores.flatten(0, 1).float(), targets.flatten())

    tokens = torch.zeros(64, LENGTH, dtype=torch.long)
    return Job(
        precision="bf16",
        model=lambda: Decoder(size),
        dataset=lambda: TensorDataset(tokens, tokens),
        loss=loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-4),
        global_batch_size=64,
    )


def llama() -> Job:
    return job(SIZES["llama"])


def wide() -> Job:
    return job(SIZES["wide"])


def head_norms() -> Job:
    return job(SIZES["head_norms"])


def gpt2() -> Job:
    return job(SIZES["gpt2"])


def less(name: str) -> Written:
    """The same with a layer less."""
    return dataclasses.replace(SIZES[name], layers=SIZES[name].layers - 1)


def llama_less() -> Job:
    return job(less("llama"))


def head_norms_less() -> Job:
    return job(less("head_norms"))


def gpt2_less() -> Job:
    return job(less("gpt2"))
