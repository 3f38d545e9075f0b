"""One rank's part in a stall analysis: steps of three kinds in turn, and further figures for advice.

Runs inside the ranks; imports torch.

The order of the steps: blocks of the three kinds, in turn.

    round 0    cold 1..8    cached 1..8    synthetic
    round 1    synthetic    cold 9..16     cached 9..16
    ...

Changes over seconds so affect all kinds alike. A cold block reads batches that nothing has read before, as far as
the epoch has them; the cached block after it reads the same. The first batch of an epoch has been read for the
synthetic steps, so that an epoch of one batch has no cold block. Each block begins with steps that do not count: ranks
meet there, workers start, and what was ready before is used up.

Properties of a data set, found with a second instance before the training reads a sample.

The samples of a rank are read once in advance, to learn which files hold them: only then can the host be asked to
forget these before they are read in earnest.
"""

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trimaran.base.errors import InputError
from trimaran.base.job import Job
from trimaran.base.timeline import Timeline
from trimaran.launch.world import World
from trimaran.measure.calibration.links import measure_curves
from trimaran.measure.findings import Sampled
from trimaran.measure.input_pipeline import measure_samples
from trimaran.measure.rounds import largest
from trimaran.measure.stalls.page_cache import Forgotten, OpenedFiles, forget, held_files
from trimaran.measure.stalls.steps import TimedStep, Way, sum_loadings
from trimaran.pricing.tables import Curve, CurveKey
from trimaran.program.layout import strategy_layout
from trimaran.program.strategy import Feeding, Strategy
from trimaran.program.types import Kind
from trimaran.runtime.data.batch_shares import Share, microbatch_sizes
from trimaran.runtime.data.datasets import make_dataset
from trimaran.runtime.data.orders import draw_order
from trimaran.runtime.data.pipeline import Feed
from trimaran.runtime.data.prefetch import LoadingTimes
from trimaran.runtime.executor import Executor
from trimaran.runtime.record import STEPS_KEPT
from trimaran.user_code.datasets import reading_fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Consecutive steps of one way.

    Attributes:
        way: how they get their batches
        round: number of the round
        first: number of the global batch of the first step; synthetic steps have batch 0
        lead: steps at its start that do not count
        steps: those that count
    """

    way: Way
    round: int
    first: int = 0
    lead: int = 0
    steps: int

    @property
    def batches(self) -> int:
        """Steps that are taken."""
        return self.lead + self.steps


Round = tuple[Block, ...]


def plan_rounds(*, steps: int, batches: int, rounds: int, lead: int = 1, multiple: int = 1) -> tuple[Round, ...]:
    """The blocks of a measurement.

    Args:
        steps: of each way that count, at least
        batches: full global batches of an epoch, at least one; the first is that of the synthetic steps
        rounds: at most
        lead: steps at the start of a block that do not count
        multiple: the steps of a block that count are a multiple of it, as batches of several workers come together

    Returns:
        The rounds, without a cold block where the epoch has no further batches.

    Example:
        >>> (blocks,) = plan_rounds(steps=2, batches=9, rounds=1)
        >>> [(block.way, block.first, block.lead, block.steps) for block in blocks]
        [('cold', 1, 1, 2), ('cached', 1, 1, 2), ('synthetic', 0, 1, 2)]
    """
    rounds = max(1, min(rounds, -(-steps // multiple)))
    each = -(-steps // (rounds * multiple)) * multiple
    first = 1
    found: list[Round] = []
    for number in range(rounds):
        span = min(lead + each, batches - first)
        if span == lead + each or (span and not found):
            # In a short epoch half of it counts: what many workers load first must not be nearly all that is read.
            before = lead if span == lead + each else min(lead, span // 2)
            cold = Block(way="cold", round=number, first=first, lead=before, steps=span - before)
            reading = [cold, *_again(cold, each)]
            first += span
        else:
            # The first round is read first, and begins with what others read again.
            again = found[0][0] if found else Block(way="cached", round=number, steps=1)
            reading = _again(replace(again, round=number), each)
        synthetic = Block(way="synthetic", round=number, lead=min(lead, 1), steps=each)
        found.append((*reading, synthetic) if number % 2 == 0 else (synthetic, *reading))
    return tuple(found)


def _again(cold: Block, steps: int) -> list[Block]:
    """Blocks that read the batches of a cold one again, as often as it takes."""
    blocks: list[Block] = []
    while steps > 0:
        blocks.append(replace(cold, way="cached", steps=min(cold.steps, steps)))
        steps -= cold.steps
    return blocks


# ---------------------------------------------------------------------------------------------------------------------
# A share of a batch that is kept, so that steps can be taken without loading


class KeptShare(Share):
    """A share whose microbatches stay: it can be taken again and again.

    Args:
        share: whose microbatches have not been taken yet
    """

    def __init__(self, share: Share) -> None:
        self.samples, self.sizes, self.counts = share.samples, share.sizes, share.counts
        self._batches = {number: share.microbatch(number) for number, size in enumerate(share.sizes) if size}

    def microbatch(self, number: int) -> Any:
        """One microbatch; see `Share.microbatch`."""
        return self._batches.get(number)

    def loading(self, number: int) -> LoadingTimes:
        """Nothing: it is there."""
        return LoadingTimes(samples=self.sizes[number])


class Probe:
    """A data set of the job's, for looking at.

    Args:
        job: makes the data set
        strategy: says which samples are this rank's
        rank: this one
        samples: of the data set

    Attributes:
        dataset: that it looks at
        read_s: to read the rank's samples of a step [s]

    Raises:
        InputError: the data set raised
    """

    def __init__(self, job: Job, strategy: Strategy, rank: int, samples: int) -> None:
        self._job, self._strategy = job, strategy
        self._replica = strategy_layout(strategy).place_of(rank)[0]
        self._files = OpenedFiles()
        before = held_files()
        self.dataset = make_dataset(job)
        self._order = draw_order(job, self.dataset, samples, 0)
        # What was read and closed meanwhile is not read again.
        self._reads: set[Path] = held_files() - before
        self.read_s = self._look()

    @property
    def reads_files(self) -> bool:
        """Whether reading samples opens files, or goes to files that the data set holds open."""
        return bool(self._reads)

    def forget(self, numbers: range) -> Forgotten:
        """Make the host forget what this rank reads for some global batches of the first epoch.

        Args:
            numbers: of the batches
        """
        if not self._reads:
            return Forgotten()
        with self._files.watching() as opened:
            for number in numbers:
                for indices in self._indices(number):
                    self._read(indices)
        self._reads |= opened
        return forget(self._reads)

    def _look(self) -> float:
        """Read the first batch; how long that takes [s]."""
        with self._files.watching() as opened:
            started = time.perf_counter()
            for indices in self._indices(0):
                self._read(indices)
            read_s = time.perf_counter() - started
        self._reads |= opened
        return read_s

    def _indices(self, number: int) -> Iterator[list[int]]:
        """Samples of this rank's microbatches of a global batch."""
        batch, strategy = self._job.global_batch_size, self._strategy
        sizes = microbatch_sizes(batch, replicas=strategy.dp, microbatches=strategy.microbatches)
        start = number * batch + sum(sum(share) for share in sizes[: self._replica])
        for size in sizes[self._replica]:
            if size:
                yield self._order[start : start + size].tolist()
            start += size

    def _read(self, indices: Sequence[int]) -> list[Any]:
        fetch = getattr(self.dataset, "__getitems__", None)
        try:
            return list(fetch(list(indices))) if fetch is not None else [self.dataset[index] for index in indices]
        except Exception as error:
            fault = reading_fault(error, indices)
            raise InputError(fault.text, samples=fault.samples) from error


_EXCHANGED_BYTES = (1 << 10, 16 << 10, 128 << 10, 1 << 20, 4 << 20)
"""Of the all-reduces that are timed; a link on which the last takes long has those before it [bytes]."""

WAY_S = 3.0
"""Time that the steps of one way take, where their number is not given [s]."""

LEAST_STEPS, MOST_STEPS = 12, 120
_ROUNDS = 6
_ROUNDS_WITH_WORKERS = 3
_WARM_UP = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRun:
    """Result of one rank.

    Attributes:
        steps: that count
        timelines: what was recorded of all ranks, on rank 0
        reads: it reads data
        reads_files: its samples come from files that could be seen
        forgotten: these files, as the host was last asked to forget them
        samples: of the data set
        exchange: what adding up takes while nothing else runs, by bytes; none where gradients are not added up over all
            ranks
        halves: the same of numbers of 16 bits
        sampled: what its samples take; None where it reads none, or it was not asked for
    """

    steps: tuple[TimedStep, ...]
    timelines: tuple[Timeline, ...]
    reads: bool
    reads_files: bool
    forgotten: Forgotten
    samples: int
    exchange: Curve
    sampled: Sampled | None
    halves: Curve = ()


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
        steps: of each kind that count; None: what fits `WAY_S`
        gradient_bytes: of all gradients, where they are added up over all ranks [bytes]; 0: they are not
        samples: find out what samples take, for advice

    Raises:
        InputError: the data set raises, or does not fill one global batch
    """
    run = _MeasuredSteps(executor, feeding)
    total, length = run.feed.samples, run.feed.epoch_samples
    if total is None or length is None or run.feed.streams:
        raise InputError(
            "stalls of a stream are not split into reading and the rest: what it reads again comes from other places "
            "of it. Give a map-style data set, or look at the loading of a run (trimaran observe)"
        )
    probe = Probe(job, strategy, world.rank, total) if executor.reads else None
    longest_s = largest(world, run.warm_up() + (0.0 if probe is None else probe.read_s))
    wanted = steps or min(MOST_STEPS, max(LEAST_STEPS, int(WAY_S / longest_s)))
    rounds = plan_rounds(
        steps=wanted,
        batches=length // job.global_batch_size,
        # So that the record can be read between rounds.
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
    exchange: Curve = ()
    halves: Curve = ()
    if gradient_bytes and world.size > 1:
        keys = [CurveKey(kind, world.size) for kind in (Kind.ALL_REDUCE, f"{Kind.ALL_REDUCE} bf16")]
        exchange, halves = measure_curves(world, keys, sizes=_EXCHANGED_BYTES).values()
    sampled = None
    if samples and probe is not None:
        sampled = measure_samples(
            job, probe.dataset, rank=world.rank, ranks=world.size, device=world.device, workers=False
        )
    return RankRun(
        steps=tuple(run.steps),
        timelines=run.finish(),
        reads=executor.reads,
        reads_files=reads_files,
        forgotten=forgotten,
        samples=total,
        exchange=exchange,
        halves=halves,
        sampled=sampled,
    )


@dataclass(slots=True)
class _MeasuredSteps:
    """The steps of a rank, as they are taken."""

    executor: Executor
    feeding: Feeding
    feed: Feed = field(init=False)
    steps: list[TimedStep] = field(default_factory=list)
    loadings: list[LoadingTimes] = field(default_factory=list)
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
        """Read the record where the recorder would drop it before the next steps are done."""
        if self.executor.steps - self.seen + steps > STEPS_KEPT:
            self.finish()

    def finish(self) -> tuple[Timeline, ...]:
        """Read all that was recorded."""
        self.timelines.append(self.executor.timeline())
        self.seen = self.executor.steps
        return tuple(self.timelines)

    def _shares(self, first: int) -> Iterator[Share]:
        self.feed.go_to(0, first)
        return self.feed.shares()
