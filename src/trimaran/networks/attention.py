"""Attention with several heads, of one row of tokens to another or to itself."""

import torch
from torch import nn
from torch.nn import functional


class MultiHeadAttention(nn.Module):
    """What each token finds among others; each of its four matrices is a layer of its own.

    Args:
        width: size of a token's state
        heads: number of heads, a divisor of the width
        dropout: probability that a weight of the attention is left out while it trains
        causal: whether a token sees only itself and those before it
        bias: whether the matrices have biases

    Source:
        Vaswani et al., "Attention Is All You Need", NeurIPS 2017, section 3.2.
    """

    def __init__(
        self, width: int, heads: int, dropout: float = 0.0, *, causal: bool = False, bias: bool = True
    ) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.causal = causal
        self.query = nn.Linear(width, width, bias=bias)
        self.key = nn.Linear(width, width, bias=bias)
        self.value = nn.Linear(width, width, bias=bias)
        self.outer = nn.Linear(width, width, bias=bias)

    def forward(self, asking: torch.Tensor, memory: torch.Tensor | None = None) -> torch.Tensor:
        """States [batch, queries, width] and, unless they ask each other, [batch, keys, width] to the first's shape."""
        known = asking if memory is None else memory
        mixed = functional.scaled_dot_product_attention(
            self._split(self.query(asking)),
            self._split(self.key(known)),
            self._split(self.value(known)),
            is_causal=self.causal,
            dropout_p=self.dropout if self.training else 0.0,
        )
        found: torch.Tensor = self.outer(mixed.transpose(1, 2).reshape(asking.shape))
        return found

    def _split(self, states: torch.Tensor) -> torch.Tensor:
        batch, length, width = states.shape
        return states.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
