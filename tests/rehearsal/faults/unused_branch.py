# world 2, ranks 0 1, kind ended
# Rank 1 leaves out a part of the model that is not said to be left out at times.
import torch
import torch.distributed as dist
from small import CLEAN, batch, begin
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor, *, both: bool) -> torch.Tensor:
        return self.second(self.first(x)) if both else self.first(x)


rank, world, device = begin()
model = DistributedDataParallel(Model().to(device), find_unused_parameters=CLEAN)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _step in range(3):
    loss = model(batch(device), both=rank == 0).pow(2).mean()  # fault
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
