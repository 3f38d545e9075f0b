"""An optimizer of the user's does under any plan what it does in a plain loop, or is refused before it trains."""

import dataclasses
from pathlib import Path

import pytest
import torch
from tests import builders
from tests.distributed.jobs import make_job
from tests.distributed.reference import evaluate_plainly, microbatches_of, parameters_of
from tests.distributed.test_equal_losses import LOSS, WEIGHTS, plain_run
from tests.distributed.training import Outcome, Run, captured, full_batch, open_executor, take_steps
from tests.forks.client import launch
from tests.representative import some_and_rest

import trimaran
from trimaran.base.errors import InputError
from trimaran.features.training.rank import _train_epochs
from trimaran.features.training.session import Session
from trimaran.graph.capture.capture import Capture
from trimaran.launch.world import World
from trimaran.program.lowering.lower import lower
from trimaran.program.strategy import Strategy

STEPS = 4
UNITS = ("blocks.0", "blocks.1", "blocks.2", "blocks.3", "norm")
REPLICAS = builders.strategy(dp=2, bucket_bytes=8192)
STATE = builders.strategy(dp=2, zero=1, bucket_bytes=8192)
GRADIENTS = builders.strategy(dp=2, zero=2, units=UNITS)
SHARDS = builders.strategy(dp=2, zero=3, units=UNITS)
PIPELINE = builders.strategy(pp=2, microbatches=2)
HOMES = builders.strategy(dp=2, sync="p2p", bucket_bytes=8192)
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
    Run(job="gpt_by_identity", strategy=REPLICAS, steps=STEPS),
]
REFUSED = [
    *(("gpt_one_norm", strategy, "looks across parameters") for strategy in (STATE, PIPELINE, HOMES)),
    *(("gpt_layerwise", strategy, "options of") for strategy in (STATE, PIPELINE)),
    *(("gpt_foreign", strategy, "no parameter of the model") for strategy in ALL),
    *(("gpt_closed_over", strategy, "not given") for strategy in (STATE, GRADIENTS, SHARDS, PIPELINE, HOMES)),
    ("gpt_noisy", REPLICAS, "random numbers"),
    *((job, strategy, "needs no closure") for job in ("gpt_lbfgs", "gpt_two_steps") for strategy in (REPLICAS, SHARDS)),
]


# Each optimizer, and each kind of plan.
SOME = [RIGHT[number] for number in (0, 5, 6, 11, 12, 14, 16, 17, 18, 19)]


@pytest.mark.timeout(200)
@pytest.mark.parametrize("runs", some_and_rest("some", SOME, RIGHT))
def test_what_an_optimizer_does_by_name_and_by_tensor_equals_the_plain_loop(runs: list[Run], tmp_path: Path) -> None:
    ranks = launch(train, (runs,), ranks=2, log_dir=tmp_path, device="cpu", captured=MODELS)
    for number, run in enumerate(runs):
        reference = plain_run(run.job, run.steps, run.strategy.dp, run.strategy.microbatches)
        for rank in ranks:
            assert rank[number].losses == pytest.approx(reference.losses, abs=LOSS), run.name
        for name, expected in reference.model.state_dict().items():
            assert (ranks[0][number].weights[name] - expected).abs().max() <= WEIGHTS, f"{run.name}: {name}"


MODELS = ("gpt_closed_over", "gpt_by_identity", "gpt_fp64")


def model_of(job: str) -> Capture:
    """The model of a job, captured: most have the same."""
    return captured(job if job in MODELS else "gpt_fp64")


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


EPOCHS = 3
FOLLOWING = [SHARDS, PIPELINE]


def follow(world: World) -> list[list[float]]:
    """Losses of the epochs of a job whose schedule follows its metric: in a run, and in a loop of the user's."""
    job = dataclasses.replace(make_job("gpt_plateau"), epochs=EPOCHS)
    found = []
    for wanted in FOLLOWING:
        made = model_of("gpt_plateau")
        strategy = Run(job="gpt_plateau", strategy=wanted, steps=0).fit(made.graph)
        batch = full_batch(job.global_batch_size, strategy)
        program = lower(made.graph, strategy, batch=batch, clip=job.clip_norm is not None)
        session = Session(job, strategy, program, made, world, owns_world=False)
        found.append([epoch.loss for epoch in _train_epochs(session, world, None, Path("checkpoints"))])
        session.close()
    for evaluates in (False, True):
        session = trimaran.init(job)
        losses: list[float] = []
        for batch in session.batches():
            losses.append(session.step(batch))
            if evaluates:
                session.evaluate()
        session.close()
        found.append([sum(losses[start : start + 6]) / 6 for start in range(0, len(losses), 6)])
    return found


def follow_plainly(replicas: int, microbatches: int) -> list[float]:
    job = make_job("gpt_plateau")
    torch.manual_seed(job.seed)
    model = job.model().double()
    optimizer = job.optimizer(parameters_of(model))
    schedule = job.lr_schedule(optimizer)  # type: ignore[misc]
    losses = []
    for number, parts in enumerate(microbatches_of(job, 6 * EPOCHS, replicas, microbatches)):
        loss = torch.stack([job.loss(model(x), y) for x, y in parts]).mean()  # type: ignore[misc]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if number % 6 == 5:
            schedule.step(evaluate_plainly(job, model))
    assert optimizer.param_groups[0]["lr"] < 0.02
    return [sum(losses[start : start + 6]) / 6 for start in range(0, len(losses), 6)]


@pytest.mark.sweep
@pytest.mark.timeout(120)
def test_a_schedule_that_follows_a_metric_is_stepped_once_an_epoch_as_in_a_plain_loop(tmp_path: Path) -> None:
    """Six steps an epoch; the rate falls after the second and the third, which the losses of the third show."""
    for rank in launch(follow, ranks=2, log_dir=tmp_path, device="cpu", captured=["gpt_fp64"]):
        for strategy, losses in zip([*FOLLOWING, REPLICAS, REPLICAS], rank, strict=True):
            expected = follow_plainly(strategy.dp, strategy.microbatches)
            assert losses == pytest.approx(expected, abs=LOSS), strategy.name


@pytest.mark.timeout(200)
def test_what_would_train_differently_is_refused_on_every_rank(tmp_path: Path) -> None:
    for found in launch(refusals, (REFUSED,), ranks=2, log_dir=tmp_path, device="cpu", captured=MODELS):
        for (job, strategy, reason), message in zip(REFUSED, found, strict=True):
            assert reason in message, f"{job} under {strategy.name}: {message!r}"
