"""What a loop of a user's does with its session by mistake is refused, and nothing is trained otherwise."""

import dataclasses
import itertools
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import builders
from tests.raising import raises
from torch import nn
from torch.utils.data import TensorDataset

import trimaran
from trimaran.features.training.session import Session
from trimaran.graph.behaviour import weighed
from trimaran.graph.capture.capture import capture_and_look
from trimaran.launch.world import World
from trimaran.program.lowering.lower import lower
from trimaran.user_code.model import make_model

JOB = trimaran.Job(
    model=lambda: nn.Linear(4, 3),
    loss=nn.functional.cross_entropy,
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    dataset=lambda: TensorDataset(torch.ones(16, 4), torch.zeros(16, dtype=torch.int64)),
    global_batch_size=8,
    epochs=2,
)


POINTS = [(torch.randn(4, generator=torch.Generator().manual_seed(number)), number % 3) for number in range(16)]


def stack(samples: list[Any]) -> dict[str, Any]:
    return {"x": torch.stack([x for x, _ in samples]), "y": torch.tensor([y for _, y in samples])}


def noisy(samples: list[Any]) -> dict[str, Any]:
    batch = stack(samples)
    return {**batch, "x": batch["x"] + torch.rand(())}


def named(samples: list[Any]) -> dict[str, Any]:
    return {**stack(samples), "names": [f"sample {y}" for _, y in samples]}


def counted(samples: list[Any]) -> dict[str, Any]:
    return {**stack(samples), "count": len(samples)}


def without_zeros(samples: list[Any]) -> dict[str, Any]:
    return stack([one for one in samples if float(one[0][0]) > -1.0])


def time_first(samples: list[Any]) -> dict[str, Any]:
    batch = stack(samples)
    return {**batch, "x": batch["x"].mT + torch.rand(())}


class OfKey(nn.Linear):
    turns = False

    def forward(self, batch: Any) -> torch.Tensor:
        return super().forward(batch["x"].mT if self.turns else batch["x"])


class Turned(OfKey):
    turns = True


def mean_loss(output: torch.Tensor, batch: Any) -> torch.Tensor:
    total = nn.functional.cross_entropy(output, batch["y"], reduction="sum")
    return total / batch.get("count", len(batch["y"]))


@pytest.mark.parametrize("collate", [noisy, named, counted, without_zeros, time_first])
def test_batches_train_as_shares_do(collate: Any) -> None:
    """Drawn for the whole share, divided by its count, or refused in the middle."""
    job = dataclasses.replace(
        JOB,
        model=lambda: (Turned if collate is time_first else OfKey)(4, 3),
        loss=mean_loss,
        dataset=lambda: POINTS,
        collate=collate,
        precision="fp64",
    )
    captured, strategy = capture_and_look(job), builders.strategy(microbatches=2)
    program = lower(captured.graph, strategy, batch=8)
    losses = []
    for way in (Session.batches, Session.shares):
        weighed_job = weighed(job, captured.graph.behaviour)
        captured = dataclasses.replace(captured, model=make_model(job))
        with Session(weighed_job, strategy, program, captured, World(), owns_world=False) as session:
            losses.append([session.step(one) for one in itertools.islice(way(session), 2)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)


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


def test_a_callback_that_puts_another_optimizer_into_the_session_is_refused() -> None:
    def restart(session: Any, epoch: int, metrics: Any) -> None:
        session.optimizer = torch.optim.SGD(session.model.parameters(), lr=0.01)

    session = trimaran.init(dataclasses.replace(JOB, on_epoch=restart))
    with session, raises("session.not-replaceable", match=r"Job\.on_epoch", name="optimizer"):
        session.end_epoch(0)


def test_a_loop_over_epochs_around_batches_is_told_that_these_have_all_epochs(tmp_path: Path) -> None:
    """The first pass trained all epochs, and the others nothing: without a word a third of what was meant, or less."""
    with trimaran.init(JOB) as session:
        for _ in range(3):
            session.step(next(iter(session.batches())))
        session.save_checkpoint(tmp_path)
        assert len([session.step(batch) for batch in session.batches()]) == 1
        with raises("session.epochs-over", epochs=2):
            next(session.batches())
        session.load_checkpoint(tmp_path)
        assert len([session.step(batch) for batch in session.batches()]) == 1


def test_a_backward_of_what_a_step_returns_is_told_that_the_step_has_done_it(capsys: Any) -> None:
    with trimaran.init(JOB) as session:
        loss: Any = session.step(next(session.batches()))
        try:
            loss.backward()
        except AttributeError as error:
            sys.excepthook(type(error), error, error.__traceback__)
    assert "mean loss as a number" in capsys.readouterr().err


def test_another_optimizer_of_the_loop_finds_no_gradients_of_a_step() -> None:
    with trimaran.init(JOB) as session:
        other = torch.optim.AdamW(session.model.parameters())
        session.step(next(session.batches()))
        trained = session.model.weight.clone()
        other.step()
        assert torch.equal(trained, session.model.weight)
        # One device alone may train by gradients of the loop.
        session.model(torch.ones(2, 4)).sum().backward()
        before = session.model.weight.clone()
        other.step()
        assert not torch.equal(before, session.model.weight)
    other.step()


def test_a_session_is_made_before_virtual_memory_goes_around_its_loop() -> None:
    """Within it a look failed, unnoticed, so that every plan was taken for exact."""
    with trimaran.virtual_memory("1GiB"):
        with raises("virtual-memory.around-look"):
            trimaran.init(JOB)
        with raises("virtual-memory.around-look"):
            trimaran.check("digits")
    with trimaran.init(JOB) as session, trimaran.virtual_memory("1GiB"):
        assert len([session.step(batch) for batch in session.batches()]) == 4
