"""What ranks found out about the samples of a job, and the costs that follow.

A time that grows with the samples or the bytes of a microbatch is measured at two sizes: the line through both has the
fixed part and the rate.
"""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from trimaran.costs.sample_costs import NOT_MEASURED, SampleCosts
from trimaran.costs.types import Cost
from trimaran.measure.samples import Rounds, summarize

TAKEN_S, TAKEN_S_PER_BYTE = 3e-4, 3e-10
"""Handing a microbatch over between processes, where nobody measured it: some system calls, and bytes that another core
has written [s], [s/byte]."""

Points = list[tuple[float, float]]
"""Sizes and durations at these [s]."""


@dataclass(slots=True, kw_only=True)
class Sampled:
    """What one rank found out.

    Attributes:
        reads: standing still, for a sample, in its first read; a group each microbatch [s]
        again: the same in a second read [s]
        makes: work of a core to read a microbatch and collate it, by its samples
        recalls: the same with its samples in a cache
        takes: work of the training's thread to take a microbatch over, by its bytes; none: not measured
        worker_makes: work of a worker to read a microbatch, collate it and hand it over, by its samples
        copies: to bring one to the device, by its bytes; none on a CPU
        starts: starts of workers, until the first microbatch was there [s]
        sample_bytes: of a sample once it is collated [bytes]
        stored_bytes: of a sample before; 0 where it cannot be kept [bytes]
        samples: of the data set
        repeats: the samples that were read twice were the same
    """

    reads: Rounds = field(default_factory=list)
    again: Rounds = field(default_factory=list)
    makes: Points = field(default_factory=list)
    recalls: Points = field(default_factory=list)
    takes: Points = field(default_factory=list)
    worker_makes: Points = field(default_factory=list)
    copies: Points = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    sample_bytes: int = 0
    stored_bytes: int = 0
    samples: int = 0
    repeats: bool = False


def sample_costs(ranks: Sequence[Sampled], *, how: str) -> SampleCosts:
    """The costs that follow from what all ranks found.

    Args:
        ranks: what each of them found
        how: a word on how it was measured

    Raises:
        ExecutionError: no sample was read

    Example:
        >>> found = Sampled(reads=[[0.005]], again=[[0.005]], makes=[(1, 3e-3), (5, 11e-3)])
        >>> costs = sample_costs([found], how="example")
        >>> costs.read.seconds, round(costs.prepare.seconds, 9), round(costs.batch.seconds, 9)
        (0.005, 0.002, 0.001)
        >>> costs.knows_workers
        False
    """

    def durations(of: Callable[[Sampled], Rounds]) -> Cost:
        return summarize((group for rank in ranks for group in of(rank)), how=how, waits=True)

    def line(of: Callable[[Sampled], Points]) -> tuple[Cost, float]:
        return fit_line([point for rank in ranks for point in of(rank)], how=how)

    fixed, each = line(lambda rank: rank.makes)
    recall = line(lambda rank: rank.recalls)[1]
    take, take_per_byte = line(lambda rank: rank.takes)
    copy, copy_per_byte = line(lambda rank: rank.copies)
    in_worker, each_in_worker = line(lambda rank: rank.worker_makes)
    give, more = max(0.0, in_worker.seconds - fixed.seconds), max(0.0, each_in_worker - each)
    if not any(rank.takes for rank in ranks):
        source = f"{NOT_MEASURED}: loading takes too little to measure workers"
        take, take_per_byte = Cost(TAKEN_S, TAKEN_S / 3, TAKEN_S * 3, source), TAKEN_S_PER_BYTE
        give, more = TAKEN_S, 0.0
    first = ranks[0]
    return SampleCosts(
        read=durations(lambda rank: rank.reads),
        read_again=durations(lambda rank: rank.again),
        prepare=_rate([point for rank in ranks for point in rank.makes], each, fixed.seconds, how=how),
        batch=fixed,
        take=take,
        take_per_byte=take_per_byte,
        start_s=max((start for rank in ranks for start in rank.starts), default=0.0),
        sample_bytes=first.sample_bytes,
        stored_bytes=min(rank.stored_bytes for rank in ranks),
        samples=first.samples,
        repeats=all(rank.repeats for rank in ranks),
        give=Cost(give, 0.5 * give, 2.0 * give, take.source),
        give_each=Cost(more, 0.5 * more, 2.0 * more, take.source),
        recall=_rate([point for rank in ranks for point in rank.recalls], recall, fixed.seconds, how=how),
        copy=copy,
        copy_per_byte=copy_per_byte,
    )


def _rate(points: Points, each: float, fixed: float, *, how: str) -> Cost:
    """What comes on top for each unit of size, with what single durations of the largest size say of it.

    Its ends are the quartiles of those: another run's rate is that of many microbatches.
    """
    largest = max((size for size, _ in points), default=0)
    single = sorted((seconds - fixed) / largest for size, seconds in points if size == largest > 0)
    low, high = (single[len(single) // 4], single[(3 * len(single)) // 4]) if single else (each, each)
    return Cost(each, max(0.0, min(low, each)), max(high, each), f"measured: {how}")


def fit_line(points: Iterable[tuple[float, float]], *, how: str) -> tuple[Cost, float]:
    """Fixed part and rate of durations at two sizes or more, neither of them negative.

    Args:
        points: sizes and durations [s]
        how: a word on how they were taken

    Returns:
        The fixed part with the range in which the durations at the smallest size leave it, and what comes on top for
        each unit of size. 0 and 0 without points.

    Example:
        >>> fixed, each = fit_line([(10, 3.0), (10, 5.0), (30, 8.0)], how="example")
        >>> fixed, each  # 4 at a size of 10, 8 at 30
        (Cost(seconds=2.0, low=1.0, high=3.0, source='measured: example'), 0.2)
    """
    by_size: dict[float, list[float]] = {}
    for size, seconds in points:
        by_size.setdefault(size, []).append(seconds)
    source = f"measured: {how}"
    if not by_size:
        return Cost(0.0, 0.0, 0.0, source), 0.0
    middles = {size: statistics.median(durations) for size, durations in by_size.items()}
    small, large = min(by_size), max(by_size)
    each = max(0.0, (middles[large] - middles[small]) / (large - small)) if large > small else 0.0
    each = min(each, middles[large] / large) if large > 0 else each
    ends = (min(by_size[small]), middles[small], max(by_size[small]))
    low, seconds, high = (max(0.0, end - each * small) for end in ends)
    return Cost(seconds, low, high, source), each
