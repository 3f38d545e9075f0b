"""A recurrent character model.

Every layer is a module of its own, so that a pipeline can be cut between them: one `nn.LSTM` of several layers is one
operation.
"""

import torch
from torch import nn


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
