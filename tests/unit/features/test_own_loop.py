"""What a loop of a user's does with its session by mistake is refused, and nothing is trained otherwise."""

import dataclasses
from typing import Any

import pytest
import torch
from tests.raising import raises
from torch import nn
from torch.utils.data import TensorDataset

import trimaran

JOB = trimaran.Job(
    model=lambda: nn.Linear(4, 3),
    loss=nn.functional.cross_entropy,
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    dataset=lambda: TensorDataset(torch.ones(16, 4), torch.zeros(16, dtype=torch.int64)),
    global_batch_size=8,
    epochs=2,
)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_a_step_without_gradients_is_refused(context: Any) -> None:
    """It gave a loss, and changed nothing."""
    with trimaran.init(JOB) as session:
        batch = next(session.batches())
        with context(), raises("session.step-without-gradients"):
            session.step(batch)
        assert session.steps == 0
        session.step(batch)


@pytest.mark.parametrize("name", ["model", "optimizer"])
def test_nothing_is_put_in_the_place_of_what_a_session_trains(name: str) -> None:
    with trimaran.init(JOB) as session, raises("session.not-replaceable", match=f"Job.{name}", name=name):
        setattr(session, name, None)


def test_a_callback_that_puts_another_optimizer_into_the_session_is_refused_at_the_start() -> None:
    def restart(session: Any, epoch: int, metrics: Any) -> None:
        session.optimizer = torch.optim.SGD(session.model.parameters(), lr=0.01)

    with raises("session.not-replaceable", match=r"Job\.on_epoch", name="optimizer"):
        trimaran.init(dataclasses.replace(JOB, on_epoch=restart))


def test_a_session_is_made_before_virtual_memory_goes_around_its_loop() -> None:
    """Within it a look failed, unnoticed, so that every plan was taken for exact."""
    with trimaran.virtual_memory("1GiB"), raises("virtual-memory.around-init"):
        trimaran.init(JOB)
    with trimaran.init(JOB) as session, trimaran.virtual_memory("1GiB"):
        assert len([session.step(batch) for batch in session.batches()]) == 4
