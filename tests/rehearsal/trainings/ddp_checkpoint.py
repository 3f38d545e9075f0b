"""DDP with two kinds of recomputation."""

import torch
from common import DEVICE, Layer, Net, adam, dist, start, train
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint


class Recomputed(Layer):
    """A layer whose activations are recomputed in the backward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(super().forward, x, use_reentrant=self.reentrant)


start()
model = Net(depth=6).to(DEVICE)
for number, layer in enumerate(model.layers):
    layer.__class__ = Recomputed
    layer.reentrant = number % 2 == 0
model = DistributedDataParallel(model)
train(model, adam(model.parameters()), samples=16)
dist.destroy_process_group()
