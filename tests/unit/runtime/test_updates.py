"""Divisor, global norm, optimizer, schedule."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from trimaran.base.job import Job
from trimaran.graph.optimizers import Trained
from trimaran.runtime.step.updates import Updater


def job(**fields: Any) -> Job:
    return Job(
        model=lambda: nn.Linear(1, 1),
        loss=nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0),
        dataset=lambda: TensorDataset(torch.zeros(1)),
        global_batch_size=1,
        **fields,
    )


def named(parameters: list[nn.Parameter]) -> Trained:
    return Trained((str(number), one) for number, one in enumerate(parameters))


def parameter(*gradient: float) -> nn.Parameter:
    made = nn.Parameter(torch.zeros(len(gradient)))
    made.grad = torch.tensor(gradient)
    return made


def test_clipping_shrinks_to_the_norm() -> None:
    """Gradients (3) and (4) have the norm 5; clipped to 1 they are 0.6 and 0.8 (torch adds 1e-6 to the norm)."""
    parameters = [parameter(3.0), parameter(4.0)]
    updater = Updater(job(clip_norm=1.0), named(parameters), parameters)
    squared = updater.square_norm("cpu")
    assert float(squared) == 25.0
    updater.clip(squared.sqrt())
    assert [float(p.grad) for p in parameters] == pytest.approx([0.6, 0.8], rel=1e-6)  # type: ignore[arg-type]


def test_a_shared_weight_counts_where_it_is_counted() -> None:
    parameters = [parameter(3.0), parameter(4.0)]
    assert float(Updater(job(clip_norm=1.0), named(parameters), parameters[1:]).square_norm("cpu")) == 16.0


def test_gradients_are_divided() -> None:
    own = parameter(3.0, 6.0)
    Updater(job(), named([own]), [own]).divide(torch.tensor(3.0, dtype=torch.float64))
    assert own.grad is not None
    assert own.grad.tolist() == [1.0, 2.0]


def test_an_update_steps_optimizer_and_schedule_and_drops_gradients() -> None:
    """Learning rates 1 and 0.5 on a gradient of 1: 0 - 1 - 0.5."""
    own = parameter(1.0)
    updater = Updater(
        job(lr_schedule=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)), named([own]), [own]
    )
    updater.update()
    assert own.grad is None
    own.grad = torch.ones(1)
    updater.update()
    assert own.item() == -1.5


def test_a_stage_without_parameters_updates_nothing() -> None:
    updater = Updater(job(clip_norm=1.0), named([]), [])
    assert updater.optimizer is None
    updater.clip(updater.square_norm("cpu").sqrt())
    updater.update()


def test_gradients_of_what_is_updated_elsewhere_are_dropped() -> None:
    here, there = parameter(3.0), parameter(4.0)
    updater = Updater(job(), named([here]), [here], elsewhere=[there])
    updater.update()
    assert (here.item(), there.item()) == (-3.0, 0.0)
    assert here.grad is None
    assert there.grad is None


def test_a_rank_that_is_home_to_nothing_updates_nothing() -> None:
    there = parameter(4.0)
    updater = Updater(job(), named([]), [], elsewhere=[there])
    updater.update()
    assert (updater.optimizer, there.item(), there.grad) == (None, 0.0, None)


class ByGradient:
    """A rate by the gradients, as a loop has them that forgets them where a step begins."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    def step(self) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = sum(float(one.grad) for one in group["params"])


def test_a_schedule_may_read_gradients() -> None:
    """Steps of 1 x 3, then 3 x 2."""
    own = parameter(3.0)
    updater = Updater(job(lr_schedule=ByGradient), named([own]), [own])
    updater.update()
    assert own.grad is None
    own.grad = torch.tensor([2.0])
    updater.update()
    assert own.item() == -9.0
