"""A GPT of characters, GPT-2, GPT-3, Megatron's GPT and OPT: learned positions, norms first, the embedding as the head.

GPT-2 computes as the small model of characters does, with the dropout of the published one and its GELU by tanh. Its
parameters are those of Hugging Face's `GPT2LMHeadModel`: 124,439,808 for the small one, 354,823,168 for the
medium one. OPT has ReLU in place of GELU, and two positions that no token has: 125,239,296 for the smallest, as
`OPTForCausalLM`.

Source:
    Radford et al., "Language Models are Unsupervised Multitask Learners", 2019; Brown et al., arXiv:2005.14165, 2020;
    Shoeybi et al., arXiv:1909.08053, 2019; Zhang et al., arXiv:2205.01068, 2022.

MPT: a GPT without biases, whose attention knows distances by a slope for each head (ALiBi).

Source:
    mosaicml/llm-foundry, llmfoundry/models/mpt; Press, Smith, Lewis, "Train Short, Test Long", ICLR 2022 (the slopes,
    evenly spaced here also where the heads are no power of two).
"""

from typing import Literal

import torch
from torch import nn
from torch.nn import functional

from trimaran.networks.sizes import TransformerSize, find_size

GptFamily = Literal["gpt2", "gpt3", "gpt", "opt"]

VOCABULARY = 50257
LENGTH = 1024
_DEVIATION = 0.02
_UNUSED = 2  # rows of OPT's positions in front of that of the first token


class CausalAttention(nn.Module):
    """Attention of each token to itself and those before it.

    Args:
        width: size of a token's state
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


def _draw_weights(embedding: nn.Embedding, positions: nn.Parameter, blocks: nn.ModuleList) -> None:
    nn.init.normal_(positions, std=_DEVIATION)
    nn.init.normal_(embedding.weight, std=_DEVIATION)
    for module in blocks.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=_DEVIATION)
            nn.init.zeros_(module.bias)


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
        _draw_weights(self.embedding, self.position, self.blocks)

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


class Gpt2Block(nn.Module):
    """Attention, then two dense layers; each is dropped out and added to what came in.

    Args:
        width: size of a token's state
        heads: number of heads, a divisor of the width
        dropout: probability, of the attention's weights and behind the attention and the dense layers
        relu: ReLU in place of GELU
    """

    def __init__(self, width: int, heads: int, dropout: float, *, relu: bool = False) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = CausalAttention(width, heads, dropout)
        self.attn_dropout = nn.Dropout(dropout)
        self.ln_2 = nn.LayerNorm(width)
        activation = nn.ReLU() if relu else nn.GELU(approximate="tanh")
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), activation, nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """States [batch, length, width] to the same shape."""
        states = states + self.attn_dropout(self.attn(self.ln_1(states)))
        result: torch.Tensor = states + self.mlp(self.ln_2(states))
        return result


class Gpt2(nn.Module):
    """Embeddings of tokens and positions, blocks, and the scores of the next token.

    Args:
        width: size of a token's state
        heads: heads of each attention
        blocks: number of blocks
        vocabulary: number of different tokens
        length: most tokens of a window
        dropout: probability
        relu: ReLU in place of GELU

    Example:
        >>> Gpt2(width=32, heads=4, blocks=2, vocabulary=50, length=16)(torch.zeros(2, 12, dtype=torch.long)).shape
        torch.Size([2, 12, 50])
    """

    def __init__(
        self,
        width: int = 768,
        heads: int = 12,
        blocks: int = 12,
        *,
        vocabulary: int = VOCABULARY,
        length: int = LENGTH,
        dropout: float = 0.1,
        relu: bool = False,
    ) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width)
        self.wpe = nn.Parameter(torch.empty(length, width))
        self.drop = nn.Dropout(dropout)
        self.h = nn.ModuleList(Gpt2Block(width, heads, dropout, relu=relu) for _ in range(blocks))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.lm_head.weight = self.wte.weight
        _draw_weights(self.wte, self.wpe, self.h)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Scores of the token after each one.

        Args:
            tokens: indices in the vocabulary [batch, length]

        Returns:
            Scores [batch, length, vocabulary].
        """
        states = self.drop(self.wte(tokens) + self.wpe[: tokens.shape[1]])
        for block in self.h:
            states = block(states)
        scores: torch.Tensor = self.lm_head(self.ln_f(states))
        return scores


def gpt(family: GptFamily, size: str, *, length: int = 0, dropout: float = 0.1) -> Gpt2:
    """A network of this architecture, of a published size.

    Args:
        family: whose sizes, vocabulary and activation
        size: such as "1.3b"
        length: most tokens of a window; 0: that of its training
        dropout: probability

    Raises:
        InputError: no such size
    """
    figures = find_size(family, size)
    is_opt = family == "opt"
    return Gpt2(
        figures.width,
        figures.heads,
        figures.layers,
        vocabulary=figures.vocabulary,
        length=(length or figures.positions) + (_UNUSED if is_opt else 0),
        dropout=dropout,
        relu=is_opt,
    )


_STEEPEST = 8  # the slopes of the heads are even powers of two from 2**(-8 / heads) down to 2**-8


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
        """The term of each head for the score of a pair: smaller with distance, minus infinity for later tokens."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        behind = places.unsqueeze(0) - places.unsqueeze(1)
        heads = torch.arange(1, self.heads + 1, device=tokens.device).view(1, -1, 1, 1)
        slopes = torch.exp2(-_STEEPEST * heads / self.heads)
        return torch.where(behind > 0, -torch.inf, slopes * behind)
