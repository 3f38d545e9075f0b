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
REFUSED = [
    builders.strategy(pp=2, microbatches=2),
    builders.strategy(dp=2, sync="p2p"),
    builders.strategy(dp=2, zero=3),
]

Steps = list[tuple[float, float, float]]


def scaled(world: World) -> list[Steps]:
    """Loss, scale after the step and learning rate of each step."""
    found = []
    for strategy in STRATEGIES:
        executor = open_executor(world, Run(job="gpt_fp16", strategy=strategy, steps=STEPS), captured("gpt_fp16"))
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


def scaled_plainly(strategy: Strategy) -> Steps:
    """As PyTorch's documentation writes the loop with accumulation, over the microbatches of a strategy."""
    job = make_job("gpt_fp16")
    torch.manual_seed(job.seed)
    model = job.model()
    optimizer = job.optimizer(parameters_of(model))
    schedule = job.lr_schedule(optimizer)  # type: ignore[misc]
    scaler = torch.amp.GradScaler("cpu")
    found = []
    for parts in microbatches_of(job, STEPS, strategy.dp, strategy.microbatches):
        total = 0.0
        for inputs, target in parts:
            with torch.autocast("cpu", dtype=torch.float16):
                loss = job.loss(model(inputs), target) / len(parts)  # type: ignore[misc]
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
    ranks = launch(scaled, ranks=2, log_dir=tmp_path, device="cpu", captured=["gpt_fp16"])
    for number, strategy in enumerate(STRATEGIES):
        expected = scaled_plainly(strategy)
        left_out = sum(two[1] < one[1] for one, two in pairwise(expected))
        assert 2 < left_out < STEPS - 2
        for seen in (rank[number] for rank in ranks):
            assert [step[1:] for step in seen] == [step[1:] for step in expected]
            assert [step[0] for step in seen] == pytest.approx([step[0] for step in expected], rel=0.01)
