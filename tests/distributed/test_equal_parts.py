"""In fp64, networks in parts equal one process: placements drawn by chance, several segments a rank, divided backwards.

Each placement deals the stretches of a graph out to ranks at random, so that parts read from several others, feed
several others, and feed each other on one rank. Losses are equal to 1e-10 over some steps, and weights after them to
1e-9; the metric is that of the trained network on all its data. One world runs everything of its size.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests import builders
from tests.distributed.test_equal_losses import BUCKET, compare
from tests.distributed.training import Run, train_all
from tests.forks.client import launch
from tests.representative import dealt, some_and_rest

from trimaran.program.strategy import Strategy

STEPS = 3
# Weights shared by parts (gpt), long skips (unet), running statistics and branches (cnn), tuples (lstm), late data.
JOBS = ("cnn_fp64", "unet_fp64", "lstm_fp64", "gpt_clipped", "dictionary")


def runs(job: str, *chosen: tuple[Strategy, int | None, tuple[float, ...]]) -> list[Run]:
    return [Run(job=job, strategy=strategy, steps=STEPS, draw=draw, cut=cut) for strategy, draw, cut in chosen]


def on_two_ranks(job: str, seed: int) -> list[Run]:
    return runs(
        job,
        (builders.strategy(pp=2), seed, ()),
        (builders.strategy(pp=2, microbatches=4), seed + 1, ()),
        (builders.strategy(pp=2, schedule="interleaved", chunks=2, microbatches=4), None, ()),
        (builders.strategy(pp=2, schedule="zero-bubble", microbatches=4), None, (0.3,)),
        (builders.strategy(pp=2, schedule="1f1b", microbatches=4), None, (0.8,)),
        (builders.strategy(pp=2, schedule="gpipe", microbatches=4), None, (0.8,)),
    )


def on_four_ranks(job: str, seed: int) -> list[Run]:
    chosen = runs(
        job,
        (builders.strategy(pp=4), seed, ()),
        (builders.strategy(pp=4, schedule="zero-bubble", microbatches=4), None, (0.1, 0.3, 0.8)),
        (builders.strategy(dp=2, pp=2, microbatches=2, bucket_bytes=BUCKET), seed + 1, ()),
        (
            builders.strategy(dp=2, pp=2, schedule="interleaved", chunks=2, microbatches=2, bucket_bytes=BUCKET),
            None,
            (),
        ),
        (builders.strategy(dp=2, pp=2, schedule="zero-bubble", microbatches=2, bucket_bytes=BUCKET), None, (0.6,)),
    )
    if job in ("cnn_fp64", "gpt_clipped"):
        chosen += runs(job, (builders.strategy(pp=4, schedule="interleaved", chunks=2, microbatches=4), None, ()))
    return chosen


def _cases() -> list[object]:
    """Each strategy with one network or two, and each network; with the rest, each with each."""
    cases: list[object] = []
    for ranks, make in ((2, on_two_ranks), (4, on_four_ranks)):
        by_job = [make(job, 10 * number) for number, job in enumerate(JOBS)]
        some = [run for number, runs in enumerate(by_job) for run in dealt(runs, number, len(JOBS))]
        cases += some_and_rest(str(ranks), some, [run for runs in by_job for run in runs], ranks)
    return cases


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("ranks", "chosen"), _cases())
def test_networks_in_parts_equal_one_process(ranks: int, chosen: Sequence[Run], tmp_path: Path) -> None:
    outcomes = launch(train_all, (chosen,), ranks=ranks, log_dir=tmp_path, device="cpu")
    for number, run in enumerate(chosen):
        compare(run, [outcome[number] for outcome in outcomes])
