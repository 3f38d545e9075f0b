"""Hybrid sharding: replicas of a sharded model on a 2-D mesh; a distributed checkpoint is written and read back."""

import os
import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

WIDTH, VOCABULARY = 1024, 16000


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.gate = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.down = nn.Linear(3 * WIDTH, WIDTH, bias=False)

    def _inner(self, x):
        h = self.norm(x)
        return self.down(F.silu(self.gate(h)) * self.up(h))

    def forward(self, x):
        return x + checkpoint(self._inner, x, use_reentrant=False)


class Net(nn.Module):
    def __init__(self, depth=8):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleDict({str(i): Mixer() for i in range(depth)})
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, x):
        x = self.embed(x)
        for layer in self.layers.values():
            x = layer(x)
        return self.head(x)


class AppState(dcp.stateful.Stateful):
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def state_dict(self):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state):
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
            options=StateDictOptions(strict=True),
        )


def main():
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("cpu:gloo,cuda:nccl")
    world, per_node = dist.get_world_size(), int(os.environ["LOCAL_WORLD_SIZE"])
    mesh = init_device_mesh("cuda", (world // per_node, per_node), mesh_dim_names=("replicate", "shard"))
    torch.manual_seed(7)
    with torch.device("cuda"):
        model = Net()
    for layer in model.layers.values():
        fully_shard(layer, mesh=mesh, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if dist.get_rank() == 0:
        print(f"mesh {mesh.shape}: {mesh}")

    def train(steps):
        for step in range(steps):
            x = torch.randint(0, VOCABULARY, (2, 1024), device="cuda")
            loss = F.cross_entropy(model(x[:, :-1]).flatten(0, 1).float(), x[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if dist.get_rank() == 0:
                print(f"step {step} loss {loss.item():.3f}", flush=True)

    train(1)
    folder = [tempfile.mkdtemp(prefix="ckpt-") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder, src=0)
    path = os.path.join(folder[0], "step1")
    dcp.save({"app": AppState(model, optimizer)}, checkpoint_id=path)
    if dist.get_rank() == 0:
        print("checkpoint written", flush=True)
    dcp.load({"app": AppState(model, optimizer)}, checkpoint_id=path)
    if dist.get_rank() == 0:
        print("checkpoint read", flush=True)
    dist.barrier()
    train(1)
    if dist.get_rank() == 0:
        shutil.rmtree(folder[0], ignore_errors=True)
        print("bye")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
