"""Experts on different ranks: tokens go to them and come back."""

import torch
from common import DEVICE, Net, adam, dist, start, train
from torch import nn
from torch.distributed.nn.functional import all_to_all_single


class Experts(nn.Module):
    """One expert a rank; each gets as many tokens of every rank."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = x.flatten(0, 1).contiguous()
        there = all_to_all_single(torch.empty_like(tokens), tokens)
        made = self.down(torch.relu(self.up(there)))
        return all_to_all_single(torch.empty_like(made), made).view_as(x)


start()
model = Net()
for layer in model.layers:
    layer.up, layer.down = nn.Identity(), Experts(128, 512)
model.to(DEVICE)
train(model, adam(model.parameters()))
dist.destroy_process_group()
