"""A loop that looks at values all the time: NaN checks, anomalies, comparisons, early stopping, printing of tensors."""

import math
import os
import warnings

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from tqdm import tqdm


class EarlyStopping:
    def __init__(self, patience=2, delta=1e-4):
        self.best, self.patience, self.delta, self.bad = None, patience, delta, 0

    def __call__(self, value):
        if self.best is None or value < self.best - self.delta:
            self.best, self.bad = value, 0
        else:
            self.bad += 1
        return self.bad >= self.patience


def main():
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    rank = dist.get_rank()
    model = nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Dropout(0.1), nn.Linear(512, 1)).to("cuda")
    model = DDP(model, device_ids=[torch.cuda.current_device()])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    stop = EarlyStopping()
    history, smoothed = [], None
    for step in tqdm(range(6), disable=rank != 0):
        x = torch.randn(64, 128, device="cuda")
        y = x.mean(1, keepdim=True)
        with torch.autograd.set_detect_anomaly(step == 0):
            loss = nn.functional.mse_loss(model(x), y)
            if torch.isnan(loss) or torch.isinf(loss):
                raise FloatingPointError(f"loss is {loss}")
            optimizer.zero_grad()
            loss.backward()
        bad = any(not torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
        if bad:
            warnings.warn("skipped a step", stacklevel=1)
            continue
        norm = torch.norm(torch.stack([torch.norm(p.grad.detach(), 2) for p in model.parameters()]), 2)
        if norm > 10:
            for p in model.parameters():
                p.grad.mul_(10 / (norm + 1e-6))
        optimizer.step()
        schedule.step()
        value = loss.item()
        smoothed = value if smoothed is None else 0.9 * smoothed + 0.1 * value
        history.append(loss.detach().cpu().numpy())
        if math.isnan(value):
            break
        if rank == 0:
            tqdm.write(f"step {step} loss {loss:.4f} norm {norm.item():.3f} smoothed {smoothed:.4f}")
        flag = torch.zeros(1, device="cuda")
        if stop(value):
            flag += 1
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        if flag.item() > 0:
            if rank == 0:
                print("early stop", flush=True)
            break
    with torch.no_grad():
        w = model.module[0].weight
        if rank == 0:
            print("weight", w.mean().item(), w.std().item(), w.abs().max().item(), (w == 0).sum().item())
            print("same", torch.allclose(w, w.clone()), torch.equal(w, w), bool((w == w).all()))
            print("tensor", loss.detach(), w[0, :3])
            print("history", float(np.mean(history)), len(history), flush=True)
            if model.module[3].bias.max() > 1e9 or loss < 0:
                print("strange")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
