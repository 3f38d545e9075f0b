import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests import zoo
from torch import nn

from trimaran.base.job import Job
from trimaran.graph.capture.capture import Capture
from trimaran.graph.types import Graph
from trimaran.launch.world import World
from trimaran.measure.calibration.devices import ThreadStreams
from trimaran.measure.findings import ListKey, Timed
from trimaran.measure.whole_model import BatchSupply, UpdateTimer, WholeModel, choose_lists, make_stage


def _updates(job: Job) -> tuple[UpdateTimer, nn.Module]:
    model = job.model()
    captured = Capture(graph=Graph(name="x", inputs=(), buffers={}, storages={}), model=model, flow=None)
    stage = make_stage(job, captured, World(), "module", "eager")
    clock = ThreadStreams()
    whole = WholeModel(job, stage, BatchSupply(job, job.dataset(), 4, "cpu"), 4, clock, "cpu")
    return UpdateTimer(job, model, whole, clock), model


@pytest.mark.parametrize(
    ("optimizer", "state"),
    [
        (lambda parameters: torch.optim.SGD(parameters, lr=0.1), 0.0),
        (lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9), 1.0),
        (lambda parameters: torch.optim.AdamW(parameters, lr=0.1), 2.0),
    ],
)
def test_the_state_of_an_optimizer_is_a_multiple_of_its_parameters(
    optimizer: Callable[[Any], torch.optim.Optimizer], state: float
) -> None:
    """Nothing, a momentum, two moments; counters of steps are left out."""
    updates, _ = _updates(dataclasses.replace(zoo.cnn(), optimizer=optimizer))
    updates.run(1)
    assert updates.state_bytes_per_byte() == state


def test_updates_are_measured_for_all_parameters_and_for_parts_of_them() -> None:
    """4 parameters of 400, 40, 4 and 4 B: all, every second (400 + 4), the small half (4 + 4), the large quarter."""
    sizes = (100, 10, 1, 1)
    lists = choose_lists([nn.Parameter(torch.zeros(size)) for size in sizes])
    assert [sum(parameter.nbytes for parameter in chosen) for chosen in lists] == [448, 404, 8, 400]


def test_each_list_is_updated_as_often_as_the_others() -> None:
    updates, model = _updates(zoo.lstm())
    found = updates.run(2)
    parameters = list(model.parameters())
    everything = ListKey(len(parameters), sum(parameter.nbytes for parameter in parameters))
    assert next(iter(found)) == Timed(everything, 0, "clip")
    assert {len(seconds) for seconds in found.values()} == {2}
    assert all(value > 0 for seconds in found.values() for value in seconds)


def test_parameters_are_put_back() -> None:
    job = dataclasses.replace(
        zoo.cnn(),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.5, weight_decay=0.5),
        clip_norm=1.0,
        lr_schedule=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1),
    )
    updates, model = _updates(job)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    updates.run(2)
    assert all(map(torch.equal, before, model.parameters()))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_where_nothing_is_trained_nothing_is_updated() -> None:
    assert choose_lists([]) == []
