"""What a training job may ask for besides: small last batches, clipping, schedules, other losses, precision.

Runs are compared with a plain loop in one process, as in `test_equal_losses`. Those that fit one world share it.
"""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.distributed.jobs import make_job
from tests.distributed.reference import train_plainly
from tests.distributed.test_equal_losses import BUCKET, compare
from tests.distributed.training import Run, train_all

from trimaran.program.types import Strategy
from trimaran.runtime.ranks import launch

REPLICAS = Strategy(dp=2, microbatches=2, bucket_bytes=BUCKET)
PIPELINE = Strategy(pp=2, schedule="1f1b", microbatches=4)
BOTH = Strategy(dp=2, pp=2, schedule="1f1b", microbatches=4, bucket_bytes=BUCKET)
# Enough for every epoch to end twice.
STEPS = 9

EXACT = (
    "cnn_ragged",
    "unet_tiny_end",
    "gpt_clipped",
    "lstm_scheduled",
    "gpt_weighted",
    "dictionary",
    "half_frozen",
)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("strategies", [(REPLICAS, PIPELINE), (BOTH,)], ids=["2 ranks", "4 ranks"])
def test_every_feature_equals_one_process(strategies: tuple[Strategy, ...], tmp_path: Path) -> None:
    runs = [Run(job=job, strategy=strategy, steps=STEPS) for strategy in strategies for job in EXACT]
    ranks = launch(train_all, (runs,), ranks=strategies[0].devices, log_dir=tmp_path, device="cpu")
    for number, run in enumerate(runs):
        compare(run, [rank[number] for rank in ranks])


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_compiled_models_and_segments_equal_one_process(tmp_path: Path) -> None:
    """Also a batch of another size, and an evaluation. The compiler takes most of the time."""
    runs = [
        Run(job="dictionary_ragged", strategy=replace(strategy, execution="compiled"), steps=STEPS)
        for strategy in (REPLICAS, PIPELINE)
    ]
    ranks = launch(train_all, (runs,), ranks=2, log_dir=tmp_path, device="cpu")
    for number, run in enumerate(runs):
        compare(run, [rank[number] for rank in ranks])


def test_features_that_are_compared_do_something() -> None:
    """Otherwise the comparison above would show nothing: each changes the losses of the plain loop."""
    for name, plain in (("gpt_clipped", "gpt_fp64"), ("lstm_scheduled", "lstm_fp64"), ("gpt_weighted", "gpt_fp64")):
        losses = [train_plainly(make_job(job), 4, microbatches=2).losses[-1] for job in (name, plain)]
        assert abs(losses[0] - losses[1]) > 1e-4, name


@pytest.mark.timeout(180)
def test_fp32_starts_like_one_process(tmp_path: Path) -> None:
    """From equal weights the first losses agree to fp32's rounding, 1e-5; later ones drift apart."""
    runs = [Run(job=job, strategy=strategy, steps=2) for job in ("cnn", "gpt") for strategy in (REPLICAS, PIPELINE)]
    ranks = launch(train_all, (runs,), ranks=2, log_dir=tmp_path, device="cpu")
    for number, run in enumerate(runs):
        plain = train_plainly(make_job(run.job), 2, replicas=run.strategy.dp, microbatches=run.strategy.microbatches)
        assert ranks[1][number].losses == pytest.approx(plain.losses, abs=1e-5), run.name


@pytest.mark.timeout(180)
def test_bf16_follows_fp32(tmp_path: Path) -> None:
    """bfloat16 has 8 bits of mantissa: losses near 3 agree to 2 %, and weights stay fp32."""
    runs = [
        Run(job=job, strategy=strategy, steps=6)
        for job in ("cnn_bf16", "gpt_bf16")
        for strategy in (REPLICAS, PIPELINE)
    ]
    ranks = launch(train_all, (runs,), ranks=2, log_dir=tmp_path, device="cpu")
    for number, run in enumerate(runs):
        plain = train_plainly(make_job(run.job), 6, replicas=run.strategy.dp, microbatches=run.strategy.microbatches)
        assert ranks[0][number].losses == pytest.approx(plain.losses, rel=0.02), run.name
        assert ranks[0][number].losses != plain.losses
        assert {str(tensor.dtype) for tensor in ranks[0][number].weights.values()} <= {"torch.float32", "torch.int64"}
