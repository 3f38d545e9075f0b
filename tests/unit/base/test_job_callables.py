"""Callables of a job are called with what they take, and the hint of an error can be followed."""

import re

import pytest
import torch
from tests.raising import raises
from torch import nn

from trimaran.base.errors import InputError
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


NET = nn.Linear(2, 2)
SGD = torch.optim.SGD(NET.parameters(), lr=0.1)
SAMPLES = torch.utils.data.TensorDataset(torch.ones(4, 2))


@pytest.mark.parametrize(
    ("field", "made"),
    [
        ("model", NET),
        ("model", nn.Sequential(nn.Linear(2, 2), nn.ReLU())),
        ("model", None),
        ("optimizer", SGD),
        ("dataset", SAMPLES),
        ("dataset", torch.utils.data.DataLoader(SAMPLES)),
        ("evaluation_dataset", SAMPLES),
        ("lr_schedule", torch.optim.lr_scheduler.StepLR(SGD, 1)),
        ("loss", "mse"),
        ("metric", 0.9),
        ("collate", "default"),
        ("sampler", torch.utils.data.RandomSampler(SAMPLES)),
        ("on_step", 3),
        ("loss_weight", 2),
    ],
)
def test_a_thing_in_the_place_of_what_makes_it_is_refused(field: str, made: object) -> None:
    with raises("job.not-callable", match=rf"Job\({field}=", field=field):
        job(**{field: made})


@pytest.mark.parametrize(
    ("field", "made"),
    [("loss", nn.MSELoss), ("metric", nn.L1Loss), ("lr_schedule", torch.optim.lr_scheduler.StepLR), ("on_step", print)],
)
def test_a_class_or_a_callable_of_other_values_is_refused(field: str, made: object) -> None:
    if made is print:
        assert job(on_step=print).on_step is print  # which takes anything
        return
    with raises("job.wrong-arguments", field=field):
        job(**{field: made})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("global_batch_size", "4"),
        ("global_batch_size", True),
        ("global_batch_size", 0),
        ("epochs", 1.5),
        ("seed", "a"),
        ("target", "0.9"),
        ("clip_norm", "1"),
        ("clip_norm", 0.0),
        ("drop_last", "no"),
        ("name", 3),
        ("precision", 16),
    ],
)
def test_a_figure_of_a_wrong_kind_is_refused_by_the_name_of_its_field(field: str, value: object) -> None:
    with pytest.raises(InputError, match=f"Job.{field}"):
        job(**{field: value})


def test_a_model_alone_is_told_what_is_wrong_with_it_and_then_what_is_missing() -> None:
    with raises("job.not-callable", field="model"):
        Job(model=NET)  # type: ignore[call-arg,arg-type]
    with raises("job.missing-fields", fields=["loss", "optimizer", "dataset", "global_batch_size"]):
        Job(model=lambda: NET)  # type: ignore[call-arg]
    with raises("job.missing-fields"):
        Job(lambda: NET)  # type: ignore[call-arg,misc]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("batch_size", "global_batch_size"), ("criterion", "loss"), ("epoch", "epochs"), ("lr_scheduler", "lr_schedule")],
)
def test_a_field_by_another_name_is_answered_with_its_own(typed: str, meant: str) -> None:
    with raises("job.unknown-field", match=f'"{meant}"', field=typed):
        job(**{typed: 1})
