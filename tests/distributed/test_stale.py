"""PipeDream's schedule equals weight stashing as it is written down, emulated by one process.

    w_s(t+1) = w_s(t) - lr * gradient of stage s of f(w_0(t-K+1), w_1(t-K+2), ..., w_{K-1}(t))

Stage s of K runs global batch t by its weights after t-(K-1-s) updates, forward and backward alike; a pipeline is empty
at the begin of an epoch, and again at its end. In fp64, losses to 1e-10 and weights to 1e-9, as any plan.

Source: Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019, section 3.3.
"""

import copy
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from tests import builders
from tests.distributed.jobs import make_job
from tests.distributed.reference import Reference, parameters_of, train_plainly
from tests.distributed.training import Outcome, Run, captured, open_executor
from tests.forks.client import launch
from torch import nn
from torch.utils.data import default_collate

from trimaran.base.job import Job
from trimaran.launch.world import World
from trimaran.program.lowering.partition import segment_ops
from trimaran.runtime.data.orders import sample_order

LOSS = 1e-10
WEIGHTS = 1e-9
EPOCHS = 2


def emulate_stashing(job: Job, epochs: int, *, stage_of: Mapping[str, int], stages: int) -> Reference:
    """Weight stashing in one process: for each global batch, a model whose parameters are of different versions.

    Args:
        job: with batches of one size or a smaller last one
        epochs: passes over the data
        stage_of: stage of each parameter, by name
        stages: of the pipeline
    """
    torch.manual_seed(job.seed)
    dtype = torch.float64 if job.precision == "fp64" else torch.float32
    model = job.model().to(dtype)
    # Its buffers are those of the training: each forward changes them, in the order of the batches.
    scratch = copy.deepcopy(model)
    optimizer = job.optimizer(parameters_of(model))
    schedule = job.lr_schedule(optimizer) if job.lr_schedule else None
    found = Reference(model=model)
    dataset = job.dataset()
    for epoch in range(epochs):
        order = sample_order(len(dataset), seed=job.seed, epoch=epoch).tolist()
        versions = [_copied(model)]
        for number in range(-(-len(order) // job.global_batch_size)):
            indices = order[number * job.global_batch_size : (number + 1) * job.global_batch_size]
            with torch.no_grad():
                for name, parameter in scratch.named_parameters():
                    lacking = stages - 1 - stage_of[name]
                    parameter.copy_(versions[max(0, number - lacking)][name])
            inputs, target = default_collate([dataset[index] for index in indices])
            inputs = inputs.to(dtype) if inputs.is_floating_point() else inputs
            target = target.to(dtype) if target.is_floating_point() else target
            assert job.loss is not None
            loss = job.loss(scratch(inputs), target)
            gradients = torch.autograd.grad(loss, list(scratch.parameters()))
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.grad = gradient
            optimizer.step()
            optimizer.zero_grad()
            if schedule is not None:
                schedule.step()
            versions.append(_copied(model))
            found.losses.append(loss.item())
    for own, noted in zip(model.buffers(), scratch.buffers(), strict=True):
        own.copy_(noted)
    return found


def _copied(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def train_stale(world: World, runs: list[Run], epochs: int) -> list[Outcome]:
    """Several runs on a rank, each drained at the end of an epoch."""
    found = []
    for run in runs:
        executor = open_executor(world, run, captured(run.job))
        feed = executor.feed()
        losses = []
        for _ in range(epochs):
            for share in feed.shares():
                loss = executor.step(share)
                losses += [loss] if executor.settled else []
            losses += list(executor.drain())
        found.append(Outcome(losses=losses, weights=executor.weights(), score=0.0))
        executor.close()
    return found


def stages_of(run: Run) -> dict[str, int]:
    """The stage of each parameter, by its name."""
    graph = captured(run.job).graph
    parts = segment_ops(graph, run.fit(graph))
    return {name: stage for stage, ops in enumerate(parts) for op in ops for name in op.parameters}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("stages", [2, 4])
def test_steps_equal_weight_stashing_in_one_process(stages: int, tmp_path: Path) -> None:
    strategy = builders.strategy(pp=stages, schedule="pipedream")
    jobs = ("cnn_ragged", "unet_fp64", "lstm_scheduled", "torn_free_adam")
    runs = [Run(job=job, strategy=strategy, steps=0) for job in jobs]
    ranks = launch(train_stale, (runs, EPOCHS), ranks=stages, log_dir=tmp_path, device="cpu")
    for number, run in enumerate(runs):
        job = make_job(run.job)
        expected = emulate_stashing(job, EPOCHS, stage_of=stages_of(run), stages=stages)
        plain = train_plainly(job, len(expected.losses))
        assert max(abs(one - other) for one, other in zip(expected.losses, plain.losses, strict=True)) > 1e-4, run.name
        for rank in ranks:
            assert rank[number].losses == pytest.approx(expected.losses, abs=LOSS), run.name
        found = ranks[0][number].weights
        for name, tensor in expected.model.state_dict().items():
            assert (found[name] - tensor).abs().max() <= WEIGHTS, f"{run.name}: {name}"
