"""Jobs whose plans are exported as scripts."""

import torch
from torch import nn
from torch.nn import functional

import trimaran
from trimaran.networks.gpt import TransformerBlock

LENGTH, WIDTH = 12, 32


class Decoder(nn.Module):
    def __init__(self, vocabulary=64, width=WIDTH, blocks=4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(TransformerBlock(width, 4) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens):
        states = self.embedding(tokens)
        for block in self.blocks:
            states = block(states)
        return self.head(self.norm(states))


def make_data(vocabulary=64, samples=64, length=LENGTH):
    tokens = torch.randint(vocabulary, (samples, length + 1), generator=torch.Generator().manual_seed(1))
    return torch.utils.data.TensorDataset(tokens[:, :-1], tokens[:, 1:])


def loss(scores, targets):
    return functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


def decoder(**changed):
    return trimaran.Job(
        model=Decoder,
        loss=loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5, momentum=0.9),
        dataset=make_data,
        global_batch_size=16,
        **changed,
    )


def clipped():
    return decoder(clip_norm=0.1)


def on_a_plateau():
    return decoder(lr_schedule=torch.optim.lr_scheduler.ReduceLROnPlateau)


def wide():
    """Some tens of milliseconds of compute a step on a core."""
    return trimaran.Job(
        model=lambda: Decoder(vocabulary=256, width=192, blocks=6),
        loss=loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        dataset=lambda: make_data(vocabulary=256, samples=512, length=64),
        global_batch_size=32,
    )
