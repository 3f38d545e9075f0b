"""What batch norm, dropout and seeds do on several ranks, as `docs/runtime.md` says."""

from pathlib import Path

import pytest
import torch
from tests import builders
from tests.distributed.jobs import make_job
from tests.distributed.test_equal_losses import BUCKET
from tests.distributed.training import Run, captured, open_executor, take_steps
from tests.forks.client import launch

from trimaran.graph.capture.capture import capture
from trimaran.launch.world import World
from trimaran.program.strategy import Strategy

REPLICAS = builders.strategy(dp=2, bucket_bytes=BUCKET)


def statistics(world: World) -> list[list[float]]:
    """Running means of the first batch norm: after training, and after the evaluation that follows."""
    made = captured("cnn_fp64")
    executor = open_executor(world, Run(job="cnn_fp64", strategy=REPLICAS, steps=3), made)
    take_steps(executor, 3)
    trained = made.model.get_buffer("stem.norm.running_mean").tolist()
    executor.evaluate(make_job("cnn_fp64").dataset())
    evaluated = made.model.get_buffer("stem.norm.running_mean").tolist()
    executor.close()
    return [trained, evaluated]


@pytest.mark.timeout(120)
def test_an_evaluation_uses_the_running_statistics_of_replica_0(tmp_path: Path) -> None:
    """Replicas see different samples in the last step, and so their statistics differ until they are shared."""
    (first, second) = launch(statistics, ranks=2, log_dir=tmp_path, device="cpu")
    assert first[0] != second[0]
    assert first[0] == first[1] == second[1]


def weights_of_an_unseeded_model(world: World) -> list[float]:
    torch.manual_seed(world.rank)
    job = make_job("gpt")
    made = capture(job, job.model())
    executor = open_executor(world, Run(job="gpt", strategy=REPLICAS, steps=1), made)
    weights = made.model.get_parameter("blocks.0.mlp.0.bias").tolist()
    take_steps(executor, 2)
    weights += made.model.get_parameter("blocks.0.mlp.0.bias").tolist()
    executor.close()
    return weights


@pytest.mark.timeout(120)
def test_a_model_that_the_seed_does_not_reach_is_still_one_model(tmp_path: Path) -> None:
    first, second = launch(weights_of_an_unseeded_model, ranks=2, log_dir=tmp_path, device="cpu")
    assert first == second


def draws(world: World, strategies: list[Strategy]) -> list[float]:
    """What dropout would draw on this rank, under each strategy."""
    found = []
    for strategy in strategies:
        executor = open_executor(world, Run(job="cnn", strategy=strategy, steps=0), captured("cnn"))
        found.append(float(torch.rand(())))
        executor.close()
    return found


@pytest.mark.timeout(120)
def test_every_rank_draws_its_own_dropout_and_every_run_the_same(tmp_path: Path) -> None:
    strategies = [REPLICAS, builders.strategy(pp=2, microbatches=4), REPLICAS]
    first, second = launch(draws, (strategies,), ranks=2, log_dir=tmp_path, device="cpu")
    assert first[0] == first[2]
    assert second[0] == second[2]
    # Replica 0 of stage 0 is the same rank under both strategies; the other rank is another replica, or another stage.
    assert len({first[0], second[0], second[1]}) == 3
    assert first[0] == first[1]
