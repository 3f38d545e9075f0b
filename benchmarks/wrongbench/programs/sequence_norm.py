"""Trains a block with data, tensor and sequence parallelism."""

import os
import sys
from functools import partial

import torch
import torch.distributed as dist
from tiny import pairs, record
from torch import nn
from torch.distributed._functional_collectives import all_gather_tensor_autograd, reduce_scatter_tensor_autograd
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader, DistributedSampler

BATCH, TP = 16, 2


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 4, bias=False)
        self.gather, self.scatter = nn.Identity(), nn.Identity()

    def forward(self, tokens):
        return self.scatter(self.down(torch.relu(self.up(self.gather(self.norm(tokens))))))


make_model, make_data = Block, pairs
make_optimizer = partial(torch.optim.AdamW, lr=1e-2)


def loss_of(model, batch):
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def main(right):
    device, world = "cuda" if torch.cuda.is_available() else "cpu", int(os.environ["WORLD_SIZE"])
    mesh = init_device_mesh(device, (world // TP, TP), mesh_dim_names=("dp", "tp"))
    dp, tp = mesh.get_group("dp"), mesh.get_group("tp")
    torch.manual_seed(0)
    model, data, part = make_model().to(device), make_data(), tp.rank()
    model.gather.forward = lambda rows: all_gather_tensor_autograd(rows, 0, tp)
    model.scatter.forward = lambda rows: reduce_scatter_tensor_autograd(rows, "sum", 0, tp)
    model.up.weight, model.up.bias = (nn.Parameter(p.chunk(TP)[part].clone()) for p in model.up.parameters())
    model.down.weight = nn.Parameter(model.down.weight.chunk(TP, dim=1)[part].clone())
    optimizer = make_optimizer(model.parameters())
    for batch in DataLoader(data, BATCH // dp.size(), sampler=DistributedSampler(data, dp.size(), dp.rank(), False)):
        optimizer.zero_grad()
        (loss_of(model, [values.to(device).chunk(TP)[part] for values in batch]) / TP).backward()
        for name, parameter in model.named_parameters():
            dist.all_reduce(parameter.grad.div_(dp.size()), group=dp)
            if right and name.startswith("norm"):
                dist.all_reduce(parameter.grad, group=tp)
        optimizer.step()
        record(model)


if __name__ == "__main__":
    main("--right" in sys.argv)
    dist.destroy_process_group()
