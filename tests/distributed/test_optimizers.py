"""An optimizer of the user's does under any plan what it does in a plain loop, or is refused before it trains."""

from pathlib import Path

import pytest
from tests.distributed.test_equal_losses import LOSS, WEIGHTS, plain_run
from tests.distributed.training import Outcome, Run, captured, open_executor, take_steps
from tests.forks.client import launch

from trimaran.errors import InputError
from trimaran.graph.capture import Capture
from trimaran.program.types import Strategy
from trimaran.runtime.world import World

STEPS = 6
UNITS = ("blocks.0", "blocks.1", "blocks.2", "blocks.3", "norm")
REPLICAS = Strategy(dp=2, bucket_bytes=8192)
STATE = Strategy(dp=2, zero=1, bucket_bytes=8192)
GRADIENTS = Strategy(dp=2, zero=2, units=UNITS)
SHARDS = Strategy(dp=2, zero=3, units=UNITS)
PIPELINE = Strategy(pp=2, microbatches=2)
HOMES = Strategy(dp=2, sync="p2p", bucket_bytes=8192)
ALL = (REPLICAS, STATE, GRADIENTS, SHARDS, PIPELINE, HOMES)

RIGHT = [
    *(Run(job="gpt_named", strategy=strategy, steps=STEPS) for strategy in ALL),
    *(Run(job="gpt_tuples", strategy=strategy, steps=STEPS) for strategy in (STATE, SHARDS, PIPELINE)),
    *(Run(job="gpt_spectral", strategy=strategy, steps=STEPS) for strategy in (STATE, SHARDS, PIPELINE)),
    Run(job="gpt_muon", strategy=STATE, steps=STEPS),
    *(Run(job="gpt_normed", strategy=strategy, steps=STEPS) for strategy in (HOMES, GRADIENTS)),
    *(Run(job="gpt_one_norm", strategy=strategy, steps=STEPS) for strategy in (REPLICAS, SHARDS)),
    Run(job="gpt_layerwise", strategy=SHARDS, steps=STEPS),
    Run(job="gpt_closed_over", strategy=REPLICAS, steps=STEPS),
]
REFUSED = [
    *(("gpt_muon", strategy, "take zero=1") for strategy in (GRADIENTS, SHARDS)),
    *(("gpt_one_norm", strategy, "looks across parameters") for strategy in (STATE, PIPELINE, HOMES)),
    *(("gpt_layerwise", strategy, "options of") for strategy in (STATE, PIPELINE)),
    *(("gpt_foreign", strategy, "no parameter of the model") for strategy in ALL),
    *(("gpt_closed_over", strategy, "not given") for strategy in (STATE, GRADIENTS, SHARDS, PIPELINE, HOMES)),
    ("gpt_noisy", REPLICAS, "random numbers"),
    *((job, strategy, "needs no closure") for job in ("gpt_lbfgs", "gpt_two_steps") for strategy in (REPLICAS, SHARDS)),
]


@pytest.mark.timeout(200)
def test_what_an_optimizer_does_by_name_and_by_tensor_equals_the_plain_loop(tmp_path: Path) -> None:
    ranks = launch(train, (RIGHT,), ranks=2, log_dir=tmp_path, device="cpu")
    for number, run in enumerate(RIGHT):
        reference = plain_run(run.job, run.steps, run.strategy.dp, run.strategy.microbatches)
        for rank in ranks:
            assert rank[number].losses == pytest.approx(reference.losses, abs=LOSS), run.name
        for name, expected in reference.model.state_dict().items():
            assert (ranks[0][number].weights[name] - expected).abs().max() <= WEIGHTS, f"{run.name}: {name}"


def model_of(job: str) -> Capture:
    """The model of a job, captured: all but one have the same."""
    return captured(job if job == "gpt_closed_over" else "gpt_fp64")


def train(world: World, runs: list[Run]) -> list[Outcome]:
    found = []
    for run in runs:
        executor = open_executor(world, run, model_of(run.job))
        losses = take_steps(executor, run.steps)
        found.append(Outcome(losses=losses, weights=executor.weights(), score=0.0))
        executor.close()
    return found


def refusals(world: World, cases: list[tuple[str, Strategy, str]]) -> list[str]:
    """What each job is refused with under its strategy."""
    found = []
    for job, strategy, _ in cases:
        try:
            open_executor(world, Run(job=job, strategy=strategy, steps=1), model_of(job)).close()
            found.append("")
        except InputError as error:
            found.append(str(error))
    return found


@pytest.mark.timeout(200)
def test_what_would_train_differently_is_refused_on_every_rank(tmp_path: Path) -> None:
    for found in launch(refusals, (REFUSED,), ranks=2, log_dir=tmp_path, device="cpu"):
        for (job, strategy, reason), message in zip(REFUSED, found, strict=True):
            assert reason in message, f"{job} under {strategy.name}: {message!r}"
