"""Join the world that the variables of torchrun name, and say on which interface that was."""

import os
import sys

import torch
import torch.distributed as dist

from trimaran.launch.world import join_world

if __name__ == "__main__":
    world = join_world(timeout_s=30.0)
    total = torch.tensor([float(world.rank + 1)])
    dist.all_reduce(total)
    sys.stdout.write(f"rank {world.rank} sum {total.item()} interface {os.environ.get('GLOO_SOCKET_IFNAME')}\n")
