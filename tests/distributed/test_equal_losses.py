"""In fp64, any plan equals one process that sees the same samples in the same microbatches.

Losses to 1e-10, in the sweeps over 50 steps. Weights, buffers included, to 1e-9 after them: a difference in the last
bit of a loss has had 50 steps to grow. Without the sweeps it has an epoch and two steps, in which every kind of step is
done: the first one, one after an update, and the first one of another epoch.
"""

import functools
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests import builders
from tests.distributed.jobs import make_job
from tests.distributed.reference import Reference, evaluate_plainly, train_plainly
from tests.distributed.training import Outcome, Run, train_all
from tests.forks.client import launch
from tests.representative import dealt, few_and_many

from trimaran.program.strategy import Strategy

STEPS = (8, 50)
"""Without the sweeps and in them; an epoch has six."""
LOSS = 1e-10
WEIGHTS = 1e-9

JOBS = ("cnn_fp64", "unet_fp64", "lstm_fp64", "gpt_fp64")
# Small buckets, so that there are several.
BUCKET = 8192
PIPELINES = [(schedule, microbatches) for schedule in ("gpipe", "1f1b") for microbatches in (4, 8)]
TWO_RANKS = [
    builders.strategy(dp=2, bucket_bytes=BUCKET),
    builders.strategy(dp=2, microbatches=2, bucket_bytes=BUCKET),
    *(builders.strategy(pp=2, schedule=schedule, microbatches=count) for schedule, count in PIPELINES),  # type: ignore[arg-type]
]
FOUR_RANKS = [
    *(builders.strategy(pp=4, schedule=schedule, microbatches=count) for schedule, count in PIPELINES),  # type: ignore[arg-type]
    builders.strategy(dp=2, pp=2, schedule="gpipe", microbatches=4, bucket_bytes=BUCKET),
    builders.strategy(dp=2, pp=2, schedule="1f1b", microbatches=4, bucket_bytes=BUCKET),
]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("job", "strategies", "steps"),
    [
        # Each strategy with one network, each network on 2 and on 4 ranks; in the sweeps, each with each.
        case
        for name, strategies in (("2 ranks", TWO_RANKS), ("4 ranks", FOUR_RANKS))
        for number, job in enumerate(JOBS)
        for case in few_and_many(f"{name}-{job}", dealt(strategies, number, len(JOBS)), strategies, STEPS, job)
    ],
)
def test_losses_of_any_plan_equal_one_process(
    job: str, strategies: Sequence[Strategy], steps: int, tmp_path: Path
) -> None:
    runs = [Run(job=job, strategy=strategy, steps=steps) for strategy in strategies]
    ranks = launch(train_all, (runs,), ranks=strategies[0].devices, log_dir=tmp_path, device="cpu")
    for number, run in enumerate(runs):
        compare(run, [rank[number] for rank in ranks])


@functools.cache
def plain_run(job: str, steps: int, replicas: int, microbatches: int) -> Reference:
    """The plain loop; schedules do not change it."""
    return train_plainly(make_job(job), steps, replicas=replicas, microbatches=microbatches)


def compare(run: Run, outcomes: Sequence[Outcome]) -> None:
    """Losses on every rank, the metric at the end (computed in fp32: 1e-6), and the weights that rank 0 gathered."""
    strategy = run.strategy
    reference = plain_run(run.job, run.steps, strategy.dp, strategy.microbatches)
    for outcome in outcomes:
        assert outcome.losses == pytest.approx(reference.losses, abs=LOSS), run.name
    assert outcomes[0].score == pytest.approx(evaluate_plainly(make_job(run.job), reference.model), abs=1e-6), run.name
    expected = reference.model.state_dict()
    found = outcomes[0].weights
    assert found.keys() == expected.keys(), run.name
    for name, tensor in expected.items():
        assert (found[name] - tensor).abs().max() <= WEIGHTS, f"{run.name}: {name}"
