"""A language model of LSTM layers over words, with or without a projection of the hidden state.

Its layers are one `nn.LSTM`, as one calls a GPU's library for recurrent layers; the character model
(`character_lstm.py`) has each layer as a module of its own.

Source:
    Jozefowicz et al., "Exploring the Limits of Language Modeling", arXiv:1602.02410, 2016. Its largest recurrent model
    (BigLSTM) has two layers of 8192 projected to 1024 and 793,471 words, the smaller one two of 2048 projected to 512.
    Its softmax over a sample of the words is a whole softmax here.
"""

import torch
from torch import nn


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
