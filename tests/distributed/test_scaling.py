"""In fp16 the steps that are left out are those that `torch.amp.GradScaler` leaves out in a plain loop, on every rank.

Losses to 1 %: gradients are rounded to 11 bits, in another order of sums.
"""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from tests import builders
from tests.distributed.jobs import make_job
from tests.distributed.reference import microbatches_of, parameters_of
from tests.distributed.training import Run, captured, open_executor, take_steps
from tests.forks.client import launch
from tests.raising import raises
from torch import nn

from trimaran.launch.world import World
from trimaran.program.strategy import Strategy

STEPS = 12
STRATEGIES = [
    builders.strategy(dp=2, bucket_bytes=8192),
    builders.strategy(dp=2, microbatches=2, bucket_bytes=8192),
    builders.strategy(dp=2, zero=1, bucket_bytes=8192),
]
RUNS = [*(("gpt_fp16", strategy) for strategy in STRATEGIES), ("gpt_fp16_ignoring", STRATEGIES[1])]
REFUSED = [
    builders.strategy(pp=2, microbatches=2),
    builders.strategy(dp=2, sync="p2p"),
    builders.strategy(dp=2, zero=3),
]

Steps = list[tuple[float, float, float]]


def scaled(world: World) -> list[Steps]:
    """Loss, scale after the step and learning rate of each step."""
    found = []
    for name, strategy in RUNS:
        executor = open_executor(world, Run(job=name, strategy=strategy, steps=STEPS), captured(name))
        seen: Steps = []

        def note(step: int, loss: float, executor=executor, seen=seen) -> None:  # type: ignore[no-untyped-def]
            (group,) = executor.updater.optimizer.param_groups
            seen.append((loss, executor.scaler.scaler.get_scale(), group["lr"]))

        take_steps(executor, STEPS, note)
        assert executor.scaler is not None
        assert executor.scaler.skipped == sum(
            now < before for before, now in pairwise([2.0**16, *(step[1] for step in seen)])
        )
        found.append(seen)
        executor.close()
    for strategy in REFUSED:
        with raises("strategy.cannot-update", match="fp16", strategy=strategy.name):
            open_executor(world, Run(job="gpt_fp16", strategy=strategy, steps=1), captured("gpt_fp16"))
    return found


def scaled_plainly(name: str, strategy: Strategy) -> Steps:
    """As PyTorch's documentation writes the loop with accumulation, over the microbatches of a strategy."""
    job = make_job(name)
    weigh = job.loss_weight or (lambda batch: len(batch[1]))
    torch.manual_seed(job.seed)
    model = job.model()
    optimizer = job.optimizer(parameters_of(model))
    schedule = job.lr_schedule(optimizer)  # type: ignore[misc]
    scaler = torch.amp.GradScaler("cpu")
    found = []
    for parts in microbatches_of(job, STEPS, strategy.dp, strategy.microbatches):
        total = 0.0
        weights = [float(weigh(part)) for part in parts]
        for (inputs, target), weight in zip(parts, weights, strict=True):
            with torch.autocast("cpu", dtype=torch.float16):
                loss = job.loss(model(inputs), target) * weight / sum(weights)  # type: ignore[misc]
            scaler.scale(loss).backward()
            total += loss.item()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), job.clip_norm)  # type: ignore[arg-type]
        scaler.step(optimizer)
        before = scaler.get_scale()
        scaler.update()
        optimizer.zero_grad()
        if scaler.get_scale() >= before:
            schedule.step()
        found.append((total, scaler.get_scale(), optimizer.param_groups[0]["lr"]))
    return found


@pytest.mark.timeout(120)
def test_steps_are_left_out_as_in_a_plain_loop(tmp_path: Path) -> None:
    ranks = launch(scaled, ranks=2, log_dir=tmp_path, device="cpu", captured=["gpt_fp16", "gpt_fp16_ignoring"])
    for number, run in enumerate(RUNS):
        expected = scaled_plainly(*run)
        left_out = sum(two[1] < one[1] for one, two in pairwise(expected))
        assert 2 < left_out < STEPS - 2
        for seen in (rank[number] for rank in ranks):
            assert [step[1:] for step in seen] == [step[1:] for step in expected]
            assert [step[0] for step in seen] == pytest.approx([step[0] for step in expected], rel=0.01)
