"""Transformer-XL: attention that also sees the window before, by relative distances, and a softmax in clusters.

The states of the window before are taken to be zeros, which cost what others do. The softmax asks a first cluster about
every token, and the rare clusters about the tokens that fall into them; here, so that a step does not depend on the
words, each rare cluster is asked about a fixed share of each window.

Source:
    Dai et al., "Transformer-XL", ACL 2019; sizes, windows and clusters as NVIDIA/DeepLearningExamples,
    PyTorch/LanguageModeling/Transformer-XL/pytorch/wt103_base.yaml and wt103_large.yaml (192 million parameters for the
    base one, as its README says). The shares are assumed.
"""

import math
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional

from trimaran.networks.sizes import TransformerSize

CUTOFFS = (19_997, 39_997, 199_997)
"""Where the clusters of the words end that are rarer than the first; the last one ends with the vocabulary."""

DIVISORS = {512: 1, 1024: 4}
"""How much shorter a cluster's vectors are than those of the one before, by the width of the published networks."""

_SHARES = (0.04, 0.04, 0.01)
_LONGEST = 10_000.0
_DEVIATION = 0.02


class RelativeAttention(nn.Module):
    """Attention of each token to those before it, in this window and in the one before.

    Args:
        size: of the network
    """

    def __init__(self, size: TransformerSize) -> None:
        super().__init__()
        self.heads, self.head_size = size.heads, size.head_size
        self.inner = nn.Linear(size.width, 3 * size.width, bias=False)
        self.places = nn.Linear(size.width, size.width, bias=False)
        self.outer = nn.Linear(size.width, size.width, bias=False)

    def forward(
        self,
        states: torch.Tensor,
        memory: torch.Tensor,
        waves: torch.Tensor,
        of_word: nn.Parameter,
        of_place: nn.Parameter,
    ) -> torch.Tensor:
        """States [batch, length, width].

        Args:
            states: of this window
            memory: states of the window before [batch, memory, width]
            waves: one for each distance [memory + length, width]
            of_word: what every query adds against words [heads, head]
            of_place: what every query adds against distances [heads, head]

        Returns:
            States of the same shape.
        """
        batch, length, width = states.shape
        query, key, value = self.inner(torch.cat([memory, states], dim=1)).split(width, dim=2)
        query = self._split(query[:, -length:])
        by_word = (query + of_word.unsqueeze(1)) @ self._split(key).transpose(2, 3)
        distances = self._split(self.places(waves).unsqueeze(0))
        by_place = _shifted((query + of_place.unsqueeze(1)) @ distances.transpose(2, 3))
        ahead = torch.ones(length, key.shape[1], dtype=torch.bool, device=states.device).triu(1 + memory.shape[1])
        scores = ((by_word + by_place) / math.sqrt(self.head_size)).masked_fill(ahead, -math.inf)
        mixed = scores.softmax(dim=-1) @ self._split(value)
        found: torch.Tensor = self.outer(mixed.transpose(1, 2).reshape(batch, length, width))
        return found

    def _split(self, states: torch.Tensor) -> torch.Tensor:
        return states.view(*states.shape[:2], self.heads, self.head_size).transpose(1, 2)


def _shifted(scores: torch.Tensor) -> torch.Tensor:
    """Scores by distance [batch, heads, queries, distances] moved so that the columns are keys."""
    batch, heads, queries, keys = scores.shape
    rows = functional.pad(scores, (1, 0)).view(batch, heads, keys + 1, queries)
    return rows[:, :, 1:].reshape(batch, heads, queries, keys)


class TransformerXlBlock(nn.Module):
    """Attention, then two dense layers; a norm behind each sum.

    Args:
        size: of the network
        dropout: probability
    """

    def __init__(self, size: TransformerSize, dropout: float) -> None:
        super().__init__()
        self.attention = RelativeAttention(size)
        self.norm1 = nn.LayerNorm(size.width)
        self.dense = nn.Sequential(
            nn.Linear(size.width, size.dense), nn.ReLU(), nn.Dropout(dropout), nn.Linear(size.dense, size.width)
        )
        self.norm2 = nn.LayerNorm(size.width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, states: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        """States [batch, length, width] and the other inputs of the attention, to states of the same shape."""
        states = self.norm1(states + self.dropout(self.attention(states, *others)))
        result: torch.Tensor = self.norm2(states + self.dropout(self.dense(states)))
        return result


class TransformerXl(nn.Module):
    """Embeddings in clusters, blocks, and the scores of the next word in the same clusters.

    Args:
        size: of the network; the window before is as long as its positions
        divisor: each cluster's vectors are this many times shorter than those of the cluster before
        dropout: probability
        cutoffs: where the clusters end, but the last one

    Example:
        >>> size = TransformerSize(width=32, layers=2, heads=4, dense=64, vocabulary=90, positions=8)
        >>> scores = TransformerXl(size, divisor=2, cutoffs=(20, 40, 60))(torch.zeros(2, 12, dtype=torch.long))
        >>> [part.shape[1:] for part in scores]
        [torch.Size([12, 23]), torch.Size([1, 20]), torch.Size([1, 20]), torch.Size([1, 30])]
    """

    def __init__(
        self,
        size: TransformerSize,
        *,
        divisor: int = 1,
        dropout: float = 0.1,
        cutoffs: tuple[int, int, int] = CUTOFFS,
    ) -> None:
        super().__init__()
        self.size = size
        self._ends = (*cutoffs, size.vocabulary)
        starts = (0, *cutoffs)
        self.words = nn.ParameterList()
        self.biases = nn.ParameterList()
        self.projections = nn.ParameterList()
        for number, (start, end) in enumerate(zip(starts, self._ends, strict=True)):
            width = size.width // divisor**number
            self.words.append(nn.Parameter(torch.empty(end - start, width)))
            self.biases.append(nn.Parameter(torch.zeros(end - start)))
            if divisor > 1:
                self.projections.append(nn.Parameter(torch.empty(size.width, width)))
        self.clusters = nn.Linear(size.width, len(cutoffs))
        self.of_word = nn.Parameter(torch.zeros(size.heads, size.head_size))
        self.of_place = nn.Parameter(torch.zeros(size.heads, size.head_size))
        self.blocks = nn.ModuleList(TransformerXlBlock(size, dropout) for _ in range(size.layers))
        self.dropout = nn.Dropout(dropout)
        for weight in (*self.words, *self.projections):
            nn.init.normal_(weight, std=_DEVIATION)

    def forward(self, tokens: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Scores of the word after each one, or of the cluster that it is in.

        Args:
            tokens: indices in the vocabulary [batch, length]

        Returns:
            Scores of the first cluster's words and of the other clusters [batch, length, …], then of each other
            cluster's words for its share of the window.
        """
        states = self.dropout(self._embed(tokens))
        batch, length, width = states.shape
        memory = states.new_zeros(batch, self.size.positions, width)
        waves = self.dropout(self._waves(length + self.size.positions, states))
        for block in self.blocks:
            states = block(states, memory, waves, self.of_word, self.of_place)
        return tuple(self._scores(self.dropout(states)))

    def _embed(self, tokens: torch.Tensor) -> torch.Tensor:
        # Every cluster is looked up for every token, and all but one of the vectors are zeros.
        total = torch.zeros((), device=tokens.device)
        start = 0
        for number, end in enumerate(self._ends):
            inside = ((tokens >= start) & (tokens < end)).unsqueeze(-1)
            found = functional.embedding((tokens - start).clamp(0, end - start - 1), self.words[number])
            if len(self.projections):
                found = functional.linear(found, self.projections[number])
            total = total + found * inside
            start = end
        return total * math.sqrt(self.size.width)

    def _waves(self, distances: int, like: torch.Tensor) -> torch.Tensor:
        rates = torch.arange(0, self.size.width, 2, device=like.device) * (-math.log(_LONGEST) / self.size.width)
        angles = torch.arange(distances - 1, -1, -1, device=like.device).unsqueeze(1) * rates.exp()
        return torch.cat([angles.sin(), angles.cos()], dim=1).to(like.dtype)

    def _scores(self, states: torch.Tensor) -> Iterator[torch.Tensor]:
        for number, (words, bias) in enumerate(zip(self.words, self.biases, strict=True)):
            asked = states
            if number:
                asked = states[:, : math.ceil(_SHARES[number - 1] * states.shape[1])]
            if len(self.projections):
                asked = asked @ self.projections[number]
            scores = functional.linear(asked, words, bias)
            yield scores if number else torch.cat([scores, self.clusters(states)], dim=-1)
