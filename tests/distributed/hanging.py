"""What ranks do in the tests of hangs: a training in which one rank gets stuck, slow, or busy elsewhere."""

import ctypes
import dataclasses
import os
import signal
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from tests import builders
from tests.distributed.training import Run, captured, open_executor, take_steps

from trimaran.base.timeline import Timeline
from trimaran.launch.activity import ACTIVITY
from trimaran.launch.world import World

STUCK_AT = 4
"""Number of a step."""


def loop_for_ever() -> None:
    while True:
        pass


def keep_the_interpreter() -> None:
    """Sleep in C without letting another thread of Python run."""
    ctypes.PyDLL(None).sleep(600)


def stop_itself() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def wait_alone() -> None:
    """Enter a collective that the other ranks do not know of."""
    dist.barrier()


FAULTS: dict[str, Callable[[], None]] = {
    "loop": loop_for_ever,
    "interpreter": keep_the_interpreter,
    "stopped": stop_itself,
    "collective": wait_alone,
}


def train_and_stick(world: World, run: Run, fault: str, sticking: int, at: int = STUCK_AT) -> None:
    """Train, and on one rank get stuck in the forward of a step."""
    world.report({"pids": [os.getpid()]})
    executor = open_executor(world, run, captured(run.job))

    def stick(module: torch.nn.Module, arguments: object) -> None:
        if executor.steps == at and world.rank == sticking:
            FAULTS[fault]()

    next(iter(executor.model.children())).register_forward_pre_hook(stick)
    take_steps(executor, run.steps, lambda step, loss: world.report({"step": step}))


def stop_before_training(world: World, stopping: int) -> None:
    """Wait for each other, one of them stopped, before any step."""
    world.report({"pids": [os.getpid()]})
    if world.rank == stopping:
        stop_itself()
    with ACTIVITY.waiting("the others"):
        dist.barrier()


def be_slow_elsewhere(world: World, run: Run, seconds: float) -> list[float]:
    """Train, with a long evaluation, and a long pause on one rank between two steps."""
    executor = open_executor(world, run, captured(run.job))

    def pause(step: int, loss: float) -> None:
        if step == STUCK_AT and world.rank == 1:
            time.sleep(seconds)

    losses = take_steps(executor, run.steps, pause)
    with ACTIVITY.during("evaluation"):
        time.sleep(seconds)
        executor.agreement.gather_integers([0], "the end")
    return losses


def plain_run(steps: int, **options: int) -> Run:
    return Run(job="lstm_fp64", strategy=dataclasses.replace(builders.strategy(dp=2), **options), steps=steps)


def train_recorded(world: World, run: Run) -> Timeline:
    """The timeline of a training, on rank 0."""
    world.report({"pids": [os.getpid()]})
    executor = open_executor(world, run, captured(run.job))
    take_steps(executor, run.steps, lambda step, loss: world.report({"step": step}))
    return executor.timeline()
