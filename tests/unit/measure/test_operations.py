"""Passes over the operations of real captures. Durations are only asked to be positive, and to be where they belong."""

import dataclasses

import pytest
import torch
from tests import zoo
from torch import nn

from trimaran.base.job import Job
from trimaran.graph.capture.capture import Capture, capture
from trimaran.launch.world import World
from trimaran.measure.calibration.devices import ThreadStreams
from trimaran.measure.operations import OperationPasses
from trimaran.measure.whole_model import BatchSupply, WholeModel, make_stage

BATCH = 4


def _passes(job: Job, captured: Capture) -> OperationPasses:
    module = make_stage(job, captured, World(), "module", "eager")
    return OperationPasses(job, captured, module, ThreadStreams(), "cpu")


def _run(job: Job) -> tuple[Capture, dict[str, tuple[float, float]]]:
    captured = capture(job)
    return captured, _passes(job, captured).run(BatchSupply(job, job.dataset(), BATCH, "cpu").load(), BATCH)


@pytest.mark.parametrize("factory", [zoo.cnn, zoo.unet, zoo.lstm, zoo.gpt, zoo.cnn_fp64])
def test_a_pass_meets_every_operation(factory: "type[Job]") -> None:
    """In-place operations, views, tuples, masks and tied weights included."""
    job = factory()
    captured, seconds = _run(job)
    assert list(seconds) == [op.id for op in captured.graph.ops]
    assert all(forward > 0 for forward, _ in seconds.values())


def test_every_operation_with_parameters_has_a_backward() -> None:
    captured, seconds = _run(zoo.cnn())
    for op in captured.graph.ops:
        if op.parameters:
            assert seconds[op.id][1] > 0


def test_what_wants_no_gradient_has_no_backward() -> None:
    """The causal mask of the transformer is made of constants."""
    captured, seconds = _run(zoo.gpt())
    masks = [op.id for op in captured.graph.ops if op.outputs and op.outputs[0].dtype == "bool"]
    assert masks
    assert all(seconds[mask][1] == 0.0 for mask in masks)


def test_a_pass_leaves_no_gradient_behind() -> None:
    job = zoo.cnn()
    captured = capture(job)
    _passes(job, captured).run(BatchSupply(job, job.dataset(), BATCH, "cpu").load(), BATCH)
    assert all(parameter.grad is None for parameter in captured.model.parameters())


def test_a_frozen_model_part_costs_its_forward_only() -> None:
    def frozen() -> nn.Module:
        model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 10))
        model[0].requires_grad_(False)
        return model

    data = [(torch.ones(8), number % 10) for number in range(8)]
    job = Job(
        model=frozen,
        loss=nn.functional.cross_entropy,
        optimizer=zoo.sgd,
        dataset=lambda: data,  # type: ignore[arg-type,return-value]
        global_batch_size=8,
    )
    _, seconds = _run(job)
    assert seconds["0"][1] == 0.0
    assert seconds["2"][1] > 0.0


def test_a_model_that_cannot_be_exported_is_one_operation() -> None:
    class DataDependent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) if float(x.sum().detach()) > 0 else self.linear(-x)

    data = [(torch.ones(8), number % 10) for number in range(8)]
    job = dataclasses.replace(
        zoo.cnn(),
        model=DataDependent,
        dataset=lambda: data,  # type: ignore[arg-type,return-value]
    )
    captured, seconds = _run(job)
    assert captured.flow is None
    assert list(seconds) == [op.id for op in captured.graph.ops]
    assert min(seconds["model"]) > 0
    assert seconds["loss"][1] == 0.0


@pytest.mark.parametrize("form", ["module", "graph"])
@pytest.mark.parametrize("factory", [zoo.unet, zoo.lstm])
def test_the_whole_model_runs_as_the_runtime_runs_it(
    factory: "type[Job]", form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three repeats of each; no gradient is left behind. A busy machine does not make the data set a slow one."""
    monkeypatch.setattr("trimaran.measure.whole_model.SLOW_S", float("inf"))
    job = factory()
    captured = capture(job)
    stage = make_stage(job, captured, World(), form, "eager")  # type: ignore[arg-type]
    loader = BatchSupply(job, job.dataset(), BATCH, "cpu")
    times = WholeModel(job, stage, loader, BATCH, ThreadStreams(), "cpu").run(3)
    assert {phase: len(seconds) for phase, seconds in times.items()} == dict.fromkeys(
        ("load", "forward", "backward", "evaluation"), 3
    )
    assert all(value > 0 for seconds in times.values() for value in seconds)
    assert all(parameter.grad is None for parameter in captured.model.parameters())
