"""One rank's part in trying the three remedies: each case for a few seconds, one after the other, steps timed.

Cases of "replicate-and-scatter" run the star of `reproduce_feeding_star`; those of "ddp" are ordinary plans, run by the
runtime with the feeding and the compression that they say. Imports torch.
"""

import itertools
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from trimaran.costs.replicate import Remedies
from trimaran.graph.sample import make_model
from trimaran.job import Job
from trimaran.program import Program, Strategy
from trimaran.runtime.executor import Executor
from trimaran.runtime.world import World
from trimaran.session.measured_exchange import agree_on_steps
from trimaran.session.reproduce_feeding_jobs import fed_job
from trimaran.session.reproduce_feeding_star import Star

WARM_UP = 6
"""Steps before those that are timed: what workers made before the first is used up."""

LEAST_STEPS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedCase:
    """What a rank is to run.

    Attributes:
        key: by which its times are kept
        remedies: of the star; None for a plan
        workers: of the star, where it loads ahead
        strategy: of a plan
        programs: of its training step and its evaluation
    """

    key: str
    remedies: Remedies | None = None
    workers: int = 0
    strategy: Strategy | None = None
    programs: tuple[Program, Program] | None = None


Tried = Mapping[str, Mapping[str, Sequence[float]]]
"""Seconds of steps, by job and case."""


def try_remedies(world: World, wanted: Mapping[str, Sequence[TriedCase]], steps: int) -> Tried:
    """Run every case of every job.

    Args:
        world: this rank; all ranks call this with the same arguments
        wanted: cases by job
        steps: timed at least, where they do not take long
    """
    found: dict[str, dict[str, Sequence[float]]] = {}
    cases = [(name, case) for name, of_job in wanted.items() for case in of_job]
    for number, (name, case) in enumerate(cases):
        if world.rank == 0:
            world.report({"measuring": f"{name}, {case.key}", "done": number, "total": len(cases)})
        found.setdefault(name, {})[case.key] = _try(world, fed_job(name), case, steps)
    return found


def _try(world: World, job: Job, case: TriedCase, steps: int) -> tuple[float, ...]:
    if case.strategy is None or case.programs is None:
        star = Star(job, world, case.remedies or Remedies(), workers=case.workers)
        try:
            return _time(world, star.step, steps)
        finally:
            star.close()
    program, evaluation = case.programs
    executor = Executor(job, case.strategy, program, evaluation, world, model=make_model(job))
    executor.recording = False
    shares = _endless(executor)
    try:
        return _time(world, lambda: executor.step(next(shares)), steps)
    finally:
        shares.close()
        executor.close()


def _endless(executor: Executor) -> Generator[Any]:
    feed = executor.feed()
    while True:
        yield from feed.shares()


def _time(world: World, step: Callable[[], float], steps: int) -> tuple[float, ...]:
    """Seconds of steps that follow one another, as this rank's clock has them."""
    dist.barrier()
    started = time.perf_counter()
    for _ in range(WARM_UP):
        step()
    slow_s = (time.perf_counter() - started) / WARM_UP
    count = max(LEAST_STEPS, min(steps, 4 * agree_on_steps(world, slow_s)))
    starts = [time.perf_counter()]
    for _ in range(count):
        step()
        starts.append(time.perf_counter())
    return tuple(after - before for before, after in itertools.pairwise(starts))
