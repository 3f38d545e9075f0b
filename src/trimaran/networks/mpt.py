"""MPT: a GPT without biases, whose attention is told distances by a slope for each head (ALiBi).

Source:
    mosaicml/llm-foundry, llmfoundry/models/mpt; Press, Smith, Lewis, "Train Short, Test Long", ICLR 2022 (the slopes,
    evenly spaced here also where the heads are no power of two).
"""

import torch
from torch import nn
from torch.nn import functional

from trimaran.networks.transformer_sizes import TransformerSize

_STEEPEST = 8  # the slopes of the heads are even powers of two from 2**(-8 / heads) down to 2**-8
_DEVIATION = 0.02


class MptBlock(nn.Module):
    """Attention, then two dense layers; each is added to what came in.

    Args:
        size: of the network
    """

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        self.heads = size.heads
        self.norm1 = nn.LayerNorm(size.width, bias=False)
        self.inner = nn.Linear(size.width, 3 * size.width, bias=False)
        self.outer = nn.Linear(size.width, size.width, bias=False)
        self.norm2 = nn.LayerNorm(size.width, bias=False)
        self.up_proj = nn.Linear(size.width, size.dense, bias=False)
        self.down_proj = nn.Linear(size.dense, size.width, bias=False)

    def forward(self, states: torch.Tensor, distances: torch.Tensor) -> torch.Tensor:
        """States [batch, length, width] and what is added to the scores [1, heads, length, length] to states."""
        states = states + self._attend(self.norm1(states), distances)
        result: torch.Tensor = states + self.down_proj(functional.gelu(self.up_proj(self.norm2(states))))
        return result

    def _attend(self, states: torch.Tensor, distances: torch.Tensor) -> torch.Tensor:
        batch, length, width = states.shape
        query, key, value = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.inner(states).split(width, dim=2)
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=distances.to(query.dtype))
        found: torch.Tensor = self.outer(mixed.transpose(1, 2).reshape(batch, length, width))
        return found


class Mpt(nn.Module):
    """An embedding, blocks, and the scores of the next token by the same matrix.

    Args:
        size: of the network

    Example:
        >>> size = TransformerSize(width=32, layers=2, heads=4, dense=128, vocabulary=50, positions=16)
        >>> Mpt(size)(torch.zeros(2, 12, dtype=torch.long)).shape
        torch.Size([2, 12, 50])
    """

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        self.heads = size.heads
        self.wte = nn.Embedding(size.vocabulary, size.width)
        self.blocks = nn.ModuleList(MptBlock(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width, bias=False)
        self.lm_head = nn.Linear(size.width, size.vocabulary, bias=False)
        self.lm_head.weight = self.wte.weight
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
        distances = self._distances(tokens)
        states = self.wte(tokens)
        for block in self.blocks:
            states = block(states, distances)
        scores: torch.Tensor = self.lm_head(self.norm(states))
        return scores

    def _distances(self, tokens: torch.Tensor) -> torch.Tensor:
        """What each head adds to the score of a pair of tokens: less the farther back, nothing can be seen ahead."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        behind = places.unsqueeze(0) - places.unsqueeze(1)
        heads = torch.arange(1, self.heads + 1, device=tokens.device).view(1, -1, 1, 1)
        slopes = torch.exp2(-_STEEPEST * heads / self.heads)
        return torch.where(behind > 0, -torch.inf, slopes * behind)
