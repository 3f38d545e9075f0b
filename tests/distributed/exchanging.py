"""What ranks do in the tests of weights of others: train and save, begin from what was exported, load by DCP."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from tests.distributed.jobs import make_job
from tests.distributed.resuming import KINDS, open_session, take_steps
from tests.distributed.training import Run
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from trimaran.base.errors import TrimaranError
from trimaran.graph.optimizers import trained_parameters
from trimaran.launch.world import World
from trimaran.runtime.whole_state import WholeState


def save_each(world: World, runs: list[Run], folder: str) -> list[tuple[dict[str, torch.Tensor], WholeState]]:
    """Some steps of each run and a checkpoint; the `state_dict` and the whole state of that moment, on rank 0."""
    found = []
    for run in runs:
        session = open_session(world, run)
        assert len([*take_steps(session, run.steps)]) == run.steps
        session.save_checkpoint(Path(folder) / run.name)
        found.append((session.weights(), session.executor.full_state(kinds=KINDS)))
        session.close()
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """What a rank has after it began from weights.

    Attributes:
        weights: the `state_dict`, on rank 0
        state: the whole one, on rank 0
        loss: of the first step
        notes: of the session
    """

    weights: dict[str, torch.Tensor]
    state: WholeState
    loss: str
    notes: tuple[str, ...]


def begin_each(world: World, begun: list[tuple[Run, str, bool]]) -> list[Begun]:
    """Begin each run from the weights at a path, with the state of the optimizer or without."""
    found = []
    for run, path, optimizer in begun:
        session = open_session(world, run)
        session.load(path, trust_pickle=True, optimizer=optimizer)
        weights, state = session.weights(), session.executor.full_state(kinds=KINDS, compare=True)
        assert not state.differing
        loss = session.step(next(session.shares())).hex()
        found.append(Begun(weights=weights, state=state, loss=loss, notes=session.notes))
        session.close()
    return found


def refuse_each(world: World, run: Run, paths: list[str]) -> list[tuple[str, bool]]:
    """The codes that this rank is told, and whether its model is as it was."""
    found = []
    for path in paths:
        session = open_session(world, run)
        before = session.weights()
        try:
            session.load(path, trust_pickle=True, optimizer=True)
            code = ""
        except TrimaranError as error:
            code = error.code
        now = session.weights()
        found.append((code, all(torch.equal(now[name], one) for name, one in before.items())))
        session.close()
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Programs of others, on several processes, with torch alone


def sharded(world: World, job: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model and its optimizer after a step; on several processes under torch's FSDP2."""
    made = make_job(job)
    torch.manual_seed(world.rank)
    model = made.model()
    if world.size > 1:
        fully_shard(model, mesh=init_device_mesh("cpu", (world.size,)))
    optimizer: Any = made.optimizer(trained_parameters(model))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return model, optimizer


def whole(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Any], dict[str, Any]]:
    """The state of both, whole, on rank 0."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return get_model_state_dict(model, options=options), get_optimizer_state_dict(model, optimizer, options=options)


def load_by_dcp(world: World, job: str, paths: list[str]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Load each directory into a model that torch alone has sharded; what it has then, whole."""
    found = []
    for path in paths:
        model, optimizer = sharded(world, job)
        weights, state = get_state_dict(model, optimizer)
        dcp.load({"model": weights, "optim": state}, checkpoint_id=path, no_dist=world.size == 1)
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=state)
        found.append(whole(model, optimizer))
        if world.size > 1:
            dist.barrier()
    return found


def save_by_dcp(world: World, job: str, folder: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Save a model that torch alone has sharded: under two names, under one more, flattened, and the weights alone."""
    model, optimizer = sharded(world, job)
    weights, state = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optim": state}, checkpoint_id=f"{folder}/both")
    dcp.save({"app": {"model": weights, "optim": state}}, checkpoint_id=f"{folder}/inner")
    flat = StateDictOptions(flatten_optimizer_state_dict=True)
    flattened = get_optimizer_state_dict(model, optimizer, options=flat)
    dcp.save({"model": weights, "optim": flattened}, checkpoint_id=f"{folder}/flat")
    dcp.save(weights, checkpoint_id=f"{folder}/weights")
    return whole(model, optimizer)
