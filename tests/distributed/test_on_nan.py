"""A step whose loss is not a finite number is skipped on every rank, as a plain loop skips its batch."""

import functools
import math
from pathlib import Path

import pytest
from tests import builders
from tests.distributed.jobs import make_job
from tests.distributed.skipping import (
    refusals,
    train_plainly_rolling_back,
    train_plainly_skipping,
    train_rolling_back,
    train_skipping,
)
from tests.distributed.training import Run
from tests.forks.client import launch
from tests.raising import raises
from torch import nn

from trimaran.base.errors import ExecutionError
from trimaran.features.training.session import init
from trimaran.program.gradients import parse_compression
from trimaran.program.strategy import Strategy
from trimaran.runtime.step.on_nan import MOST_ROLLBACKS, MOST_SKIPPED, check_on_nan

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
    with raises("on-nan.observed", observes="gradient_noise"):
        check_on_nan("rollback", builders.strategy(dp=2), observes="gradient_noise")
    check_on_nan("rollback", compressed)
    with raises("on-nan.no-checkpoint", match="session.roll_back"):
        init(make_job("torn_adam"), on_nan="rollback")
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


# ---------------------------------------------------------------------------------------------------------------------
# Back to the last checkpoint

EVERY = 2


@pytest.mark.sweep
def test_under_any_plan_the_same_batches_are_left_out_after_going_back(tmp_path: Path) -> None:
    """Weights to 1e-9 of a plain loop that puts a copy back; with compression all ranks go back alike."""
    compressed = builders.strategy(dp=2, compression=parse_compression("powersgd:1"))
    runs = [run_of(strategy, "torn_epochs") for strategy in (*PLANS, compressed)]
    folder = tmp_path / "saved"
    ranks = launch(train_rolling_back, (runs, EVERY, str(folder)), ranks=2, log_dir=tmp_path, device="cpu")
    expected = train_plainly_rolling_back("torn_epochs", EVERY)
    assert len(expected.rollbacks) >= 5
    assert max(one.batches for one in expected.rollbacks) > 1
    assert len({one.step for one in expected.rollbacks}) > 3
    for number, run in enumerate(runs):
        for found in (rank[number] for rank in ranks):
            assert found.error == "", run.name
            assert found.steps == expected.steps, run.name
            assert found.rollbacks == found.again == expected.rollbacks, run.name
        found = ranks[0][number]
        assert all(tensor.isfinite().all() for tensor in found.weights.values())
        if run.strategy.compression is None:
            assert found.losses == pytest.approx(expected.losses, abs=1e-10, nan_ok=True), run.name
            for name, tensor in expected.weights.items():
                assert (found.weights[name] - tensor).abs().max() <= 1e-9, f"{run.name}: {name}"


def test_a_checkpoint_that_always_leads_there_ends_the_run(tmp_path: Path) -> None:
    runs = [run_of(builders.strategy(dp=2), "never_finite"), run_of(builders.strategy(pp=2), "never_finite")]
    folder = str(tmp_path / "saved")
    for rank in launch(train_rolling_back, (runs, EVERY, folder), ranks=2, log_dir=tmp_path, device="cpu"):
        for found in rank:
            assert found.error == "loss.rolled-back-too-often"
            assert [(one.step, one.to) for one in found.rollbacks] == [(0, 0)] * MOST_ROLLBACKS


def test_a_loop_of_your_own_goes_back_by_a_call(tmp_path: Path) -> None:
    job = make_job("torn_epochs")
    with init(job, on_nan="skip") as session:
        session.save_checkpoint(tmp_path)
        for batch in session.batches():
            if session.epoch:
                break
            if not math.isfinite(session.step(batch)):
                made = session.roll_back(tmp_path)
                assert (made.to, session.steps) == (0, 0)
                assert not session.skipped
        assert session.rolled_back
