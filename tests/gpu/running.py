"""Runs of one device, on the GPU."""

import dataclasses
import itertools
import os
from typing import Any

import torch
from tests import builders
from tests.distributed.jobs import make_job

from trimaran.base.job import Job
from trimaran.graph.capture.capture import Capture, capture
from trimaran.launch.world import World
from trimaran.program.lowering.lower import lower, lower_evaluation
from trimaran.program.strategy import Execution
from trimaran.runtime.executor import Executor

DEVICE = os.environ.get("TRIMARAN_TEST_DEVICE", "cuda:0")
ON_GPU = DEVICE.startswith("cuda")


def open_executor(job: Job, *, execution: Execution = "eager", **options: Any) -> tuple[Executor, Capture]:
    """An executor for one device, and what it was made from."""
    made = capture(job)
    strategy = builders.strategy(execution=execution)
    batch = job.global_batch_size
    executor = Executor(
        job,
        strategy,
        lower(made.graph, strategy, batch=batch, clip=job.clip_norm is not None),
        lower_evaluation(made.graph, strategy, batch=batch),
        World(device=DEVICE),
        **options,
    )
    return executor, made


def train(job: Job, steps: int, *, execution: Execution = "eager") -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses of some steps, and the weights after them."""
    executor, _ = open_executor(job, execution=execution)
    losses = take_steps(executor, steps)
    weights = executor.weights()
    executor.close()
    return losses, weights


def take_steps(executor: Executor, steps: int) -> list[float]:
    """Train for some steps, epoch after epoch."""
    feed = executor.feed()
    shares = (share for _ in itertools.count() for share in feed.shares())
    return [executor.step(share) for share in itertools.islice(shares, steps)]


def zoo_job(name: str, **changes: Any) -> Job:
    """A job of the zoo with changes."""
    return dataclasses.replace(make_job(name), **changes)
