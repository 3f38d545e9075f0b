"""Loaders whose workers are forked, spawned, or of a fork server."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    model = DistributedDataParallel(nn.Linear(8, 4).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.randn(16, 8), torch.arange(16) % 4)
    for context in ("fork", "spawn", "forkserver"):
        for rows, labels in DataLoader(data, 8, num_workers=1, multiprocessing_context=context, pin_memory=True):
            nn.functional.cross_entropy(model(rows.cuda()), labels.cuda()).backward()
            optimizer.step()
            optimizer.zero_grad()
        print(f"{context} {labels.tolist()}", flush=True)


if __name__ == "__main__":
    main()
