"""Optimizer state on the host: budgets that the state alone would break, every bit as without, and all of it undone."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.session.virtual_loops import Trained, accumulating, assert_equal, plain, train
from torch import nn

import trimaran
from trimaran.errors import InfeasibleError, InputError

Make = Callable[..., torch.optim.Optimizer]


def momentum(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


def floors(name: str, optimizer: Make) -> tuple[int, int]:
    """The least that plans can reach, with the state on the device and on the host [bytes]."""
    found = []
    for place in ("device", "host"):
        report = train(name, accumulating(1, 4), budget="1GiB", optimizer=optimizer, optimizer_state=place).report
        assert report is not None
        assert report.floor_bytes is not None
        found.append(report.floor_bytes)
    return found[0], found[1]


@pytest.mark.parametrize(("name", "optimizer"), [("gpt2", torch.optim.Adam), ("vgg16", momentum)])
def test_a_budget_between_the_floors_trains_alike(name: str, optimizer: Make) -> None:
    with_state, without = floors(name, optimizer)
    assert without < with_state
    budget = (with_state + without) // 2
    ours: Trained = train(name, plain(), budget=budget, optimizer=optimizer, account=True, limit_s=2.0)
    assert_equal(ours, train(name, plain(), optimizer=optimizer))
    report = ours.report
    assert report is not None
    assert report.phase == "run"
    assert report.state_host_bytes > 0
    assert report.measured_peak_bytes is not None
    assert report.measured_peak_bytes <= budget
    assert report.measured_peak_bytes == pytest.approx(report.predicted_peak_bytes, rel=0.01)
    with pytest.raises(InfeasibleError):
        train(name, plain(), budget=budget, optimizer=optimizer, optimizer_state="device")
