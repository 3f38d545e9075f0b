"""A step whose loss is not a finite number is skipped on every rank, as a plain loop skips its batch."""

import functools
import math
from pathlib import Path

import pytest
from tests import builders
from tests.distributed.jobs import make_job
from tests.distributed.skipping import refusals, train_plainly_skipping, train_skipping
from tests.distributed.training import Run
from tests.forks.client import launch
from tests.raising import raises
from torch import nn

from trimaran.base.errors import ExecutionError
from trimaran.features.training.session import init
from trimaran.program.gradients import parse_compression
from trimaran.program.strategy import Strategy
from trimaran.runtime.step.on_nan import MOST_SKIPPED, check_on_nan

STEPS = 30


@functools.cache
def plain(job: str) -> tuple[list[float], list[int], nn.Module]:
    return train_plainly_skipping(job, STEPS)


def run_of(strategy: Strategy, job: str = "torn_adam") -> Run:
    return Run(job=job, strategy=strategy, steps=STEPS)


def test_on_one_device_every_bit_is_that_of_a_plain_loop_that_skips_the_batch(tmp_path: Path) -> None:
    """AdamW with a schedule and clipping; two samples of 96 have a loss that is not a number."""
    ((losses, skipped, weights),) = launch(
        train_skipping, ([run_of(builders.strategy())],), ranks=1, log_dir=tmp_path, device="cpu"
    )[0]
    expected_losses, expected_skipped, model = plain("torn_adam")
    assert len(expected_skipped) >= STEPS // 6
    assert skipped == tuple(expected_skipped)
    assert [loss for loss in losses if math.isfinite(loss)] == [loss for loss in expected_losses if math.isfinite(loss)]
    assert [math.isfinite(loss) for loss in losses] == [math.isfinite(loss) for loss in expected_losses]
    for name, tensor in model.state_dict().items():
        assert tensor.equal(weights[name]), name


PLANS = [
    builders.strategy(dp=2),
    builders.strategy(dp=2, microbatches=2, bucket_bytes=1024),
    builders.strategy(dp=2, sync="p2p", bucket_bytes=1024),
    builders.strategy(dp=2, zero=1),
    builders.strategy(dp=2, zero=2),
    builders.strategy(dp=2, zero=3),
    builders.strategy(pp=2, schedule="1f1b", microbatches=4),
    builders.strategy(pp=2, schedule="zero-bubble", microbatches=4),
]


def test_under_any_plan_the_same_steps_are_skipped_on_every_rank(tmp_path: Path) -> None:
    """Losses to 1e-10, weights to 1e-9: sums are added in another order than in one process."""
    runs = [run_of(strategy) for strategy in PLANS]
    ranks = launch(train_skipping, (runs,), ranks=2, log_dir=tmp_path, device="cpu")
    expected_losses, expected_skipped, model = plain("torn_adam")
    for number, run in enumerate(runs):
        for losses, skipped, _ in (rank[number] for rank in ranks):
            assert skipped == tuple(expected_skipped), run.name
            assert losses == pytest.approx(expected_losses, abs=1e-10, nan_ok=True), run.name
        weights = ranks[0][number][2]
        for name, tensor in model.state_dict().items():
            assert (weights[name] - tensor).abs().max() <= 1e-9, f"{run.name}: {name}"


def test_ten_steps_in_a_row_end_the_run_all_the_same(tmp_path: Path) -> None:
    runs = [run_of(builders.strategy(dp=2), "never_finite"), run_of(builders.strategy(pp=2), "never_finite")]
    for found in launch(refusals, (runs,), ranks=2, log_dir=tmp_path, device="cpu"):
        assert found == [("loss.not-finite", MOST_SKIPPED - 1)] * 2


def test_what_cannot_be_honoured_is_refused() -> None:
    compressed = builders.strategy(dp=2, compression=parse_compression("powersgd:1"))
    with raises("on-nan.compressed"):
        check_on_nan("skip", compressed)
    with raises("on-nan.observed", observes="verify"):
        check_on_nan("skip", builders.strategy(dp=2), observes="verify")
    with raises("on-nan.no-checkpoint"):
        check_on_nan("rollback")
    with raises("on-nan.unknown", match="did you mean"):
        check_on_nan("skp")
    check_on_nan("stop", compressed, observes="verify")


def test_a_loop_of_your_own_skips_them_and_counts_them_in_no_mean() -> None:
    job = make_job("torn_adam")
    with init(job, on_nan="skip") as session:
        taken = [session.step(batch) for batch in session.shares()]
        loss = session.end_epoch(0, evaluate=False)["loss"]
        assert len(session.skipped) >= 1
        finite = [one for one in taken if math.isfinite(one)]
        assert len(finite) == len(taken) - len(session.skipped)
        assert loss == pytest.approx(sum(finite) / len(finite))


def test_without_the_option_the_first_one_ends_the_run() -> None:
    with init(make_job("torn_adam")) as session, raises("loss.not-finite", ExecutionError):
        for share in session.shares():
            session.step(share)
