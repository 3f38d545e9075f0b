"""Measures two exchanges of gradients on one rank: the costs of operations, then steps with both exchanges in turn.

    capture, measure costs of operations, updates and transfers               for the prediction
    a few steps of each exchange                                              warm-up
    round 0   all-reduce recorded   all-reduce   p2p recorded   p2p           each a block of steps, of which all but
    round 1   p2p   all-reduce recorded   all-reduce   p2p recorded           the two at its ends are timed
    ...

Slow changes of the machine affect all four alike. Steps are timed by a separate clock, with recording on and off, so
that the cost of recording is measured. Imports torch.
"""

import functools
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from trimaran.base.job import Job
from trimaran.base.timeline import Timeline
from trimaran.graph.capture.capture import Capture, capture
from trimaran.graph.types import Graph
from trimaran.launch.world import World
from trimaran.measure.findings import Findings
from trimaran.measure.rank import measure_on_rank
from trimaran.measure.wanted import Wanted, WholeRun
from trimaran.pricing.tables import CurveKey
from trimaran.pricing.transfers import HOST_COLLECTIVE, QUEUED
from trimaran.program.lowering.lower import lower, lower_evaluation
from trimaran.program.strategy import Strategy
from trimaran.program.types import Kind
from trimaran.runtime.executor import Executor
from trimaran.user_code.model import make_model
from trimaran_studies.reproduce.dgx1_networks import BATCH, studied_job
from trimaran_studies.reproduce.step_split import Block, TimedStep

BLOCK = 6
"""Timed steps of a block; one more step runs before them, and one after."""

_WARM_UP = 3
_BOX_S = 1.0
_LEAST_S = 1.0
_MOST_STEPS = 360


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSteps:
    """The steps of one exchange on a rank.

    Attributes:
        recorded: blocks of steps with recording on, one a round
        plain: blocks with recording off
        timeline: of the recorded blocks, on rank 0
    """

    recorded: tuple[Block, ...]
    plain: tuple[Block, ...]
    timeline: Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFindings:
    """Measurements of one network on a rank.

    Attributes:
        graph: the network's
        findings: measured costs
        steps: by the exchange's `Sync`
    """

    graph: Graph
    findings: Findings
    steps: Mapping[str, RankSteps]


def strategies(devices: int) -> tuple[Strategy, ...]:
    """The two exchanges: all-reduces of DDP's buckets, and an owner for every parameter, as in MXNet's KVStore."""
    return Strategy(dp=devices), Strategy(dp=devices, sync="p2p", bucket_bytes=1)


def measure_exchanges(world: World, names: Sequence[str], steps: int) -> list[RankFindings]:
    """Measure networks one after the other.

    Args:
        world: this rank; all ranks call this with the same arguments
        names: of `STUDIED_FORMS`
        steps: minimum number of timed steps of each exchange with recording on; the same number with it off
    """
    found = []
    for number, name in enumerate(names):
        if world.rank == 0:
            world.report({"measuring": name, "done": number, "total": len(names)})
        found.append(_measure(world, name, steps))
    return found


def _measure(world: World, name: str, steps: int) -> RankFindings:
    make = functools.partial(studied_job, name, devices=world.size)
    job = make()
    captured = capture(job)
    kinds = [str(Kind.ALL_REDUCE), str(Kind.BROADCAST), f"{Kind.BROADCAST}{QUEUED}", f"{Kind.REDUCE}{QUEUED}"]
    curves = [*(CurveKey(kind, world.size) for kind in kinds), CurveKey(HOST_COLLECTIVE, 2)]
    wanted = Wanted(
        passes=(BATCH,),
        wholes=(WholeRun(form="replicated", execution="eager", batch=BATCH),),
        update=True,
        curves=tuple(curves),
        interference=(kinds[0], kinds[-1]),
        between=world.device == "cpu",
    )
    findings = measure_on_rank(world, make, captured.graph.digest, wanted, captured=captured, box_s=_BOX_S)
    return RankFindings(graph=captured.graph, findings=findings, steps=_run(world, job, captured, steps))


def _run(world: World, job: Job, captured: Capture, steps: int) -> dict[str, RankSteps]:
    executors: dict[str, Executor] = {
        strategy.sync: _executor(world, job, captured, strategy) for strategy in strategies(world.size)
    }
    shares = {sync: _endless(executor) for sync, executor in executors.items()}
    seconds = 0.0
    for sync, executor in executors.items():
        executor.recording = False
        seconds += max(step.seconds for step in _block(executor, shares[sync], _WARM_UP))
    rounds = -(-max(steps, agree_on_steps(world, seconds / len(executors))) // BLOCK)
    blocks: dict[tuple[str, bool], list[Block]] = {key: [] for key in itertools.product(executors, (True, False))}
    order = list(blocks)
    for _ in range(rounds):
        for sync, recording in order:
            executors[sync].recording = recording
            blocks[sync, recording].append(_block(executors[sync], shares[sync], BLOCK))
        order = [*order[-1:], *order[:-1]]
    found = {
        sync: RankSteps(
            recorded=tuple(blocks[sync, True]), plain=tuple(blocks[sync, False]), timeline=executor.timeline()
        )
        for sync, executor in executors.items()
    }
    for executor in executors.values():
        executor.close()
    return found


def agree_on_steps(world: World, seconds: float) -> int:
    """The number of steps that is enough for a median; the same on every rank.

    Args:
        world: this rank; all ranks call this
        seconds: time of a step on this rank [s]
    """
    slowest = torch.tensor([seconds], dtype=torch.float64, device=world.device)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return min(_MOST_STEPS, int(_LEAST_S / float(slowest)))


def _executor(world: World, job: Job, captured: Capture, strategy: Strategy) -> Executor:
    graph, batch = captured.graph, job.global_batch_size
    return Executor(
        job,
        strategy,
        lower(graph, strategy, batch=batch),
        lower_evaluation(graph, strategy, batch=batch),
        world,
        capture=captured,
        model=make_model(job),
    )


def _endless(executor: Executor) -> Iterator[Any]:
    feed = executor.feed()
    while True:
        yield from feed.shares()


def _block(executor: Executor, shares: Iterator[Any], count: int) -> Block:
    first, starts = executor.steps, []
    for share in itertools.islice(shares, count + 2):
        starts.append(time.perf_counter())
        executor.step(share)
    return tuple(
        TimedStep(number=first + number, seconds=after - before)
        for number, (before, after) in list(enumerate(itertools.pairwise(starts)))[1:]
    )
