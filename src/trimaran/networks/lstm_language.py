"""A language model of LSTM layers over words, with or without a projection of the hidden state.

Its layers are one `nn.LSTM`, which calls the GPU's library for recurrent layers; the character model
(`characters.py`) has a module for each layer.

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
