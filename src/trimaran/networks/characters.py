"""A small transformer over characters, with one matrix for the first and the last layer.

Source:
    Radford et al., "Language Models are Unsupervised Multitask Learners", 2019 (GPT-2): learned positions, the norm
    before each sub-layer and after the last block, weights of standard deviation 0.02, and the embedding used again as
    the head.

A recurrent character model.

Every layer is a separate module, so that a pipeline can be split between them: one `nn.LSTM` of several layers is one
operation.
"""

import torch
from torch import nn
from torch.nn import functional

_DEVIATION = 0.02


class CausalAttention(nn.Module):
    """Attention of each character to itself and those before it.

    Args:
        width: size of a character's state
        heads: number of heads, a divisor of the width
        dropout: probability that a weight of the attention is left out while it trains
    """

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.inner = nn.Linear(width, 3 * width)
        self.outer = nn.Linear(width, width)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """States [batch, length, width] to the same shape."""
        batch, length, width = states.shape
        query, key, value = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.inner(states).split(width, dim=2)
        )
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True, dropout_p=dropout)
        result: torch.Tensor = self.outer(mixed.transpose(1, 2).reshape(batch, length, width))
        return result


class TransformerBlock(nn.Module):
    """Attention, then two dense layers; each is added to what came in.

    Args:
        width: size of a character's state
        heads: number of heads of the attention
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = CausalAttention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.dense = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """States [batch, length, width] to the same shape."""
        states = states + self.attention(self.norm1(states))
        result: torch.Tensor = states + self.dense(self.norm2(states))
        return result


class CharacterGpt(nn.Module):
    """Embeddings of characters and positions, transformer blocks, and the scores of the next character.

    Args:
        vocabulary: number of different characters
        length: most characters of a window
        width: size of a character's state
        heads: heads of each attention
        blocks: number of blocks

    Example:
        >>> CharacterGpt(vocabulary=50, length=16, width=32)(torch.zeros(2, 12, dtype=torch.long)).shape
        torch.Size([2, 12, 50])
    """

    def __init__(self, vocabulary: int, length: int, width: int = 128, heads: int = 4, blocks: int = 5) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.empty(length, width))
        self.blocks = nn.ModuleList(TransformerBlock(width, heads) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight
        self._draw_weights()

    def _draw_weights(self) -> None:
        nn.init.normal_(self.position, std=_DEVIATION)
        nn.init.normal_(self.embedding.weight, std=_DEVIATION)
        for module in self.blocks.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=_DEVIATION)
                nn.init.zeros_(module.bias)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        """Scores of the character after each one.

        Args:
            characters: indices in the vocabulary [batch, length]

        Returns:
            Scores [batch, length, vocabulary].
        """
        states = self.embedding(characters) + self.position[: characters.shape[1]]
        for block in self.blocks:
            states = block(states)
        scores: torch.Tensor = self.head(self.norm(states))
        return scores


class CharacterLstm(nn.Module):
    """An embedding, LSTM layers one after the other, and the scores of the next character.

    Args:
        vocabulary: number of different characters
        embedding: size of a character's vector
        width: size of the hidden state of each layer
        layers: number of layers

    Example:
        >>> CharacterLstm(vocabulary=50, width=32)(torch.zeros(2, 12, dtype=torch.long)).shape
        torch.Size([2, 12, 50])
    """

    def __init__(self, vocabulary: int, embedding: int = 64, width: int = 256, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.layers = nn.ModuleList(
            nn.LSTM(width if layer else embedding, width, batch_first=True) for layer in range(layers)
        )
        self.head = nn.Linear(width, vocabulary)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        """Scores of the character after each one.

        Args:
            characters: indices in the vocabulary [batch, length]

        Returns:
            Scores [batch, length, vocabulary].
        """
        states = self.embedding(characters)
        for layer in self.layers:
            states, _ = layer(states)
        scores: torch.Tensor = self.head(states)
        return scores
