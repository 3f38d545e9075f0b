"""Compressed gradients between real ranks: replicas stay equal bit for bit, and what is lost comes later."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from tests import builders
from tests.distributed.jobs import make_job
from tests.distributed.test_equal_losses import BUCKET
from tests.distributed.training import Run, captured, open_executor, take_steps
from tests.forks.client import launch
from tests.raising import raises
from tests.representative import some_and_rest

from trimaran.base.timeline import COMMUNICATION, WAIT, Timeline
from trimaran.launch.world import World
from trimaran.program.gradients import Compression, parse_compression
from trimaran.program.strategy import Strategy
from trimaran.program.types import Kind
from trimaran.runtime.step.gradient_noise import check_observable

METHODS = ("bf16", "fp16", "powersgd:1", "powersgd:4")
STEPS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a rank has at the end: losses by step, its weights by name, and what happened (on rank 0).

    `planned` are the bytes of its buckets in the program.
    """

    losses: list[float]
    planned: int
    weights: dict[str, torch.Tensor]
    timeline: Timeline


def train_all(world: World, runs: list[Run]) -> list[Outcome]:
    """Do several runs in one world. The weights are those of this rank, also of stages that it does not train."""
    found = []
    for run in runs:
        made = captured(run.job)
        executor = open_executor(world, run, made)
        losses = take_steps(executor, run.steps)
        timeline = executor.timeline()
        weights = {name: tensor.clone() for name, tensor in made.model.state_dict().items()}
        planned = sum(one.nbytes for one in executor.program.ranks[world.rank] if is_bucket(one.id))
        executor.close()
        found.append(Outcome(losses=losses, planned=planned, weights=weights, timeline=timeline))
    return found


def compressed(strategy: Strategy, method: str) -> Strategy:
    return replace(strategy, compression=parse_compression(method))


REPLICAS = builders.strategy(dp=2, bucket_bytes=BUCKET)
TWO_RANKS = [
    *(Run(job="cnn", strategy=compressed(REPLICAS, method), steps=STEPS) for method in METHODS),
    # Microbatches and a smaller last batch; clipping, in more buckets than the program has; (sum, weight) as a loss;
    # weights without a gradient.
    Run(job="cnn_ragged", strategy=compressed(replace(REPLICAS, microbatches=3), "fp16"), steps=STEPS),
    Run(job="gpt_clipped", strategy=compressed(REPLICAS, "bf16"), steps=STEPS),
    Run(job="gpt_weighted", strategy=compressed(replace(REPLICAS, microbatches=2), "fp16"), steps=STEPS),
    Run(job="lstm_unused", strategy=compressed(REPLICAS, "powersgd:2"), steps=STEPS),
    Run(job="half_frozen", strategy=compressed(REPLICAS, "bf16"), steps=STEPS),
]
PIPELINE = builders.strategy(dp=2, pp=2, schedule="1f1b", microbatches=4, bucket_bytes=BUCKET)
FOUR_RANKS = [
    *(Run(job="gpt", strategy=compressed(PIPELINE, method), steps=STEPS) for method in METHODS),
    *(Run(job="cnn", strategy=compressed(replace(REPLICAS, dp=4), method), steps=STEPS) for method in METHODS),
]

CLOSE = {"bf16": 0.01, "fp16": 0.002, "powersgd": 0.25}
"""By how much a loss may differ from one without compression, after a few steps."""


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "runs",
    [
        *some_and_rest("2 ranks", [TWO_RANKS[number] for number in (2, 4, 5, 6, 7, 8)], TWO_RANKS),
        *some_and_rest("4 ranks", [FOUR_RANKS[number] for number in (3, 4)], FOUR_RANKS),
    ],
)
def test_replicas_stay_equal_and_close_to_those_that_lose_nothing(runs: Sequence[Run], tmp_path: Path) -> None:
    plain = list({run.name: run for run in (without(run) for run in runs)}.values())
    ranks = launch(train_all, ([*runs, *plain],), ranks=runs[0].strategy.devices, log_dir=tmp_path, device="cpu")
    of_plain = {run.name: ranks[0][len(runs) + number] for number, run in enumerate(plain)}
    for number, run in enumerate(runs):
        outcomes = [rank[number] for rank in ranks]
        compression = run.strategy.compression
        assert compression is not None
        wanted = of_plain[without(run).name]
        assert outcomes[0].losses == pytest.approx(wanted.losses, rel=CLOSE[compression.method]), run.name
        assert outcomes[0].losses != wanted.losses, run.name
        rows = run.strategy.pp
        for first, outcome in zip(outcomes, outcomes[rows:], strict=False):
            assert outcome.losses == first.losses, run.name
            assert trained_alike(first, outcome, run), run.name


def without(run: Run) -> Run:
    return replace(run, strategy=replace(run.strategy, compression=None))


def trained_alike(one: Outcome, other: Outcome, run: Run) -> bool:
    """Whether two ranks of one row have the same weights, bit for bit; buffers are each replica's own."""
    names = [name for name, _ in make_job(run.job).model().named_parameters(remove_duplicate=False)]
    return all(torch.equal(one.weights[name], other.weights[name]) for name in names)


LINEAR = [
    Run(job="one_gradient", strategy=compressed(builders.strategy(dp=2), "bf16"), steps=32),
    Run(job="one_gradient", strategy=compressed(builders.strategy(dp=2), "fp16"), steps=32),
    Run(job="one_gradient", strategy=compressed(builders.strategy(dp=2, bucket_bytes=64), "powersgd:1"), steps=3),
    Run(job="eight_gradients", strategy=compressed(builders.strategy(dp=2, bucket_bytes=64), "powersgd:4"), steps=32),
]


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.sweep)], ids=["2 ranks", "4 ranks"])
def applied(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[torch.Tensor]:
    """By run, the sum over the steps of the gradients of the matrix that were applied, at a learning rate of 1; then
    the same of one step without compression."""
    runs = [replace(run, strategy=replace(run.strategy, dp=request.param)) for run in LINEAR]
    plain = [replace(without(run), steps=1) for run in runs]
    folder = tmp_path_factory.mktemp("linear")
    outcomes = launch(train_all, ([*runs, *plain],), ranks=request.param, log_dir=folder, device="cpu")[0]
    begun = [captured(run.job).model.state_dict()["weight"].double() for run in (*runs, *plain)]
    return [before - outcome.weights["weight"] for before, outcome in zip(begun, outcomes, strict=True)]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("number", "unit"), [(0, 2.0**-8), (1, 2.0**-11)], ids=["bf16", "fp16"])
def test_over_many_steps_rounding_owes_what_it_owes_in_one(
    applied: list[torch.Tensor], number: int, unit: float
) -> None:
    """All ranks have the same gradient in every step, so that sums of 2 or 4 are exact, and what is missing after 32
    steps is what the ranks still owe: a unit of what each sends. Without feedback it is up to 32 times as much."""
    gradient = applied[len(LINEAR) + number]
    off = (applied[number] - 32 * gradient).abs()
    assert (off <= 1.01 * unit * gradient.abs() + 1e-12).all()
    dtype = torch.bfloat16 if number == 0 else torch.float16
    assert (32 * (gradient.to(dtype).double() - gradient).abs()).max() > 4 * (unit * gradient.abs()).max()


@pytest.mark.timeout(120)
def test_a_gradient_of_rank_1_needs_no_more_than_rank_1(applied: list[torch.Tensor]) -> None:
    """In fp64, to 1e-12."""
    gradient = applied[len(LINEAR) + 2]
    assert (applied[2] - 3 * gradient).abs().max() <= 1e-12 * gradient.abs().max()


@pytest.mark.timeout(120)
def test_half_of_the_rank_brings_the_whole_gradient_in_time(applied: list[torch.Tensor]) -> None:
    """Rank 4 of 8. What is owed does not grow, so the mean over 32 steps is off by few percent."""
    gradient = applied[len(LINEAR) + 3]
    assert (applied[3] / 32 - gradient).norm() <= 0.1 * gradient.norm()


@pytest.mark.timeout(120)
def test_what_is_recorded_are_bytes_on_the_wire_and_the_work_around_them(tmp_path: Path) -> None:
    """The CNN in several buckets; from the second step on, in which DDP has those of the program."""
    methods = ("bf16", "powersgd:1")
    runs = [Run(job="cnn", strategy=compressed(REPLICAS, method), steps=3) for method in methods]
    outcomes = launch(train_all, (runs,), ranks=2, log_dir=tmp_path, device="cpu")[0]
    parameters = list(make_job("cnn").model().parameters())
    shapes = [tuple(parameter.shape) for parameter in parameters]
    for run, outcome in zip(runs, outcomes, strict=True):
        compression = run.strategy.compression
        assert isinstance(compression, Compression)
        # By which DDP knows that it need not look for parameters without a gradient.
        sent = [min(one.nbytes, compression.wire_bytes([one.shape], itemsize=one.itemsize)) for one in parameters]
        assert sum(sent) == outcome.planned
        for step in (1, 2):
            spans = outcome.timeline.select(step=step, rank=0)
            sums = [span for span in spans if span.stream == COMMUNICATION and is_bucket(span.instruction)]
            assert len(sums) > 1
            assert sum(span.nbytes for span in sums) == compression.wire_bytes(shapes) == outcome.planned
            waits = [span for span in spans if span.stream == WAIT and is_bucket(span.instruction)]
            # Encoding, a wait for each round.
            assert len(waits) == len(sums) * (2 if compression.method == "bf16" else 3)
            decoded = [span for span in spans if span.stream == WAIT and span.instruction == f"r0/{Kind.UPDATE}"]
            assert len(decoded) == len(waits) - len(sums)


def is_bucket(name: str) -> bool:
    return f"{Kind.ALL_REDUCE}#b" in name and name.rpartition("#b")[2].isdigit()


def test_gradient_noise_is_refused_where_gradients_come_in_parts() -> None:
    check_observable(compressed(REPLICAS, "bf16"), None)
    with raises("gradient-noise.strategy-unsupported", match="PowerSGD"):
        check_observable(compressed(REPLICAS, "powersgd:1"), None)
