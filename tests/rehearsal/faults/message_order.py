# world 2, ranks 0 1, kind order
# Activations and positions are received in another order than they are sent.
import torch
import torch.distributed as dist
from small import CLEAN, begin

rank, world, device = begin()
activations, positions = torch.zeros(4, 16, device=device), torch.zeros(4, device=device)
for _step in range(2):
    if rank == 0:
        dist.send(activations, 1)
        dist.send(positions, 1)
    elif CLEAN:
        dist.recv(activations, 0)
        dist.recv(positions, 0)
    else:
        dist.recv(positions, 0)  # fault
        dist.recv(activations, 0)
dist.destroy_process_group()
