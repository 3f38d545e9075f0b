"""What a training job may ask for besides: small last batches, clipping, schedules, other losses, precision.

Runs are compared with a plain loop in one process, as in `test_equal_losses`. Those that fit one world share it.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from tests import builders
from tests.distributed.jobs import make_job
from tests.distributed.reference import train_plainly
from tests.distributed.test_equal_losses import BUCKET, compare
from tests.distributed.training import Run, train_all
from tests.forks.client import launch
from tests.representative import dealt, some_and_rest

from trimaran.program.strategy import Strategy

REPLICAS = builders.strategy(dp=2, microbatches=2, bucket_bytes=BUCKET)
PIPELINE = builders.strategy(pp=2, schedule="1f1b", microbatches=4)
BOTH = builders.strategy(dp=2, pp=2, schedule="1f1b", microbatches=4, bucket_bytes=BUCKET)
# Enough for every epoch to end twice.
STEPS = 9

EXACT = (
    "cnn_ragged",
    "gpt_clipped",
    "gpt_weighted",
    "unet_tiny_end",
    "lstm_scheduled",
    "dictionary",
    "half_frozen",
    "lstm_unused",
)
ON_TWO = [Run(job=job, strategy=strategy, steps=STEPS) for job in EXACT for strategy in (REPLICAS, PIPELINE)]
ON_FOUR = [Run(job=job, strategy=BOTH, steps=STEPS) for job in EXACT[:4]]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "runs",
    [
        # Each feature on replicas or in a pipeline; with the rest, on both.
        *some_and_rest("2 ranks", [*dealt(ON_TWO, 0, 4), *dealt(ON_TWO, 3, 4)], ON_TWO),
        *some_and_rest("4 ranks", dealt(ON_FOUR, 0, 2), ON_FOUR),
    ],
)
def test_every_feature_equals_one_process(runs: list[Run], tmp_path: Path) -> None:
    ranks = launch(train_all, (runs,), ranks=runs[0].strategy.devices, log_dir=tmp_path, device="cpu")
    for number, run in enumerate(runs):
        compare(run, [rank[number] for rank in ranks])


@pytest.mark.sweep
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("strategy", "job"),
    [
        (REPLICAS, "dictionary"),
        (REPLICAS, "dictionary_ragged"),
        (PIPELINE, "dictionary_ragged"),
    ],
    ids=["replicas", "replicas, ragged", "pipeline, ragged"],
)
def test_compiled_models_and_segments_equal_one_process(strategy: Strategy, job: str, tmp_path: Path) -> None:
    """Also a batch of another size, which is compiled anew, and an evaluation. The compiler takes most of the time."""
    run = Run(job=job, strategy=replace(strategy, execution="compiled"), steps=STEPS)
    ranks = launch(train_all, ([run],), ranks=2, log_dir=tmp_path, device="cpu")
    compare(run, [rank[0] for rank in ranks])


def test_features_that_are_compared_do_something() -> None:
    """Otherwise the comparison above would show nothing: each changes the losses of the plain loop."""
    for name, plain in (("gpt_clipped", "gpt_fp64"), ("lstm_scheduled", "lstm_fp64"), ("gpt_weighted", "gpt_fp64")):
        losses = [train_plainly(make_job(job), 4, microbatches=2).losses[-1] for job in (name, plain)]
        assert abs(losses[0] - losses[1]) > 1e-4, name


@pytest.mark.timeout(300)
def test_other_precisions_follow_one_process(tmp_path: Path) -> None:
    """fp32: from equal weights the first two losses agree to rounding, 1e-5; later ones drift apart.

    bf16, with its mantissa of 8 bits: losses near 3 agree with those of fp32 to 2 %, and weights stay fp32.
    """
    runs = [
        Run(job=job, strategy=strategy, steps=2 if job in ("cnn", "gpt") else 6)
        for job in ("cnn", "gpt", "cnn_bf16", "gpt_bf16")
        for strategy in (REPLICAS, PIPELINE)
    ]
    ranks = launch(train_all, (runs,), ranks=2, log_dir=tmp_path, device="cpu")
    for number, run in enumerate(runs):
        found = ranks[0][number]
        plain = train_plainly(
            make_job(run.job), run.steps, replicas=run.strategy.dp, microbatches=run.strategy.microbatches
        )
        tolerance = {"rel": 0.02} if run.job.endswith("bf16") else {"abs": 1e-5}
        assert found.losses == pytest.approx(plain.losses, **tolerance), run.name
        assert found.losses == ranks[1][number].losses
        assert {str(tensor.dtype) for tensor in found.weights.values()} <= {"torch.float32", "torch.int64"}
        if run.job.endswith("bf16"):
            assert found.losses != pytest.approx(plain.losses, abs=1e-5)
