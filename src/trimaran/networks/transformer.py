"""The Transformer: translation by an encoder and a decoder of attention.

The published form: sinusoids for the places, a norm behind each sum, and one matrix for the embeddings of both
languages and for the scores.

Source:
    Vaswani et al., "Attention Is All You Need", NeurIPS 2017, table 3: about 65 million parameters for the base, 213
    million for the big one, with a shared vocabulary of about 37,000 pieces.
"""

import math

import torch
from torch import nn
from torch.nn import functional

from trimaran.networks.sizes import TransformerSize

# ---------------------------------------------------------------------------------------------------------------------
# Attention with several heads, of one row of tokens to another or to itself


class MultiHeadAttention(nn.Module):
    """Attention of each token to others; each of its four matrices is a separate layer.

    Args:
        width: size of a token's state
        heads: number of heads, a divisor of the width
        dropout: probability that a weight of the attention is left out while it trains
        causal: whether a token sees only itself and those before it

    Source:
        Vaswani et al., "Attention Is All You Need", NeurIPS 2017, section 3.2.
    """

    def __init__(self, width: int, heads: int, dropout: float = 0.0, *, causal: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.causal = causal
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.outer = nn.Linear(width, width)

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


_LONGEST = 10_000.0  # the longest sinusoid has a period of 2π of these


class _Dense(nn.Module):
    def __init__(self, size: TransformerSize, dropout: float) -> None:
        super().__init__()
        self.inner = nn.Linear(size.width, size.dense)
        self.outer = nn.Linear(size.dense, size.width)
        self.dropout = dropout

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        made = functional.dropout(functional.relu(self.inner(states)), self.dropout, self.training)
        change: torch.Tensor = self.outer(made)
        return change


class EncoderLayer(nn.Module):
    """Attention of every token to every token, then two dense layers.

    Args:
        size: of the network
        dropout: probability
    """

    def __init__(self, size: TransformerSize, dropout: float) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(size.width, size.heads, dropout)
        self.norm1 = nn.LayerNorm(size.width)
        self.dense = _Dense(size, dropout)
        self.norm2 = nn.LayerNorm(size.width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """States [batch, length, width] to the same shape."""
        states = self.norm1(states + self.dropout(self.attention(states)))
        result: torch.Tensor = self.norm2(states + self.dropout(self.dense(states)))
        return result


class DecoderLayer(nn.Module):
    """Attention to the tokens before, attention to the encoder's states, then two dense layers.

    Args:
        size: of the network
        dropout: probability
    """

    def __init__(self, size: TransformerSize, dropout: float) -> None:
        super().__init__()
        self.own = MultiHeadAttention(size.width, size.heads, dropout, causal=True)
        self.norm1 = nn.LayerNorm(size.width)
        self.across = MultiHeadAttention(size.width, size.heads, dropout)
        self.norm2 = nn.LayerNorm(size.width)
        self.dense = _Dense(size, dropout)
        self.norm3 = nn.LayerNorm(size.width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, states: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        """States [batch, targets, width] and the encoder's [batch, sources, width] to the first's shape."""
        states = self.norm1(states + self.dropout(self.own(states)))
        states = self.norm2(states + self.dropout(self.across(states, memory)))
        result: torch.Tensor = self.norm3(states + self.dropout(self.dense(states)))
        return result


class Transformer(nn.Module):
    """The encoder, the decoder, and the scores of the next piece.

    Args:
        size: of the network
        dropout: probability

    Example:
        >>> size = TransformerSize(width=32, layers=2, heads=4, dense=64, vocabulary=50, positions=16)
        >>> source, target = torch.zeros(2, 7, dtype=torch.long), torch.zeros(2, 5, dtype=torch.long)
        >>> Transformer(size)(source, target).shape
        torch.Size([2, 5, 50])
    """

    waves: torch.Tensor

    def __init__(self, size: TransformerSize, *, dropout: float = 0.1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(size.vocabulary, size.width)
        self.register_buffer("waves", _sinusoids(size.positions, size.width), persistent=False)
        self.encoder = nn.ModuleList(EncoderLayer(size, dropout) for _ in range(size.layers))
        self.decoder = nn.ModuleList(DecoderLayer(size, dropout) for _ in range(size.layers))
        self.head = nn.Linear(size.width, size.vocabulary, bias=False)
        self.head.weight = self.embedding.weight
        self.dropout = nn.Dropout(dropout)
        self._scale = math.sqrt(size.width)
        nn.init.normal_(self.embedding.weight, std=1 / self._scale)

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Scores of the piece after each one of the target.

        Args:
            source: pieces to translate [batch, sources]
            target: pieces of the translation [batch, targets]

        Returns:
            Scores [batch, targets, vocabulary].
        """
        memory = self._embed(source)
        for layer in self.encoder:
            memory = layer(memory)
        states = self._embed(target)
        for layer in self.decoder:
            states = layer(states, memory)
        scores: torch.Tensor = self.head(states)
        return scores

    def _embed(self, tokens: torch.Tensor) -> torch.Tensor:
        states: torch.Tensor = self.dropout(self._scale * self.embedding(tokens) + self.waves[: tokens.shape[1]])
        return states


def _sinusoids(positions: int, width: int) -> torch.Tensor:
    """Sines, then cosines, of falling frequencies [positions, width]."""
    rates = torch.exp(torch.arange(0, width, 2) * (-math.log(_LONGEST) / width))
    angles = torch.arange(positions).unsqueeze(1) * rates
    return torch.cat([angles.sin(), angles.cos()], dim=1)
