"""LSTMs: models of characters and of words, and translation by GNMT.

The model of words has layers with or without a projection of the hidden state, as one `nn.LSTM`, which calls the GPU's
library for recurrent layers; the others have a module for each layer, so that a pipeline can be split between them.

Source:
    Jozefowicz et al., "Exploring the Limits of Language Modeling", arXiv:1602.02410, 2016. Its largest recurrent model
    (BigLSTM) has two layers of 8192 projected to 1024 and 793,471 words, the smaller one two of 2048 projected to 512.
    Its softmax over a sample of the words is a whole softmax here.

BigLSTM: a language model of two projected LSTM layers over 793,471 words, trained on a sample of the words.

Each layer is a separate module, so that a plan may split the network between them. The softmax is over the word that
follows and a sample of the others: the scores of the whole vocabulary would take several times the work of everything
else. The sample is drawn when the network is made, and again when `resample` is called; a step costs the same either
way.

Source:
    Jozefowicz et al., "Exploring the Limits of Language Modeling", arXiv:1602.02410, 2016: layers of 8192 projected to
    1024, a softmax over 8,192 sampled words.

GNMT: translation by a deep LSTM encoder and a deep LSTM decoder with attention.

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
from torch.nn import functional


class LstmLanguageModel(nn.Module):
    """An embedding, LSTM layers, and the scores of the next word.

    Args:
        vocabulary: number of different words
        embedding: size of a word's vector
        width: size of the cell of each layer
        projection: size of the hidden state that a layer hands on; 0: that of the cell
        layers: number of layers
        dropout: probability, between layers and at both ends

    Example:
        >>> LstmLanguageModel(50, 16, 32)(torch.zeros(2, 12, dtype=torch.long)).shape
        torch.Size([2, 12, 50])
    """

    def __init__(
        self,
        vocabulary: int = 10_000,
        embedding: int = 1024,
        width: int = 1024,
        *,
        projection: int = 0,
        layers: int = 2,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.lstm = nn.LSTM(embedding, width, layers, batch_first=True, dropout=dropout, proj_size=projection)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(projection or width, vocabulary)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """Scores of the word after each one.

        Args:
            words: indices in the vocabulary [batch, length]

        Returns:
            Scores [batch, length, vocabulary].
        """
        states, _ = self.lstm(self.dropout(self.embedding(words)))
        scores: torch.Tensor = self.head(self.dropout(states))
        return scores


class SampledSoftmax(nn.Module):
    """Scores of the word that follows, and of a sample of all words.

    Args:
        vocabulary: number of different words
        width: size of the states
        samples: number of sampled words
    """

    sampled: torch.Tensor

    def __init__(self, vocabulary: int, width: int, samples: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocabulary, width))
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        nn.init.uniform_(self.weight, -(width**-0.5), width**-0.5)
        self.register_buffer("sampled", torch.empty(samples, dtype=torch.long))
        self.resample()

    def resample(self) -> None:
        """Draw other words."""
        self.sampled.random_(0, self.weight.shape[0])

    def forward(self, states: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        """States [batch, length, width] and words [batch, length] to scores [batch, length, 1 + samples].

        The word that follows is the first of the scores.
        """
        words = torch.cat([following.flatten(), self.sampled])
        weights, biases = functional.embedding(words, self.weight), self.bias[words]
        count = following.numel()
        right = (states * weights[:count].view_as(states)).sum(-1) + biases[:count].view_as(following)
        others = states @ weights[count:].t() + biases[count:]
        return torch.cat([right.unsqueeze(-1), others], dim=-1)


class BigLstm(nn.Module):
    """An embedding, projected LSTM layers, and a sampled softmax.

    Args:
        vocabulary: number of different words
        embedding: size of a word's vector
        width: size of the cell of each layer
        projection: size of the state that a layer hands on
        layers: number of layers
        samples: words of the softmax in addition to the right one
        dropout: probability, in front of each layer and of the softmax

    Example:
        >>> words = torch.zeros(2, 12, dtype=torch.long)
        >>> BigLstm(50, 16, 32, projection=16, samples=8)(words, words).shape
        torch.Size([2, 12, 9])
    """

    def __init__(
        self,
        vocabulary: int = 793_471,
        embedding: int = 1024,
        width: int = 8192,
        *,
        projection: int = 1024,
        layers: int = 2,
        samples: int = 8192,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.layers = nn.ModuleList(
            nn.LSTM(projection if number else embedding, width, batch_first=True, proj_size=projection)
            for number in range(layers)
        )
        self.dropouts = nn.ModuleList(nn.Dropout(dropout) for _ in range(layers + 1))
        self.head = SampledSoftmax(vocabulary, projection, samples)

    def forward(self, words: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
        """Scores of the word after each one, itself first.

        Args:
            words: indices in the vocabulary [batch, length]
            following: the word after each of them [batch, length]

        Returns:
            Scores [batch, length, 1 + samples].
        """
        states = self.embedding(words)
        for number in range(len(self.layers)):
            states, _ = self.layers[number](self.dropouts[number](states))
        scores: torch.Tensor = self.head(self.dropouts[-1](states), following)
        return scores


def sampled_loss(scores: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    """Cross entropy of the word that follows among the sampled ones, the mean over words.

    Args:
        scores: the right word's first [batch, length, 1 + samples]
        following: the words themselves, which `scores` already stands for [batch, length]
    """
    first = torch.zeros_like(following).flatten()
    return functional.cross_entropy(scores.flatten(0, 1), first)


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
