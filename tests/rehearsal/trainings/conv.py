"""Convolutions with batch norms under DDP, momentum, a shadow copy of the weights, and an evaluation in between."""

import copy

import torch
import torch.nn.functional as functional
from common import DEVICE, STEPS, dist, start
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Block(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.relu_(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(y)) + x)


start()
net = nn.Sequential(
    nn.Conv2d(3, 64, 3, padding=1), *(Block(64) for _ in range(4)), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(1024, 100)
).to(DEVICE)
shadow = copy.deepcopy(net).requires_grad_(False)
model = DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=True)
for _ in range(STEPS):
    images = torch.randn(16, 3, 16, 16).to(DEVICE)
    labels = torch.randint(100, (16,)).to(DEVICE)
    functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
    optimizer.zero_grad()
    with torch.no_grad():
        torch._foreach_lerp_(list(shadow.parameters()), list(net.parameters()), 0.1)
        shadow.eval()
        right = (shadow(images).argmax(1) == labels).float().mean()
        dist.all_reduce(right)
dist.destroy_process_group()
