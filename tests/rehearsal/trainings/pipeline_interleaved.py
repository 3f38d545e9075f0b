"""Two stages on each of two ranks, interleaved, with FSDP2 nowhere and recomputation in one of them."""

import torch
from common import DEVICE, STEPS, Net, adam, batch, dist, loss_of, start
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B
from torch.utils.checkpoint import checkpoint


class Stage(nn.Module):
    """A part of the network."""

    def __init__(self, net: Net, index: int, count: int) -> None:
        super().__init__()
        each = len(net.layers) // count
        self.words = net.words if index == 0 else None
        self.layers = net.layers[index * each : (index + 1) * each]
        self.end = nn.Sequential(net.norm, net.head) if index == count - 1 else None
        self.recomputed = index == 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x if self.words is None else self.words(x)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.recomputed else layer(x)
        return x if self.end is None else self.end(x)


rank, world = start()
net = Net()
parts = [Stage(net, index, 2 * world).to(DEVICE) for index in (rank, rank + world)]
del net
stages = [PipelineStage(part, rank + world * number, 2 * world, DEVICE) for number, part in enumerate(parts)]
schedule = ScheduleInterleaved1F1B(stages, n_microbatches=4, loss_fn=loss_of)
optimizer = adam([parameter for part in parts for parameter in part.parameters()])
for _ in range(STEPS):
    tokens, targets = batch(16)
    if rank == 0:
        schedule.step(tokens)
    else:
        schedule.step(target=targets)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
