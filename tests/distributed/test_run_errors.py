"""Runs that cannot go on say why, on every rank."""

import os
import signal
from pathlib import Path

import pytest
from tests import builders
from tests.distributed.jobs import make_job
from tests.distributed.test_equal_losses import BUCKET
from tests.distributed.training import Run, captured, open_executor, take_steps
from tests.forks.client import launch
from tests.raising import raises
from torch.utils.data import default_collate

from trimaran.base.errors import ExecutionError, InputError
from trimaran.launch.world import World
from trimaran.program.strategy import Strategy

REPLICAS = builders.strategy(dp=2, bucket_bytes=BUCKET)
PIPELINE = builders.strategy(pp=2, schedule="1f1b", microbatches=4)


def explode(world: World, runs: list[Run]) -> list[tuple[str, dict[str, object], list[float]]]:
    """Train until the loss is not a number."""
    told = []
    for run in runs:
        losses: list[float] = []
        executor = open_executor(world, run, captured(run.job))
        try:
            take_steps(executor, 10, seen=lambda step, loss, losses=losses: losses.append(loss))
        except ExecutionError as error:
            told.append((error.code, error.figures, losses))
        executor.close()
    return told


@pytest.mark.timeout(120)
def test_a_loss_that_is_not_a_number_stops_every_rank_and_names_step_and_rank(tmp_path: Path) -> None:
    """In a pipeline it is the last stage that sees it."""
    runs = [Run(job="lstm_exploding", strategy=strategy, steps=10) for strategy in (REPLICAS, PIPELINE)]
    ranks = launch(explode, (runs,), ranks=2, log_dir=tmp_path, device="cpu")
    for number, rank in enumerate((0, 1)):
        code, figures, losses = ranks[0][number]
        assert (code, losses) == (ranks[1][number][0], ranks[1][number][2]) == ("loss.not-finite", losses)
        assert (figures["step"], figures["rank"]) == (len(losses), rank)
        assert 1 <= len(losses) < 10


def train(world: World, run: Run) -> None:
    take_steps(open_executor(world, run, captured(run.job)), run.steps)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("strategy", [REPLICAS, PIPELINE], ids=["replicas", "pipeline"])
def test_a_loss_that_is_no_scalar_is_the_users_error(strategy: Strategy, tmp_path: Path) -> None:
    """In a pipeline only the last stage knows; the others, which wait for it, do not hide it."""
    with raises("loss.not-a-scalar"):
        launch(train, (Run(job="cnn_not_scalar", strategy=strategy, steps=1),), ranks=2, log_dir=tmp_path, device="cpu")


def die_at_step(world: World, run: Run, dying: int, step: int) -> None:
    def seen(number: int, loss: float) -> None:
        if world.rank == dying and number == step:
            os.kill(os.getpid(), signal.SIGKILL)

    take_steps(open_executor(world, run, captured(run.job)), run.steps, seen)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("strategy", [REPLICAS, PIPELINE], ids=["replicas", "pipeline"])
def test_a_rank_that_is_killed_in_the_middle_of_training_ends_the_run(strategy: Strategy, tmp_path: Path) -> None:
    """The others lose contact in a collective or a message, and the one that died is named as the cause."""
    run = Run(job="lstm", strategy=strategy, steps=1000)
    with raises("rank.died", ExecutionError, match="SIGKILL", rank=1) as caught:
        launch(die_at_step, (run, 1, 3), ranks=2, log_dir=tmp_path, device="cpu")
    assert caught.value.figures["rank"] == 1


def lose_peer(world: World, run: Run) -> str:
    """Rank 1 ends its connections after two steps; what rank 0 is told in the third."""
    executor = open_executor(world, run, captured(run.job))
    shares = executor.feed().shares()
    executor.step(next(shares))
    executor.step(next(shares))
    if world.rank == 1:
        executor.close()
        return ""
    try:
        executor.step(next(shares))
    except ExecutionError as error:
        return f"{error.code} {error.figures}"
    return "nothing"


@pytest.mark.timeout(120)
def test_a_rank_that_loses_contact_says_so(tmp_path: Path) -> None:
    """Under torchrun nobody else would: there it is what a person reads."""
    told, _ = launch(lose_peer, (Run(job="lstm", strategy=PIPELINE, steps=3),), ranks=2, log_dir=tmp_path, device="cpu")
    assert told.startswith("rank.lost-peer ")
    assert "'lost_peer': True" in told


def refuse_world(world: World) -> list[object]:
    made = captured("cnn")
    told: list[object] = []
    for strategy in (REPLICAS, PIPELINE):
        try:
            open_executor(world, Run(job="cnn", strategy=strategy, steps=0), made)
        except InputError as error:
            told.append((error.code, error.figures, "dp 2 x pp 1" in error.message, "dp 1 x pp 2" in error.message))
    return told


def test_a_strategy_for_another_world_is_refused(tmp_path: Path) -> None:
    (told,) = launch(refuse_world, ranks=1, log_dir=tmp_path, device="cpu")
    code, figures = "strategy.wrong-world-size", {"strategy": 2, "world": 1}
    assert told == [(code, figures, True, False), (code, figures, False, True)]


def steps_of_other_sizes(world: World) -> list[str]:
    made = captured("cnn")
    executor = open_executor(world, Run(job="cnn", strategy=REPLICAS, steps=0), made)
    job = make_job("cnn")
    samples = [job.dataset()[index] for index in range(16)]
    collated = made_batch(samples[:8])
    told = [f"{executor.step(collated):.3f}", f"{executor.step(made_batch(samples[:4]), samples=8):.3f}"]
    for batch, count in ((made_batch(samples[:7]), None), (collated, 1)):
        try:
            executor.step(batch, samples=count)
        except InputError as error:
            told.append(error.message)
    executor.close()
    return told


def made_batch(samples: list[object]) -> object:
    return default_collate(samples)


@pytest.mark.timeout(120)
def test_a_batch_of_the_users_own_must_be_this_ranks_share(tmp_path: Path) -> None:
    """16 samples over 2 replicas: shares of 8; of a global batch of 8, shares of 4; of one of 1, each has that one."""
    for told in launch(steps_of_other_sizes, ranks=2, log_dir=tmp_path, device="cpu"):
        assert float(told[0]) > 0
        assert float(told[1]) > 0
        assert "must have 8 samples, the batch has 7" in told[2]
        assert "must have 1 samples, the batch has 8" in told[3]
