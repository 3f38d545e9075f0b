"""GNMT: translation by a deep LSTM encoder and a deep LSTM decoder with attention.

The first encoder layer reads both ways; from the third layer on, each layer's input is added to its output. The decoder
is trained on the right words before. Its first layer asks the attention, and every layer above it is given what the
attention found together with its input. The paper feeds the attention's answer back to the first layer too, which makes
the decoder go word by word; here, as in the training code that most benchmarks use, it does not, so each layer is one
call.

Source:
    Wu et al., "Google's Neural Machine Translation System", arXiv:1609.08144, 2016: 8 + 8 layers of 1024, a shared
    vocabulary of 32,000 pieces. The attention is that of Bahdanau et al., ICLR 2015.
"""

import torch
from torch import nn


class AdditiveAttention(nn.Module):
    """Attention of a state of the decoder to the states of the encoder.

    Args:
        width: size of the states
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width)
        self.score = nn.Linear(width, 1, bias=False)

    def forward(self, asking: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        """States [batch, targets, width] and [batch, sources, width] to means of the second [batch, targets, width]."""
        sums = self.query(asking).unsqueeze(2) + self.key(memory).unsqueeze(1)
        weights = self.score(torch.tanh(sums)).squeeze(-1).softmax(dim=-1)
        found: torch.Tensor = weights @ memory
        return found


class GnmtEncoder(nn.Module):
    """An embedding, one LSTM layer that reads both ways, and layers one way.

    Args:
        vocabulary: number of different pieces
        width: size of the states
        layers: number of layers, at least 2
        dropout: probability in front of each layer
    """

    def __init__(self, vocabulary: int, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.both_ways = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.layers = nn.ModuleList(
            nn.LSTM(2 * width if number == 0 else width, width, batch_first=True) for number in range(layers - 1)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, source: torch.Tensor) -> torch.Tensor:
        """Pieces [batch, sources] to states [batch, sources, width]."""
        states, _ = self.both_ways(self.dropout(self.embedding(source)))
        states, _ = self.layers[0](self.dropout(states))
        for layer in self.layers[1:]:
            change, _ = layer(self.dropout(states))
            states = states + change
        result: torch.Tensor = states
        return result


class GnmtDecoder(nn.Module):
    """An embedding, LSTM layers with attention from the first one, and the scores of the next piece.

    Args:
        vocabulary: number of different pieces
        width: size of the states
        layers: number of layers, at least 2
        dropout: probability in front of each layer
    """

    def __init__(self, vocabulary: int, width: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.first = nn.LSTM(width, width, batch_first=True)
        self.attention = AdditiveAttention(width)
        self.layers = nn.ModuleList(nn.LSTM(2 * width, width, batch_first=True) for _ in range(layers - 1))
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, target: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        """Pieces [batch, targets] and states [batch, sources, width] to scores [batch, targets, vocabulary]."""
        states, _ = self.first(self.dropout(self.embedding(target)))
        found = self.attention(states, memory)
        for number, layer in enumerate(self.layers):
            change, _ = layer(self.dropout(torch.cat([states, found], dim=2)))
            states = states + change if number else change
        scores: torch.Tensor = self.head(states)
        return scores


class Gnmt(nn.Module):
    """The encoder and the decoder.

    Args:
        vocabulary: number of different pieces, the same for both languages
        width: size of the states
        layers: layers of the encoder, and of the decoder
        dropout: probability in front of each layer
        shared: both languages have one embedding

    Example:
        >>> source, target = torch.zeros(2, 7, dtype=torch.long), torch.zeros(2, 5, dtype=torch.long)
        >>> Gnmt(50, width=16, layers=3)(source, target).shape
        torch.Size([2, 5, 50])
    """

    def __init__(
        self,
        vocabulary: int = 32_000,
        width: int = 1024,
        layers: int = 8,
        dropout: float = 0.2,
        *,
        shared: bool = False,
    ) -> None:
        super().__init__()
        self.encoder = GnmtEncoder(vocabulary, width, layers, dropout)
        self.decoder = GnmtDecoder(vocabulary, width, layers, dropout)
        if shared:
            self.decoder.embedding = self.encoder.embedding

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Scores of the piece after each one of the target.

        Args:
            source: pieces to translate [batch, sources]
            target: pieces of the translation [batch, targets]

        Returns:
            Scores [batch, targets, vocabulary].
        """
        scores: torch.Tensor = self.decoder(target, self.encoder(source))
        return scores
