"""Optimizers of many kinds on one small network, one after another; bitsandbytes and apex taken only if there."""

import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

try:
    import bitsandbytes as bnb
except ImportError:
    bnb = None
try:
    from apex.optimizers import FusedAdam
except ImportError:
    FusedAdam = None


def kinds(params):
    params = list(params)
    matrices = [p for p in params if p.ndim == 2]
    yield "sgd", torch.optim.SGD(params, lr=0.1, foreach=False)
    yield "sgd fused", torch.optim.SGD(params, lr=0.1, momentum=0.9, fused=True)
    yield "adam", torch.optim.Adam(params, foreach=False, amsgrad=True)
    yield "adam capturable", torch.optim.Adam(params, capturable=True, foreach=True)
    yield "adamw fused", torch.optim.AdamW(params, fused=True)
    yield "adagrad", torch.optim.Adagrad(params)
    yield "adadelta", torch.optim.Adadelta(params)
    yield "rmsprop", torch.optim.RMSprop(params, centered=True)
    yield "nadam", torch.optim.NAdam(params)
    yield "radam", torch.optim.RAdam(params)
    yield "asgd", torch.optim.ASGD(params)
    yield "rprop", torch.optim.Rprop(params)
    yield "adamax", torch.optim.Adamax(params)
    yield "adafactor", torch.optim.Adafactor(params)
    if hasattr(torch.optim, "Muon"):
        yield "muon", torch.optim.Muon(matrices)
    yield "zero", ZeroRedundancyOptimizer(params, optimizer_class=torch.optim.AdamW, lr=1e-3)
    if bnb is not None:
        yield "adam8bit", bnb.optim.Adam8bit(params)
    if FusedAdam is not None:
        yield "apex", FusedAdam(params)


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    net = nn.Sequential(nn.Linear(256, 512), nn.LayerNorm(512), nn.ReLU(), nn.Linear(512, 64)).cuda()
    model = DDP(net, device_ids=[torch.cuda.current_device()])
    x, y = torch.randn(32, 256).cuda(), torch.randint(64, (32,)).cuda()
    for name, optimizer in kinds(model.parameters()):
        for _ in range(2):
            optimizer.zero_grad(set_to_none=name != "sgd")
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"{name}: {loss.item():.3f}", flush=True)
    newton = torch.optim.LBFGS(net.parameters(), lr=1, max_iter=3, line_search_fn=None)

    def closure():
        newton.zero_grad()
        value = nn.functional.cross_entropy(net(x), y)
        value.backward()
        return value

    value = newton.step(closure)
    if dist.get_rank() == 0:
        print(f"lbfgs: {float(value):.3f}; {'with' if bnb else 'without'} bitsandbytes", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
