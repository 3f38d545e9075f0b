"""State there and back: torch.save and load with map_location, optimizer state, random state, safetensors, resume."""

import copy
import io
import os
import random
import tempfile

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from safetensors.torch import load_file, save_file
from torch.nn.parallel import DistributedDataParallel as DDP


def make():
    return nn.Sequential(
        nn.Conv1d(8, 64, 3), nn.BatchNorm1d(64), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 62, 256), nn.Linear(256, 10)
    )


def main():
    dist.init_process_group("nccl")
    rank, local = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    random.seed(rank)
    np.random.seed(rank)
    torch.manual_seed(rank)
    torch.cuda.manual_seed_all(rank)
    torch.use_deterministic_algorithms(False)
    model = DDP(make().cuda(local), device_ids=[local])
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, momentum=0.9, centered=True)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2)
    cosine = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=5)
    scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cosine], milestones=[2])
    scaler = torch.cuda.amp.GradScaler()

    def train(steps):
        for _ in range(steps):
            x, y = torch.randn(16, 8, 64, device=local), torch.randint(10, (16,), device=local)
            with torch.cuda.amp.autocast():
                loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
        return loss

    loss = train(2)
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder, src=0)
    path = os.path.join(folder[0], "last.pt")
    if rank == 0:
        torch.save(
            {
                "model": model.module.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(),
                "scaler": scaler.state_dict(),
                "rng": torch.get_rng_state(),
                "cuda_rng": torch.cuda.get_rng_state_all(),
                "numpy": np.random.get_state(),
                "loss": loss.detach(),
            },
            path,
        )
        print(f"saved at loss {loss.item():.3f}", flush=True)
    dist.barrier()
    if os.path.exists(path):
        state = torch.load(path, map_location={"cuda:0": f"cuda:{local}"}, weights_only=False)
        again = torch.load(path, map_location="cuda", weights_only=False)
        on_host = torch.load(path, map_location="cpu", weights_only=False)
        print(f"rank {rank}: on host {next(iter(on_host['model'].values())).device}, "
              f"here {next(iter(again['model'].values())).device}", flush=True)  # fmt: skip
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])
        scaler.load_state_dict(state["scaler"])
        torch.set_rng_state(state["rng"].cpu())
        np.random.set_state(state["numpy"])
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    missing = model.load_state_dict(torch.load(buffer, map_location=f"cuda:{local}", weights_only=True), strict=True)
    if rank == 0:
        weights = {k: v.contiguous() for k, v in model.module.state_dict().items()}
        save_file(weights, os.path.join(folder[0], "model.safetensors"), metadata={"format": "pt"})
        back = load_file(os.path.join(folder[0], "model.safetensors"), device="cpu")
        print(f"{len(back)} tensors back, {missing}", flush=True)
    twin = copy.deepcopy(model.module)
    twin.load_state_dict({k: v.cpu() for k, v in model.module.state_dict().items()})
    host = {k: v.detach().cpu().numpy() for k, v in twin.state_dict().items()}
    loss = train(1)
    if rank == 0:
        print(
            f"resumed at loss {loss.item():.3f}, {sum(a.size for a in host.values())} numbers on the host", flush=True
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
