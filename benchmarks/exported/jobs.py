"""A decoder whose plans are exported: some tens of milliseconds of compute a step on a core."""

import torch
from torch import nn
from torch.nn import functional

import trimaran
from trimaran.networks.characters import TransformerBlock

VOCABULARY, LENGTH, WIDTH, BLOCKS = 256, 64, 192, 6


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(TransformerBlock(WIDTH, 4) for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens):
        states = self.embedding(tokens)
        for block in self.blocks:
            states = block(states)
        return self.head(self.norm(states))


def make_data():
    tokens = torch.randint(VOCABULARY, (512, LENGTH + 1), generator=torch.Generator().manual_seed(1))
    return torch.utils.data.TensorDataset(tokens[:, :-1], tokens[:, 1:])


def loss(scores, targets):
    return functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


def decoder():
    return trimaran.Job(
        model=Decoder,
        loss=loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        dataset=make_data,
        global_batch_size=32,
    )
