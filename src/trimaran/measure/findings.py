"""Results of the ranks, and the cost table made of them.

From samples to a cost.

Samples are taken in rounds, spread over the measuring time and over the ranks, because what differs between two runs (a
busy neighbour, a warm cache) is constant for milliseconds and does not show in samples taken one after the other. The
cost is the median of all samples. Its interval says where the median of another run may lie: it is the range of the
medians of the rounds, without the outermost 5 % on either side where there are that many.

What waits for the scheduler (a transfer, whose threads need a core) takes one of several typical times, and a step
holds many of them: there the mean takes the place of the median, without the longest 5 % (of 20 samples or more), which
are other programs'.

A duration over lists of tensors as fixed + per tensor + per byte.

    minimise over a, b, c >= 0    sum over lists k of  w_k * ((a + b * tensors_k + c * bytes_k) / seconds_k - 1)^2

Errors are relative, so that short lists count as much as long ones. Then all three are scaled so that the first list,
which has all tensors, is met exactly.

What ranks found out about the samples of a job, and the costs that follow.

A time that grows with the samples or the bytes of a microbatch is measured at two sizes: the line through both has the
fixed part and the rate.
"""

import math
import statistics
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

import numpy
import numpy.typing

from trimaran.base.errors import ExecutionError
from trimaran.graph.types import Graph
from trimaran.measure.wanted import WholeRun
from trimaran.pricing.tables import (
    NOT_MEASURED,
    CostTable,
    Curve,
    CurveKey,
    Fingerprint,
    OperationKey,
    SampleCosts,
    StepCosts,
    TensorFit,
    WholeCost,
    WholeKey,
)
from trimaran.pricing.types import Between, Cost, Interference, OpCost

_Key = TypeVar("_Key", bound=Hashable)

Rounds = list[list[float]]
"""Durations, in groups that were taken together [s]."""


def summarize(rounds: Iterable[Sequence[float]], *, how: str, waits: bool = False) -> Cost:
    """The median of samples, and where another run's median may lie.

    Args:
        rounds: durations, in groups that were taken together [s]; empty groups are passed over
        how: a word on how they were taken
        waits: what is measured waits for the scheduler; the mean without the longest 5 %, of fewer than 20 without the
            longest one where it is an outlier, takes the place of the median

    Returns:
        The median (the mean where `waits`), with a 90 % interval that contains it.

    Raises:
        ExecutionError: no sample

    Example:
        >>> summarize([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0]], how="by hand")
        Cost(seconds=2.5, low=2.0, high=4.0, source='measured: by hand')
    """
    groups = [group for group in rounds if group]
    if not groups:
        raise ExecutionError(f"nothing was measured ({how}): no sample came back", code="measure.no-samples")
    typical = _trimmed_mean if waits else statistics.median
    middle = typical([sample for group in groups for sample in group])
    medians = sorted(typical(group) for group in groups)
    outside = math.floor(0.05 * len(medians))
    low, high = medians[outside], medians[-1 - outside]
    return Cost(middle, min(low, middle), max(high, middle), f"measured: {how}")


def _trimmed_mean(samples: Sequence[float]) -> float:
    ordered = sorted(samples)
    longest = math.floor(0.05 * len(ordered))
    if longest == 0 and len(ordered) > 2:
        middle = statistics.median(ordered)
        spread = statistics.median(abs(sample - middle) for sample in ordered)
        longest = int(ordered[-1] > middle + _FAR * spread)
    return statistics.fmean(ordered[: len(ordered) - longest])


_FAR = 3.0 * 1.4826
"""Median absolute deviations beyond which a sample is an outlier: three standard deviations of normal ones (Hampel)."""


def pool(ranks: Iterable[Mapping[_Key, Rounds]]) -> dict[_Key, Rounds]:
    """The rounds of all ranks together.

    Args:
        ranks: of each rank, its rounds by what was measured

    Example:
        >>> pool([{"a": [[1.0], [2.0]]}, {"a": [[3.0]], "b": [[4.0]]}])
        {'a': [[1.0], [2.0], [3.0]], 'b': [[4.0]]}
    """
    together: dict[_Key, Rounds] = {}
    for rank in ranks:
        for key, rounds in rank.items():
            together.setdefault(key, []).extend(rounds)
    return together


_FIRST_WEIGHT = 3.0


class ListKey(NamedTuple):
    """Which list of tensors was worked on.

    Attributes:
        tensors: its length
        nbytes: bytes of all of them [bytes]
    """

    tensors: int
    nbytes: int


def fit_rounds(rounds: Mapping[ListKey, Rounds], *, how: str) -> TensorFit:
    """Fit samples of durations over lists of tensors.

    Args:
        rounds: by list, of which the first has all tensors [s]; empty where there is no tensor
        how: a word on how they were taken
    """
    if not rounds:
        return TensorFit(
            fixed_s=0.0, per_tensor_s=0.0, per_byte_s=0.0, low=1.0, high=1.0, source="analytic: nothing is trained"
        )
    return fit_tensors({key: summarize(times, how=how) for key, times in rounds.items()})


def fit_tensors(costs: Mapping[ListKey, Cost]) -> TensorFit:
    """Fit durations over lists of tensors.

    Args:
        costs: by list; the first one, which has all tensors, is met exactly

    Returns:
        The fit; its interval covers that of the first list and the misfit of the others.

    Raises:
        ExecutionError: no list, or one that took no time

    Example:
        >>> def exact(seconds):
        ...     return Cost(seconds, seconds, seconds, "measured")
        >>> seconds = {ListKey(4, 1000): 7.0, ListKey(2, 500): 4.0, ListKey(2, 300): 3.8, ListKey(1, 900): 3.15}
        >>> fit = fit_tensors({key: exact(value) for key, value in seconds.items()})
        >>> round(fit.fixed_s, 6), round(fit.per_tensor_s, 6), round(fit.per_byte_s, 6)
        (1.0, 1.25, 0.001)
    """
    seconds = numpy.array([cost.seconds for cost in costs.values()])
    if not len(seconds) or (seconds <= 0).any():
        raise ExecutionError(
            "lists of tensors took no time that could be measured: this clock is too coarse", code="measure.no-time"
        )
    columns = numpy.array([[1.0, key.tensors, key.nbytes] for key in costs])
    found = _fit_non_negative(columns / seconds[:, None])
    found = found * (seconds[0] / (columns[0] @ found))
    misfit = seconds / (columns @ found)
    whole = next(iter(costs.values()))
    return TensorFit(
        fixed_s=float(found[0]),
        per_tensor_s=float(found[1]),
        per_byte_s=float(found[2]),
        low=min(whole.low / whole.seconds, float(misfit.min())),
        high=max(whole.high / whole.seconds, float(misfit.max())),
        source=whole.source,
    )


def _fit_non_negative(rows: numpy.typing.NDArray[numpy.float64]) -> numpy.typing.NDArray[numpy.float64]:
    """Coefficients >= 0 for which `rows @ coefficients` is nearest to 1 everywhere."""
    from scipy.optimize import nnls

    weights = numpy.ones(len(rows))
    weights[0] = _FIRST_WEIGHT
    # Columns differ by many orders of magnitude.
    scale = numpy.maximum(numpy.abs(rows).max(axis=0), 1e-300)
    solution, _ = nnls(rows / scale * weights[:, None] ** 0.5, weights**0.5)
    coefficients: numpy.typing.NDArray[numpy.float64] = solution / scale
    return coefficients


TAKEN_S, TAKEN_S_PER_BYTE = 3e-4, 3e-10
"""Handing a microbatch over between processes, where it is not measured: some system calls, and bytes that another core
has written [s], [s/byte]."""

Points = list[tuple[float, float]]
"""Sizes and durations at these [s]."""


@dataclass(slots=True, kw_only=True)
class Sampled:
    """Times of samples, as one rank measured them.

    Attributes:
        reads: blocked time of a sample's first read; a group each microbatch [s]
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
    """The rate per unit of size, with an interval from single durations of the largest size.

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


class Timed(NamedTuple):
    """The work that a duration is of.

    Attributes:
        what: content of an operation, a run of the whole model, or a list of parameters
        batch: samples; 0 for a list of parameters
        phase: "forward", "backward", "evaluation", "load", "update" or "clip"
    """

    what: str | WholeRun | ListKey
    batch: int
    phase: str


@dataclass(slots=True, kw_only=True)
class Findings:
    """Result of one rank.

    Attributes:
        rounds: durations [s]
        passes: batch sizes at which operations were to be measured [samples]
        state_bytes_per_byte: bytes of optimizer state for a byte of parameter; None where no update was wanted
        curves: transfers by size, the same on every rank
        interference: by kind of transfer, the same on every rank
        between: what is between instructions, on rank 0; None where that was not wanted
        sampled: what samples of the data set took; None where that was not wanted
        failed: runs that raised, with what and where; "" where they raised on other ranks only
    """

    rounds: dict[Timed, Rounds] = field(default_factory=dict)
    passes: tuple[int, ...] = ()
    state_bytes_per_byte: float | None = None
    curves: dict[CurveKey, Curve] = field(default_factory=dict)
    interference: dict[str, Interference] = field(default_factory=dict)
    between: Between | None = None
    sampled: Sampled | None = None
    failed: dict[WholeRun, str] = field(default_factory=dict)


def assemble(
    findings: Sequence[Findings], known: StepCosts | None, graph: Graph, *, job: str, fingerprint: Fingerprint
) -> CostTable:
    """One table of what all ranks found.

    Args:
        findings: of each rank
        known: what was known of the job's update and load before
        graph: the job's
        job: digest of the job
        fingerprint: of this machine
    """
    how = f"{fingerprint.ranks} {'rank' if fingerprint.ranks == 1 else 'ranks'} busy"
    rounds = pool(finding.rounds for finding in findings)
    rounds.update(_of_slowest(findings))
    step = _with_samples(_step(rounds, findings[0].state_bytes_per_byte, known, how), known, findings, how)
    return CostTable(
        fingerprint=fingerprint,
        operations=_operations(rounds, findings[0].passes, graph, how),
        wholes=_wholes(rounds, graph, how),
        steps={} if step is None else {job: step},
        curves=findings[0].curves,
        interference=findings[0].interference,
        between=findings[0].between,
    )


def _with_samples(
    step: StepCosts | None, known: StepCosts | None, findings: Sequence[Findings], how: str
) -> StepCosts | None:
    """The costs of a step with those of samples: what was measured now counts before what was known."""
    found = [finding.sampled for finding in findings if finding.sampled is not None]
    samples = sample_costs(found, how=how) if found else None if known is None else known.samples
    whole = step or (known if found else None)
    return whole if whole is None or samples is None else replace(whole, samples=samples)


def _of_slowest(findings: Sequence[Findings]) -> dict[Timed, Rounds]:
    """Backwards of replicas, each with the time that the rank waits for the slowest one.

    Replicas meet in every step, and no two take equally long. So the forward and the backward of all together take
    what those of the slowest take; the difference to a rank's own is added to its backward, where replicas meet.
    """
    found: dict[Timed, Rounds] = {}
    for timed in findings[0].rounds:
        if not (isinstance(timed.what, WholeRun) and timed.what.form == "replicated" and timed.phase == "backward"):
            continue
        pairs = [(finding.rounds[timed._replace(phase="forward")], finding.rounds[timed]) for finding in findings]
        for number in range(len(findings[0].rounds[timed])):
            steps = [list(zip(forwards[number], backwards[number], strict=True)) for forwards, backwards in pairs]
            slowest = [max(map(sum, together)) for together in zip(*steps, strict=True)]
            for own in steps:
                found.setdefault(timed, []).append(
                    [total - forward for total, (forward, _) in zip(slowest, own, strict=True)]
                )
    return found


def _operations(
    rounds: Mapping[Timed, Rounds], passes: Sequence[int], graph: Graph, how: str
) -> dict[OperationKey, dict[int, OpCost]]:
    sizes = sorted({timed.batch for timed in rounds if isinstance(timed.what, str)})
    operations: dict[OperationKey, dict[int, OpCost]] = {}
    for content in {op.content: None for op in graph.ops}:
        for size in sizes:
            operations.setdefault(OperationKey(content, "eager"), {})[size] = OpCost(
                forward=_duration(rounds, Timed(content, size, "forward"), how),
                backward=_duration(rounds, Timed(content, size, "backward"), how),
            )
    if sizes:
        return operations
    # No pass went through: the whole model's time is shared out by the work that the operations do.
    # Where none was wanted they are known, as of another form of the same network.
    for run in {timed.what: None for timed in rounds if isinstance(timed.what, WholeRun)}:
        if run.batch not in passes:
            continue
        whole = _whole(rounds, run, how)
        weights = {op.content: op.flops.at(run.batch) + op.bytes_moved.at(run.batch) for op in graph.ops}
        total = sum(weights[op.content] for op in graph.ops) or 1.0
        for content, weight in weights.items():
            operations.setdefault(OperationKey(content, "eager"), {})[run.batch] = OpCost(
                forward=replace(whole.forward.scaled(weight / total), source="analytic: share of FLOP and bytes"),
                backward=replace(whole.backward.scaled(weight / total), source="analytic: share of FLOP and bytes"),
            )
    return operations


def _duration(rounds: Mapping[Timed, Rounds], timed: Timed, how: str) -> Cost:
    if timed in rounds:
        return summarize(rounds[timed], how=how)
    # Nothing by itself: the time of the whole model falls to the other operations.
    return Cost(0.0, 0.0, 0.0, "assumed: not run by itself")


def _wholes(rounds: Mapping[Timed, Rounds], graph: Graph, how: str) -> dict[WholeKey, dict[int, WholeCost]]:
    wholes: dict[WholeKey, dict[int, WholeCost]] = {}
    for run in {timed.what: None for timed in rounds if isinstance(timed.what, WholeRun)}:
        wholes.setdefault(WholeKey(graph.digest, run.form, run.execution), {})[run.batch] = _whole(rounds, run, how)
    return wholes


def _whole(rounds: Mapping[Timed, Rounds], run: WholeRun, how: str) -> WholeCost:
    return WholeCost(
        forward=summarize(rounds[Timed(run, run.batch, "forward")], how=how),
        backward=summarize(rounds[Timed(run, run.batch, "backward")], how=how),
        evaluation=summarize(rounds[Timed(run, run.batch, "evaluation")], how=how),
    )


def _step(
    rounds: Mapping[Timed, Rounds], state_bytes_per_byte: float | None, known: StepCosts | None, how: str
) -> StepCosts | None:
    loads: dict[int, Rounds] = {}
    for timed, times in rounds.items():
        if timed.phase == "load":
            loads.setdefault(timed.batch, []).extend(times)
    load = {size: summarize(times, how=how, waits=True) for size, times in loads.items()}
    if state_bytes_per_byte is not None:
        return StepCosts(
            update=fit_rounds(_lists(rounds, "update"), how=how),
            clip=fit_rounds(_lists(rounds, "clip"), how=how),
            load=load,
            state_bytes_per_byte=state_bytes_per_byte,
        )
    return None if known is None or not load else replace(known, load={**known.load, **load})


def _lists(rounds: Mapping[Timed, Rounds], phase: str) -> dict[ListKey, Rounds]:
    return {
        timed.what: times for timed, times in rounds.items() if isinstance(timed.what, ListKey) and timed.phase == phase
    }
