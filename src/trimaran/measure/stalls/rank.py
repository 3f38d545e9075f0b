"""One rank's part in a stall analysis: steps of the three ways, in turns, and what advice needs to know beside them.

Runs inside the ranks; imports torch.
"""

import itertools
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from trimaran.costs.tables import Curve, CurveKey
from trimaran.errors import InputError
from trimaran.job import Job
from trimaran.measure.encoding import measure_encoding
from trimaran.measure.sampled import Sampled
from trimaran.measure.sampling import measure_samples
from trimaran.measure.stalls.blocks import Block, plan_rounds
from trimaran.measure.stalls.exchange_time import ExchangeTime, agree_on_longest, measure_exchange
from trimaran.measure.stalls.kept import KeptShare
from trimaran.measure.stalls.loading import sum_loadings
from trimaran.measure.stalls.page_cache import Forgotten
from trimaran.measure.stalls.probe import Probe
from trimaran.measure.stalls.steps import TimedStep
from trimaran.program.compression import Compression
from trimaran.program.feeding import Feeding
from trimaran.program.types import Strategy
from trimaran.runtime.executor import Executor
from trimaran.runtime.feed import Feed, Loading, Share
from trimaran.runtime.record import STEPS_KEPT
from trimaran.runtime.world import World
from trimaran.timeline import Timeline

WAY_S = 3.0
"""Time that the steps of one way take, where nobody says how many [s]."""

COMPRESSIONS = (Compression(method="bf16"), Compression(method="powersgd", rank=4))
"""Forms of gradients on the wire that are looked at."""

LEAST_STEPS, MOST_STEPS = 12, 120
_ROUNDS = 6
_ROUNDS_WITH_WORKERS = 3
_WARM_UP = 5
# Share of a step from which on it is worth knowing what a worker would take.
_MATTERS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRun:
    """What one rank brings home.

    Attributes:
        steps: that count
        timelines: what was recorded of all ranks, on rank 0
        reads: it reads data
        reads_files: its samples come from files that could be seen
        forgotten: these files, as the host was last asked to forget them
        samples: of the data set
        wanted: steps of each way that were wanted
        exchange: what adding up takes; None where gradients are not added up over all ranks
        halves: the same of numbers of 16 bits
        coding: what the compressions of `COMPRESSIONS` take; empty where the exchange is too short to matter
        sampled: what its samples take; None where it reads none, or nobody asked
    """

    steps: tuple[TimedStep, ...]
    timelines: tuple[Timeline, ...]
    reads: bool
    reads_files: bool
    forgotten: Forgotten
    samples: int
    wanted: int
    exchange: ExchangeTime | None
    sampled: Sampled | None
    halves: ExchangeTime | None = None
    coding: Mapping[CurveKey, Curve] = field(default_factory=dict)


def run_ways(
    executor: Executor,
    job: Job,
    strategy: Strategy,
    world: World,
    *,
    feeding: Feeding,
    steps: int | None = None,
    gradient_bytes: int = 0,
    samples: bool = True,
) -> RankRun:
    """Train some steps of each way.

    Args:
        executor: of this rank; it records
        job: what is trained
        strategy: what is run
        world: this rank; all ranks call this
        feeding: how batches are loaded
        steps: of each way that count; None: as many as take `WAY_S`
        gradient_bytes: of all gradients, where they are added up over all ranks [bytes]; 0: they are not
        samples: find out what samples take, for advice

    Raises:
        InputError: the data set raises, or does not fill one global batch
    """
    run = _Run(executor, world, feeding)
    total, length = run.feed.samples, run.feed.epoch_samples
    if total is None or length is None or run.feed.streams:
        raise InputError(
            "stalls of a stream are not split into reading and the rest: what it reads again comes from other places "
            "of it. Give a map-style data set, or look at the loading of a run (trimaran profile)"
        )
    probe = Probe(job, strategy, world.rank, total) if executor.reads else None
    longest_s = agree_on_longest(world, run.warm_up() + (0.0 if probe is None else probe.read_s))
    wanted = steps or min(MOST_STEPS, max(LEAST_STEPS, int(WAY_S / longest_s)))
    rounds = plan_rounds(
        steps=wanted,
        batches=length // job.global_batch_size,
        # So that the record is brought home between rounds, as far as it can be.
        rounds=max(_ROUNDS_WITH_WORKERS if feeding.workers else _ROUNDS, -(-4 * wanted // STEPS_KEPT)),
        lead=1 + feeding.workers,
        multiple=max(1, feeding.workers),
    )
    reads_files = probe is not None and probe.reads_files
    forgotten = Forgotten()
    for number, blocks in enumerate(rounds):
        for block in blocks:
            run.make_room(block.batches)
            if world.rank == 0:
                world.report({"way": block.way, "round": number, "rounds": len(rounds)})
            if probe is not None and reads_files and block.way == "cold":
                forgotten = probe.forget(range(block.first, block.first + block.batches))
            run.take(block)
    exchange = halves = None
    coding: Mapping[CurveKey, Curve] = {}
    if gradient_bytes and world.size > 1:
        exchange = measure_exchange(world, gradient_bytes)
        halves = measure_exchange(world, gradient_bytes // 2, torch.bfloat16)
        # All ranks must come to the same.
        whole_s = agree_on_longest(world, exchange.seconds(gradient_bytes))
        if whole_s > _MATTERS * agree_on_longest(world, statistics.median(step.step_s for step in run.steps)):
            coding = measure_encoding(world, COMPRESSIONS)
    return RankRun(
        steps=tuple(run.steps),
        timelines=run.finish(),
        reads=executor.reads,
        reads_files=reads_files,
        forgotten=forgotten,
        samples=total,
        wanted=wanted,
        exchange=exchange,
        halves=halves,
        coding=coding,
        sampled=_look_at_samples(job, probe.dataset, world, run.steps) if samples and probe is not None else None,
    )


def _look_at_samples(job: Job, dataset: Any, world: World, steps: Sequence[TimedStep]) -> Sampled:
    """What samples take; also in a worker, where loading takes a part of the steps that matters."""
    loadings = [step.loading for step in steps if step.loading is not None]
    loading_s = sum(one.read_s + one.prepared_s for one in loadings)
    matters = loading_s > _MATTERS * sum(step.step_s for step in steps if step.loading is not None)
    return measure_samples(job, dataset, rank=world.rank, ranks=world.size, device=world.device, workers=matters)


@dataclass(slots=True)
class _Run:
    """The steps of a rank, as they are taken."""

    executor: Executor
    world: World
    feeding: Feeding
    feed: Feed = field(init=False)
    steps: list[TimedStep] = field(default_factory=list)
    loadings: list[Loading] = field(default_factory=list)
    timelines: list[Timeline] = field(default_factory=list)
    kept: KeptShare = field(init=False)
    seen: int = 0

    def __post_init__(self) -> None:
        self.feed = self.executor.feed(self.feeding)
        self.feed.observe = self.loadings.append

    def warm_up(self) -> float:
        """Take a few steps with the first batch, which is kept; the time of the shortest [s]."""
        self.kept = KeptShare(next(self._shares(0)))
        self.feed.close()
        durations = []
        for _ in range(_WARM_UP):
            started = time.perf_counter()
            self.executor.step(self.kept)
            durations.append(time.perf_counter() - started)
        return min(durations)

    def take(self, block: Block) -> None:
        """Take the steps of a block, and note those that count."""
        self.loadings.clear()
        synthetic = block.way == "synthetic"
        shares: Iterator[Share] = itertools.repeat(self.kept) if synthetic else self._shares(block.first)
        busy_s, start = time.process_time(), time.perf_counter()
        for position in range(block.batches):
            share = next(shares)
            asked = time.perf_counter()
            number = self.executor.steps
            self.executor.step(share)
            end, busy_after_s = time.perf_counter(), time.process_time()
            if position >= block.lead:
                self.steps.append(
                    TimedStep(
                        number=number,
                        way=block.way,
                        block=block.round,
                        asked_s=asked - start,
                        step_s=end - asked,
                        busy_s=busy_after_s - busy_s,
                        loading=sum_loadings(self.loadings),
                    )
                )
            self.loadings.clear()
            start, busy_s = end, busy_after_s
        # Workers start with each block, and take no time of the next one.
        self.feed.close()

    def make_room(self, steps: int) -> None:
        """Bring home what was recorded, where the recorder would forget it before the next steps are done."""
        if self.executor.steps - self.seen + steps > STEPS_KEPT:
            self.finish()

    def finish(self) -> tuple[Timeline, ...]:
        """Bring home all that was recorded."""
        self.timelines.append(self.executor.timeline())
        self.seen = self.executor.steps
        return tuple(self.timelines)

    def _shares(self, first: int) -> Iterator[Share]:
        self.feed.go_to(0, first)
        return self.feed.shares()
