"""Callables of a job are called with what they take, and the hint of an error can be followed."""

import re

import pytest
import torch
from tests.raising import raises
from torch import nn

from trimaran.base.job import Job


def job(**changes: object) -> Job:
    given: dict[str, object] = {
        "model": lambda: nn.Linear(4, 4),
        "optimizer": torch.optim.SGD,
        "dataset": list,
        "loss": nn.functional.mse_loss,
        "global_batch_size": 4,
    }
    return Job(**given | changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", ["adam", 3, torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)])
def test_the_hint_for_an_optimizer_leads_to_a_job(wrong: object) -> None:
    with raises("job.not-callable", field="optimizer") as caught:
        job(optimizer=wrong)
    (hint,) = re.findall(r"Job\(optimizer=(.*)\)", caught.value.message)
    made = eval(hint, {"torch": torch})  # noqa: S307 what a person would type
    assert isinstance(job(optimizer=made).optimizer(nn.Linear(2, 2).parameters()), torch.optim.Optimizer)


@pytest.mark.parametrize(
    ("field", "made"),
    [
        ("optimizer", lambda: torch.optim.SGD),
        ("model", nn.Linear),
        ("dataset", lambda split: split),
    ],
)
def test_callables_that_take_something_else_are_refused(field: str, made: object) -> None:
    with raises("job.wrong-arguments", field=field):
        job(**{field: made})
