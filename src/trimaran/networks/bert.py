"""BERT: an encoder that reads both ways, with the heads of its pre-training or with that of answering questions.

Its parameters are those of Hugging Face's `BertForPreTraining` (110,106,428 for the base, 336,226,108 for the large
one) and of `BertForQuestionAnswering` (108,893,186 and 334,094,338). All tokens of a window count: there is no padding,
and so no mask.

Source:
    Devlin, Chang, Lee, Toutanova, "BERT: Pre-training of Deep Bidirectional Transformers", NAACL 2019.
"""

import torch
from torch import nn
from torch.nn import functional

from trimaran.networks.sizes import TransformerSize
from trimaran.networks.transformer import MultiHeadAttention

_EPSILON = 1e-12
_DEVIATION = 0.02
_SEGMENTS = 2


class BertBlock(nn.Module):
    """Attention, then two dense layers; a norm behind each sum.

    Args:
        size: of the network
        dropout: probability
    """

    def __init__(self, size: TransformerSize, dropout: float) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(size.width, size.heads, dropout)
        self.norm1 = nn.LayerNorm(size.width, eps=_EPSILON)
        self.inner = nn.Linear(size.width, size.dense)
        self.outer = nn.Linear(size.dense, size.width)
        self.norm2 = nn.LayerNorm(size.width, eps=_EPSILON)
        self.dropout = nn.Dropout(dropout)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """States [batch, length, width] to the same shape."""
        states = self.norm1(states + self.dropout(self.attention(states)))
        change = self.outer(functional.gelu(self.inner(states)))
        result: torch.Tensor = self.norm2(states + self.dropout(change))
        return result


class BertEncoder(nn.Module):
    """Embeddings of tokens, positions and segments, and the blocks.

    Args:
        size: of the network
        dropout: probability
    """

    def __init__(self, size: TransformerSize, dropout: float) -> None:
        super().__init__()
        self.words = nn.Embedding(size.vocabulary, size.width)
        self.positions = nn.Embedding(size.positions, size.width)
        self.segments = nn.Embedding(_SEGMENTS, size.width)
        self.norm = nn.LayerNorm(size.width, eps=_EPSILON)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(BertBlock(size, dropout) for _ in range(size.layers))

    def forward(self, tokens: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
        """Tokens and their segments [batch, length] to states [batch, length, width]."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        states = self.words(tokens) + self.positions(places) + self.segments(segments)
        states = self.dropout(self.norm(states))
        for block in self.blocks:
            states = block(states)
        result: torch.Tensor = states
        return result


class BertForPretraining(nn.Module):
    """The encoder, the scores of the masked tokens, and whether the second sentence follows the first.

    Args:
        size: of the network
        dropout: probability

    Example:
        >>> size = TransformerSize(width=32, layers=2, heads=4, dense=64, vocabulary=50, positions=16)
        >>> tokens = torch.zeros(2, 12, dtype=torch.long)
        >>> words, follows = BertForPretraining(size)(tokens, tokens, tokens[:, :3])
        >>> words.shape, follows.shape
        (torch.Size([2, 3, 50]), torch.Size([2, 2]))
    """

    def __init__(self, size: TransformerSize, *, dropout: float = 0.1) -> None:
        super().__init__()
        self.encoder = BertEncoder(size, dropout)
        self.pooler = nn.Linear(size.width, size.width)
        self.follows = nn.Linear(size.width, 2)
        self.transform = nn.Linear(size.width, size.width)
        self.norm = nn.LayerNorm(size.width, eps=_EPSILON)
        self.decoder = nn.Linear(size.width, size.vocabulary)
        self.decoder.weight = self.encoder.words.weight
        _draw_weights(self)

    def forward(
        self, tokens: torch.Tensor, segments: torch.Tensor, masked: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Scores of the masked tokens, and of the order of the sentences.

        Args:
            tokens: indices in the vocabulary [batch, length]
            segments: 0 or 1, the sentence of each token [batch, length]
            masked: places of the tokens to guess [batch, guesses]

        Returns:
            Scores [batch, guesses, vocabulary], scores [batch, 2].
        """
        states = self.encoder(tokens, segments)
        follows = self.follows(torch.tanh(self.pooler(states[:, 0])))
        asked = states.gather(1, masked.unsqueeze(-1).expand(-1, -1, states.shape[-1]))
        return self.decoder(self.norm(functional.gelu(self.transform(asked)))), follows


class BertForQuestions(nn.Module):
    """The encoder, and scores of each token as the first and as the last of the answer.

    Args:
        size: of the network
        dropout: probability

    Example:
        >>> size = TransformerSize(width=32, layers=2, heads=4, dense=64, vocabulary=50, positions=16)
        >>> tokens = torch.zeros(2, 12, dtype=torch.long)
        >>> BertForQuestions(size)(tokens, tokens).shape
        torch.Size([2, 12, 2])
    """

    def __init__(self, size: TransformerSize, *, dropout: float = 0.1) -> None:
        super().__init__()
        self.encoder = BertEncoder(size, dropout)
        self.answer = nn.Linear(size.width, 2)
        _draw_weights(self)

    def forward(self, tokens: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
        """Scores [batch, length, 2] of tokens and segments [batch, length]."""
        scores: torch.Tensor = self.answer(self.encoder(tokens, segments))
        return scores


def _draw_weights(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=_DEVIATION)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
