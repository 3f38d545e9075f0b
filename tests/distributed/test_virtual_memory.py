"""`virtual_memory` around loops whose parameters are replicated (DDP) or sharded (FSDP2), on two processes."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.forks.client import launch
from tests.reduced import REDUCED
from tests.unit.memory_budget.virtual_loops import larger
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import trimaran
from trimaran.base.errors import InfeasibleError
from trimaran.launch.world import World

STEPS = 6


def replicated(model: nn.Module) -> nn.Module:
    """Small buckets, so that there are several; gradients are views of them."""
    return DistributedDataParallel(model, bucket_cap_mb=0.1, gradient_as_bucket_view=True)


def sharded(model: nn.Module) -> nn.Module:
    """Each block by itself, and the rest."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.h:  # type: ignore[union-attr]
        fully_shard(block, mesh=mesh)  # type: ignore[arg-type]
    return fully_shard(model, mesh=mesh)


WRAPPERS = {"ddp": replicated, "fsdp2": sharded}


def plain_loop(world: World, wrapper: str, budget: str | None) -> dict[str, Any]:
    """What a rank has after a few steps; each rank has its own samples."""
    torch.manual_seed(0)
    network = REDUCED["gpt2"]
    model = WRAPPERS[wrapper](network.model())
    batch = larger(network)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses, gradients = [], {}
    context: Any = contextlib.nullcontext() if budget is None else trimaran.virtual_memory(budget, smallest=0)
    with context as memory:
        for step in range(STEPS):
            inputs, target = batch(2 * step + world.rank)
            torch.manual_seed(step)
            loss = network.loss(model(inputs), target)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.item())
            gradients = {name: local(parameter.grad).tolist() for name, parameter in model.named_parameters()}
            optimizer.zero_grad()
        report = None if memory is None else memory.report()
    return {"losses": losses, "gradients": gradients, "report": report}


def local(tensor: Any) -> torch.Tensor:
    """The part of a gradient that this rank has."""
    found: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return found


def every_loop(world: World) -> dict[str, Any]:
    """One pair of processes for all of it: to start one takes longer than to train."""
    found: dict[str, Any] = {
        wrapper: (plain_loop(world, wrapper, None), plain_loop(world, wrapper, "80%")) for wrapper in WRAPPERS
    }
    try:
        plain_loop(world, "fsdp2", "10%")
    except InfeasibleError as error:
        found["refusal"] = error.message
    return found


@pytest.mark.timeout(180)
def test_a_distributed_loop_trains_alike(tmp_path: Path) -> None:
    for found in launch(every_loop, [], ranks=2, log_dir=tmp_path, device="cpu"):
        for wrapper in WRAPPERS:
            plain, ours = found[wrapper]
            assert ours["losses"] == plain["losses"]
            assert ours["gradients"] == plain["gradients"]
            report = ours["report"]
            assert report.phase == "run"
            assert report.fallback_steps == 0
            assert report.to_host_bytes > 0 or any(one.decision == "recompute" for one in report.decisions)
            assert report.predicted_peak_bytes <= report.budget_bytes
        # FSDP2 has state of its own kind, which stays on the device.
        assert "CPUOffloadPolicy" in found["refusal"]
