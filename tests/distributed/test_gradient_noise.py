"""The norms that a run notes are those of a plain loop that computes each piece's gradient alone: in fp64 to 1e-9."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from tests import builders
from tests.distributed.jobs import make_job
from tests.distributed.reference import _batches, _loss
from tests.distributed.training import Run, captured, open_executor, take_steps
from tests.forks.client import launch
from torch import nn

from trimaran.base.job import Job
from trimaran.convergence.noise_scale import StepNorms
from trimaran.launch.world import World
from trimaran.program.strategy import Strategy

STEPS = 4
BUCKET = 8192
ONE_RANK = [Run(job="cnn_fp64", strategy=builders.strategy(microbatches=3), steps=STEPS)]
TWO_RANKS = [
    Run(job="cnn_fp64", strategy=builders.strategy(dp=2, bucket_bytes=BUCKET), steps=STEPS),
    # Uneven pieces, and at last a smaller batch.
    Run(job="cnn_ragged", strategy=builders.strategy(dp=2, microbatches=3, bucket_bytes=BUCKET), steps=STEPS),
    # A weight used twice, a loss that is (sum, weight), and clipping far below the norms.
    Run(job="gpt_weighted", strategy=builders.strategy(dp=2, microbatches=2, bucket_bytes=BUCKET), steps=STEPS),
    Run(job="gpt_clipped", strategy=builders.strategy(dp=2, sync="p2p", bucket_bytes=BUCKET), steps=STEPS),
    Run(job="gpt_adamw", strategy=builders.strategy(dp=2, zero=1, bucket_bytes=BUCKET), steps=STEPS),
    Run(job="lstm_unused", strategy=builders.strategy(dp=2, bucket_bytes=BUCKET), steps=STEPS),
    Run(job="half_frozen", strategy=builders.strategy(dp=2, microbatches=2, bucket_bytes=BUCKET), steps=STEPS),
    # Stages of a pipeline add their squares up.
    Run(job="lstm_fp64", strategy=builders.strategy(pp=2, schedule="1f1b", microbatches=4), steps=STEPS),
    Run(job="unet_fp64", strategy=builders.strategy(pp=2, schedule="gpipe", microbatches=2), steps=STEPS),
]
FOUR_RANKS = [
    Run(
        job="cnn_ragged",
        strategy=builders.strategy(dp=2, pp=2, schedule="1f1b", microbatches=2, bucket_bytes=BUCKET),
        steps=STEPS,
    )
]


def observe_all(world: World, runs: list[Run]) -> list[tuple[StepNorms, ...]]:
    """What each run notes, asked for in the middle and at the end."""
    found = []
    for run in runs:
        executor = open_executor(world, run, captured(run.job), gradient_noise=1)
        take_steps(executor, run.steps, lambda step, loss: step == 2 and executor.observations())  # noqa: B023
        found.append(executor.observations())
        executor.close()
    return found


@pytest.mark.timeout(240)
@pytest.mark.parametrize("runs", [ONE_RANK, TWO_RANKS, FOUR_RANKS], ids=["1 rank", "2 ranks", "4 ranks"])
def test_norms_equal_those_of_a_plain_loop(runs: Sequence[Run], tmp_path: Path) -> None:
    ranks = launch(observe_all, (list(runs),), ranks=runs[0].strategy.devices, log_dir=tmp_path, device="cpu")
    for number, run in enumerate(runs):
        expected = list(_observe_plainly(make_job(run.job), run.strategy))
        for rank in ranks:
            assert [one.step for one in rank[number]] == list(range(STEPS)), run.name
            for one, wanted in zip(rank[number], expected, strict=True):
                assert one.samples == wanted.samples, run.name
                assert one.share == pytest.approx(wanted.share, rel=1e-12), run.name
                assert one.pieces == pytest.approx(wanted.pieces, rel=1e-9), run.name
                assert one.whole == pytest.approx(wanted.whole, rel=1e-9), run.name


@pytest.mark.timeout(120)
def test_in_bf16_norms_are_taken_of_fp32_gradients(tmp_path: Path) -> None:
    """Autocast rounds activations to 8 bits: norms within 5 % of fp32's, and no two of them to 3 digits only."""
    run = Run(job="cnn_bf16", strategy=builders.strategy(dp=2, microbatches=2), steps=1)
    (one,) = launch(observe_all, ([run],), ranks=2, log_dir=tmp_path, device="cpu")[0][0]
    (wanted,) = _observe_plainly(make_job("cnn"), run.strategy, steps=1)
    assert one.pieces == pytest.approx(wanted.pieces, rel=0.05)
    assert one.whole == pytest.approx(wanted.whole, rel=0.05)
    assert one.share == pytest.approx(0.25)


@pytest.mark.timeout(120)
def test_norms_as_the_optimizer_scales_them(tmp_path: Path) -> None:
    """By the mean squares of the steps before, from step 10 on; unknown where a rank has not all of them."""
    runs = [
        Run(job="gpt_adamw", strategy=builders.strategy(dp=2, microbatches=2, bucket_bytes=BUCKET), steps=12),
        Run(job="gpt_adamw", strategy=builders.strategy(dp=2, zero=1, bucket_bytes=BUCKET), steps=12),
        Run(job="gpt_fp64", strategy=builders.strategy(dp=2, bucket_bytes=BUCKET), steps=12),
    ]
    adam, shared, plain = launch(observe_all, (runs,), ranks=2, log_dir=tmp_path, device="cpu")[0]
    expected = list(_observe_plainly(make_job("gpt_adamw"), runs[0].strategy, 12))
    assert all(one.scaled is None for one in adam[:10])
    for one, wanted in zip(adam[10:], expected[10:], strict=True):
        assert one.scaled == pytest.approx(wanted.scaled, rel=1e-7)
    assert all(one.scaled is None for one in (*shared, *plain))


def _observe_plainly(job: Job, strategy: Strategy, steps: int = STEPS) -> Iterator[StepNorms]:
    torch.manual_seed(job.seed)
    dtype = torch.float64 if job.precision == "fp64" else torch.float32
    model = job.model().to(dtype)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = job.optimizer(model.parameters())
    for number, indices in enumerate(_batches(job, steps)):
        parts = min(strategy.microbatches, len(indices) // strategy.dp)
        shares = [
            part for share in torch.tensor(indices).tensor_split(strategy.dp) for part in share.tensor_split(parts)
        ]
        sums = [_loss(job, model, part.tolist(), dtype) for part in shares]
        total = sum(weight for _, weight in sums)
        pieces = [torch.autograd.grad(loss / total, trained, allow_unused=True) for loss, _ in sums]
        for parameter, *gradients in zip(trained, *pieces, strict=True):
            parameter.grad = None if gradients[0] is None else torch.stack(gradients).sum(0)
        yield StepNorms(
            step=number,
            samples=len(indices),
            share=sum((weight / total) ** 2 for _, weight in sums),
            pieces=sum(_square(piece) for piece in pieces),
            whole=_square([parameter.grad for parameter in trained]),
            scaled=_scaled(optimizer, trained, pieces),
        )
        if job.clip_norm is not None:
            nn.utils.clip_grad_norm_(trained, job.clip_norm)
        optimizer.step()
        optimizer.zero_grad()


def _square(gradients: Sequence[torch.Tensor | None]) -> float:
    return sum(float(gradient.double().square().sum()) for gradient in gradients if gradient is not None)


def _scaled(
    optimizer: torch.optim.Optimizer, trained: list[nn.Parameter], pieces: Sequence[Sequence[torch.Tensor]]
) -> tuple[float, float] | None:
    """Squares over √v and a hundredth of its root mean square, with v as Adam keeps it; None before it does."""
    if "exp_avg_sq" not in optimizer.state.get(trained[0], {}):
        return None
    sums = [0.0, 0.0]
    for parameter, *gradients in zip(trained, *pieces, strict=True):
        state = optimizer.state[parameter]
        mean_square = state["exp_avg_sq"] / (1.0 - 0.999 ** float(state["step"]))
        scale = mean_square.sqrt() + 1e-8 + 0.01 * mean_square.mean().sqrt()
        sums[0] += sum(float((gradient.square() / scale).sum()) for gradient in gradients)
        sums[1] += float((parameter.grad.square() / scale).sum())
    return sums[0], sums[1]
