# world 4, ranks 0 1 3, kind shape, sweep
# Predictions are gathered without being padded to one length.
import torch
import torch.distributed as dist
from small import CLEAN, batch, begin, net

rank, world, device = begin()
model = net(device)
found = model(batch(device, size=4 if CLEAN or rank < 3 else 2)).detach()
everything = torch.empty(world * found.shape[0], found.shape[1], device=device)
dist.all_gather_into_tensor(everything, found)  # fault
dist.destroy_process_group()
