"""Llama: rotary positions, root-mean-square norms, gated dense layers, fewer heads of keys and values, no biases.

Its parameters are those of Hugging Face's `LlamaForCausalLM`: 6,738,415,616 for 7 B of Llama 2, 8,030,261,248 for 8 B
of Llama 3. The larger ones are for meta tensors: made under `with torch.device("meta")`, they take no memory.

Source:
    Touvron et al., arXiv:2302.13971 and arXiv:2307.09288, 2023; Grattafiori et al., arXiv:2407.21783, 2024.
"""

import torch
from torch import nn
from torch.nn import functional

from trimaran.networks.sizes import TransformerSize

_EPSILON = 1e-5
_BASE = 10_000.0  # of the wave lengths of the rotations; Llama 3 has a longer one, at the same cost of a step
_DEVIATION = 0.02


class LlamaAttention(nn.Module):
    """Attention of each token to itself and those before it; a head of keys and values serves several of queries.

    Args:
        size: of the network
    """

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        self.head_size = size.head_size
        shared = size.groups * size.head_size
        self.q_proj = nn.Linear(size.width, size.width, bias=False)
        self.k_proj = nn.Linear(size.width, shared, bias=False)
        self.v_proj = nn.Linear(size.width, shared, bias=False)
        self.o_proj = nn.Linear(size.width, size.width, bias=False)

    def forward(self, states: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
        """States [batch, length, width], rotations [length, head] to states of the same shape."""
        query, key = (
            _rotated(self._split(part), cosines, sines) for part in (self.q_proj(states), self.k_proj(states))
        )
        value = self._split(self.v_proj(states))
        mixed = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=key.shape[1] != query.shape[1]
        )
        found: torch.Tensor = self.o_proj(mixed.transpose(1, 2).reshape(states.shape))
        return found

    def _split(self, states: torch.Tensor) -> torch.Tensor:
        batch, length, width = states.shape
        return states.view(batch, length, width // self.head_size, self.head_size).transpose(1, 2)


def _rotated(heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """Each half of a head [batch, heads, length, size] turned against the other."""
    low, high = heads.chunk(2, dim=-1)
    turned = torch.cat([-high, low], dim=-1)
    return heads * cosines.to(heads.dtype) + turned * sines.to(heads.dtype)


class LlamaBlock(nn.Module):
    """Attention, then a gated dense layer; each is added to what came in.

    Args:
        size: of the network
    """

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        self.norm1 = nn.RMSNorm(size.width, eps=_EPSILON)
        self.attention = LlamaAttention(size)
        self.norm2 = nn.RMSNorm(size.width, eps=_EPSILON)
        self.gate_proj = nn.Linear(size.width, size.dense, bias=False)
        self.up_proj = nn.Linear(size.width, size.dense, bias=False)
        self.down_proj = nn.Linear(size.dense, size.width, bias=False)

    def forward(self, states: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
        """States [batch, length, width], rotations [length, head] to states of the same shape."""
        states = states + self.attention(self.norm1(states), cosines, sines)
        seen = self.norm2(states)
        result: torch.Tensor = states + self.down_proj(functional.silu(self.gate_proj(seen)) * self.up_proj(seen))
        return result


class Llama(nn.Module):
    """An embedding, blocks, and the scores of the next token.

    Args:
        size: of the network

    Example:
        >>> size = TransformerSize(
        ...     width=32, layers=2, heads=4, kv_heads=2, dense=48, vocabulary=50, positions=16, tied=False
        ... )
        >>> Llama(size)(torch.zeros(2, 12, dtype=torch.long)).shape
        torch.Size([2, 12, 50])
    """

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(size.vocabulary, size.width)
        self.blocks = nn.ModuleList(LlamaBlock(size) for _ in range(size.layers))
        self.norm = nn.RMSNorm(size.width, eps=_EPSILON)
        self.lm_head = nn.Linear(size.width, size.vocabulary, bias=False)
        if size.tied:
            self.lm_head.weight = self.embed_tokens.weight
        self._head_size = size.head_size
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=_DEVIATION)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores of the token after each one.

        Args:
            tokens: indices in the vocabulary [batch, length]

        Returns:
            Scores [batch, length, vocabulary].
        """
        cosines, sines = self._rotations(tokens)
        states = self.embed_tokens(tokens)
        for block in self.blocks:
            states = block(states, cosines, sines)
        scores: torch.Tensor = self.lm_head(self.norm(states))
        return scores

    def _rotations(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        steps = torch.arange(0, self._head_size, 2, device=tokens.device) / self._head_size
        angles = torch.arange(tokens.shape[1], device=tokens.device).unsqueeze(1) * _BASE**-steps
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos(), angles.sin()
