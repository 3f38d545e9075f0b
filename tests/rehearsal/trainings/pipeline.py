"""Two stages of a pipeline, one forward and one backward in turn."""

import torch
from common import DEVICE, STEPS, Net, adam, batch, dist, loss_of, start
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B


class Stage(nn.Module):
    """Half of the network."""

    def __init__(self, net: Net, rank: int, world: int) -> None:
        super().__init__()
        count = len(net.layers) // world
        self.words = net.words if rank == 0 else None
        self.layers = net.layers[rank * count : (rank + 1) * count]
        self.end = nn.Sequential(net.norm, net.head) if rank == world - 1 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x if self.words is None else self.words(x)
        for layer in self.layers:
            x = layer(x)
        return x if self.end is None else self.end(x)


rank, world = start()
model = Stage(Net(), rank, world).to(DEVICE)
stage = PipelineStage(model, rank, world, DEVICE)
schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=loss_of)
optimizer = adam(model.parameters())
for _ in range(STEPS):
    tokens, targets = batch(16)
    if rank == 0:
        schedule.step(tokens)
    elif rank == world - 1:
        schedule.step(target=targets)
    else:
        schedule.step()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
