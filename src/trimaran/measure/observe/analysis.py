"""From the records of processes to where the time of the job goes.

Ranks are compared step by step. A rank blocks in an exchange for two causes, which have different remedies. The
shortest blocked time of a step, over the ranks, is the exchange itself, because the last rank to come waits for no
other. What another rank blocks longer, it waits for slower ranks. No common clock is needed for that.

The ranks of a job among processes that were watched, and their steps that count.

Left out are the first steps, steps with an evaluation in them, and steps ten times as long as the median. Where half of
the steps have a forward without gradients, it belongs to them (a teacher, a target network).
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimaran.base.errors import TrimaranError
from trimaran.measure.observe.records import Parts, ProcessRecord, fixed_share, mean_step

Array = NDArray[np.float64]

_WARMUP_STEPS = 5
_WARMUP_SHARE = 0.1
_LEAST_LEFT = 0.01
_LONG = 10.0


class StepTimes:
    """Columns of the steps that count, of one rank.

    Args:
        record: of its process
        common: numbers of these steps
        quiet: without what the thread that trains waited for a processor

    Attributes:
        ns: columns by name [ns]
        cpu: processor time of the process [ns]
        step: all of it but what the watch itself took, which is no part of the script [ns]
        work: without what it is blocked by others [ns]
    """

    def __init__(self, record: ProcessRecord, common: NDArray[np.int64], *, quiet: bool = False) -> None:
        chosen = np.isin(record.column("step"), common)
        rows = record.rows[chosen]
        self.ns: dict[str, Array] = {
            name.removesuffix("_ns"): rows[:, number].astype(np.float64) for name, number in record.columns.items()
        }
        cpu = np.diff(record.column("cpu_ns"), prepend=record.column("cpu_ns")[:1])
        self.cpu = cpu[chosen].astype(np.float64)
        kinds = [*("load", "start", "copy", "forward", "loss", "backward", "exposed", "update", "sync", "collective")]
        kinds += ["other", "evaluation"]
        if quiet:
            self._leave_queue_out(kinds)
        self.step = sum((self.ns[kind] for kind in kinds), np.zeros(len(rows)))
        self.work = self.step - self.ns["exposed"] - self.ns["collective"]

    def _leave_queue_out(self, kinds: Sequence[str]) -> None:
        """Loading without its queue, which is known; what else was queued comes off all other parts alike."""
        load, whole = self.ns["load"].sum(), sum(self.ns[kind].sum() for kind in kinds)
        ran = min(load, self.ns["load_asleep"].sum() + self.ns["load_cpu"].sum())
        queued = max(0.0, self.ns["queued"].sum() - (load - ran))
        rest = max(_LEAST_LEFT, 1.0 - queued / (whole - load)) if whole > load else 1.0
        for kind in kinds:
            self.ns[kind] = self.ns[kind] * (rest if kind != "load" else ran / load if load else 1.0)

    def parts(self, exchange: Array, collective: Array) -> list[Parts]:
        """Parts of each step [s].

        Args:
            exchange: the part of the exposed exchange that is no wait for another rank, of each step [ns]
            collective: likewise of collectives of the script [ns]
        """
        ns = self.ns
        columns = {
            "load": ns["load"] + ns["copy"],
            "start": ns["start"],
            "forward": ns["forward"] + ns["loss"] + ns["evaluation"],
            "backward": ns["backward"],
            "exchange": exchange,
            "wait": ns["exposed"] - exchange,
            "wait_in_collective": ns["collective"] - collective,
            "update": ns["update"],
            "sync": ns["sync"],
            "collective": collective,
            "other": ns["other"],
        }
        rows = zip(*(column * 1e-9 for column in columns.values()), strict=True)
        return [Parts(**dict(zip(columns, map(float, row), strict=True))) for row in rows]


def find_job(records: Sequence[ProcessRecord]) -> tuple[list[ProcessRecord], int]:
    """The group of ranks that took most steps, and how many other processes took some.

    Args:
        records: of all processes, some with steps
    """
    stepped = [record for record in records if record.steps]
    longest = max(stepped, key=lambda record: record.steps)
    job: dict[int, ProcessRecord] = {}
    for record in stepped:
        best = job.get(record.rank)
        if record.world == longest.world and (best is None or record.steps > best.steps):
            job[record.rank] = record
    return [job[rank] for rank in sorted(job)], len(stepped) - len(job)


def steady_steps(job: Sequence[ProcessRecord]) -> tuple[NDArray[np.int64], dict[str, int]]:
    """Numbers of the steps that count on all ranks, and how many do not, by the reason.

    Args:
        job: records of its ranks
    """
    kept = set.intersection(*(set(record.column("step").tolist()) for record in job))
    first = max(_WARMUP_STEPS, min(50, int(_WARMUP_SHARE * min(record.steps for record in job))))
    evaluated: set[int] = set()
    for record in job:
        evaluated |= set(record.column("step")[_evaluated(record)].tolist())
    steady = np.array(sorted(step for step in kept - evaluated if step >= first), dtype=np.int64)
    left_out = {"at the start": min(first, len(kept)), "with an evaluation": len(evaluated & kept)}
    apart = max(len(record.rows) for record in job) - len(kept)
    if apart:
        left_out["not in the records of all ranks"] = apart
    if not len(steady):
        return steady, left_out
    long = np.zeros(len(steady), dtype=bool)
    for record in job:
        step = StepTimes(record, steady).step
        long |= step > _LONG * np.median(step)
    return steady[~long], left_out | {"far longer than the others": int(long.sum())}


def _evaluated(record: ProcessRecord) -> NDArray[np.bool_]:
    """Which rows have an evaluation in them, or no forward that trains."""
    without_gradients = record.column("evaluation_ns") > 0
    if 2 * without_gradients.sum() >= len(without_gradients):
        without_gradients[:] = False
    forwards = record.column("forwards")
    # None at all: the forwards of this script cannot be counted.
    return without_gradients | (forwards == 0) if forwards.any() else without_gradients


LEAST_STEPS = 10

_BLOCKS = 10
_EVEN = 0.01


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankFindings:
    """One rank.

    Attributes:
        rank: its number
        record: what its process wrote
        parts: of its mean step
        samples: mean samples of a step
        work_s: mean time of a step in which it is not blocked by others [s]
        busy_cores: processor time of the process per time of the step
        load_cpu: share of the waiting for data in which the process computed
    """

    rank: int
    record: ProcessRecord
    parts: Parts
    samples: float
    work_s: float
    busy_cores: float
    load_cpu: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TimeFindings:
    """Where the time of a job goes.

    Attributes:
        ranks: by number
        mean: parts of the mean step, over all ranks
        blocks: the same for blocks of consecutive steps
        steps: that the figures are of
        taken: steps that the script took
        left_out: steps by the reason why they do not count
        uneven_s: what a step would lose if each rank had the same samples [s]
        uneven_samples: largest mean share of samples of a rank over the mean share
        slower_s: what a step would lose if equal shares took all ranks equally long; 0 where shares are uneven [s]
        slower: the same of each block, of the rank that is slowest in all of them, as a share of the block [0..1]
        counts: mean of the counts of a step
        elsewhere: processes that took steps and belong to another job
        queued: share of the time in which a rank's thread was ready and others had the processors, of the rank that
            waited most [0..1]
        halves: the same of the first and of the second half of the steps; none where there are too few
        quiet: the same without what the threads that train waited for a processor; None: this is it
    """

    ranks: Sequence[RankFindings]
    mean: Parts
    blocks: Sequence[Parts]
    steps: int
    taken: int
    left_out: Mapping[str, int]
    uneven_s: float
    uneven_samples: float
    slower_s: float
    slower: Sequence[float]
    counts: Mapping[str, float]
    elsewhere: int
    queued: float
    halves: Sequence["TimeFindings"]
    quiet: "TimeFindings | None" = None

    @property
    def first(self) -> RankFindings:
        """The first rank."""
        return self.ranks[0]

    @property
    def facts(self) -> Mapping[str, Any]:
        """Facts of the first rank."""
        return self.ranks[0].record.facts


def analyse(records: Sequence[ProcessRecord]) -> TimeFindings:
    """Find where the time goes.

    Args:
        records: of all processes

    Raises:
        TrimaranError: no process took enough steps
    """
    if not any(record.steps for record in records):
        raise _too_few(records, 0, {})
    job, elsewhere = find_job(records)
    common, left_out = steady_steps(job)
    if len(common) < LEAST_STEPS:
        raise _too_few(records, len(common), left_out)
    whole = analyse_steps(job, common, left_out, elsewhere)
    if len(common) < 2 * LEAST_STEPS:
        return whole
    middle = len(common) // 2
    halves = [analyse_steps(job, part, left_out, elsewhere) for part in (common[:middle], common[middle:])]
    return replace(whole, halves=halves)


def analyse_steps(
    job: Sequence[ProcessRecord],
    common: NDArray[np.int64],
    left_out: Mapping[str, int] | None = None,
    elsewhere: int = 0,
    *,
    quiet: bool = False,
    ends: Sequence[int] = (),
) -> TimeFindings:
    """Where the time of some steps goes.

    Args:
        job: records of its ranks
        common: numbers of the steps, which all ranks have
        left_out: steps by the reason why they do not count
        elsewhere: processes that took steps and belong to another job
        quiet: without what the threads that train waited for a processor
        ends: places after the last step of each block; none: up to ten blocks of five steps and more
    """
    edges = list(pairwise((0, *ends) if ends else _edges(len(common))))
    times = [StepTimes(record, common, quiet=quiet) for record in job]
    longest = max(float(time.cpu.mean()) for time in times)
    if quiet and longest and (job[0].facts["model"] or {}).get("device") != "cuda":
        # A processor's time is that of the work, whoever else runs; the longest work makes the step.
        rate = float(np.mean([time.step for time in times])) / longest
        for time in times:
            time.work = time.cpu * rate
    exchange = np.min([time.ns["exposed"] for time in times], axis=0)
    collective = np.min([time.ns["collective"] for time in times], axis=0)
    parts = [time.parts(exchange, collective) for time in times]
    ranks = [_rank(record, time, mean_step(own)) for record, time, own in zip(job, times, parts, strict=True)]
    each_step = [mean_step([own[number] for own in parts]) for number in range(len(common))]
    uneven_s, uneven_samples, slower_s = _uneven(times, fixed_share(job) or 0.0)
    names = ("forwards", "backwards", "samples", "syncs", "collectives", "collective_nbytes", "dry", "batches_loaded")
    return TimeFindings(
        ranks=ranks,
        mean=mean_step(each_step),
        blocks=[mean_step(each_step[low:high]) for low, high in edges],
        steps=len(common),
        taken=job[0].steps,
        left_out=left_out or {},
        uneven_s=uneven_s,
        uneven_samples=uneven_samples,
        slower_s=slower_s,
        slower=[_slower(times, slice(low, high)) for low, high in edges],
        counts={name: float(times[0].ns[name].mean()) for name in names},
        elsewhere=elsewhere,
        queued=max(float(time.ns["queued"].sum() / time.step.sum()) for time in times),
        halves=(),
        quiet=None if quiet else analyse_steps(job, common, left_out, elsewhere, quiet=True, ends=ends),
    )


def _rank(record: ProcessRecord, times: StepTimes, parts: Parts) -> RankFindings:
    load = times.ns["load"].sum()
    return RankFindings(
        rank=record.rank,
        record=record,
        parts=parts,
        samples=float(times.ns["samples"].mean()),
        work_s=float(times.work.mean()) * 1e-9,
        busy_cores=float(times.cpu.sum() / times.step.sum()),
        load_cpu=float(times.ns["load_cpu"].sum() / load) if load else 0.0,
    )


def _edges(steps: int) -> Sequence[int]:
    found: list[int] = np.linspace(0, steps, min(_BLOCKS, steps // 5 or 1) + 1).astype(int).tolist()
    return found


def _slower(times: Sequence[StepTimes], block: slice) -> float:
    """Work of the slowest rank beyond the mean rank's in some steps, as a share of them."""
    slowest = max(times, key=lambda time: float(time.work.mean()))
    mean = sum(time.work[block].mean() for time in times) / len(times)
    return float((slowest.work[block].mean() - mean) / np.mean([time.step[block].mean() for time in times]))


def _uneven(times: Sequence[StepTimes], fixed: float) -> tuple[float, float, float]:
    """The cost of uneven shares [s], how uneven they are, and the cost of a slower rank [s].

    Work is a fixed part and a part in proportion to the samples. Its rate is taken from the rank with the fewest: it
    works while all others do too, as all would with even shares; the others work faster once it waits, where they share
    cores or memory. What ranks wait for each other by chance, they would wait with even shares as well.
    """
    work = np.stack([time.work for time in times]) * 1e-9
    samples = np.stack([time.ns["samples"] for time in times])
    mean = samples.mean(axis=0)
    # Where samples could not be counted they are taken as even.
    excess = float((samples.max(axis=0) / mean).mean()) - 1.0 if samples.min() > 0 else 0.0
    if excess < _EVEN:
        means = work.mean(axis=1)
        return 0.0, 0.0, float(means.max() - means.mean())
    least = np.take_along_axis(work, samples.argmin(axis=0)[None], axis=0)[0]
    most = np.take_along_axis(work, samples.argmax(axis=0)[None], axis=0)[0]
    # Of the means, because single steps scatter more than samples do.
    rate = (1.0 - fixed) * least.mean() / samples.min(axis=0).mean()
    even = least.mean() + rate * (mean - samples.min(axis=0)).mean()
    saved = float(most.mean() - even - _chance(work, samples))
    return max(0.0, saved), excess, 0.0


def _chance(work: Array, samples: Array) -> float:
    """Wait of the mean step for the slowest rank because of differences that samples do not explain [s]."""
    rest = work - work.mean(axis=1, keepdims=True)
    spread = samples - samples.mean(axis=1, keepdims=True)
    weight = (spread**2).sum(axis=1, keepdims=True)
    slope = np.divide((spread * rest).sum(axis=1, keepdims=True), weight, out=np.zeros_like(weight), where=weight > 0)
    return float((rest - slope * spread).max(axis=0).mean())


def _too_few(records: Sequence[ProcessRecord], steps: int, left_out: Mapping[str, int]) -> TrimaranError:
    if not records:
        code = "observe.no-process"
        reason = (
            "no process imported torch in a Python that reads PYTHONPATH (the options -I, -E and -S keep it out), or "
            "all were ended by a signal before their first record, which comes after 20 steps and half a second"
        )
    elif not any(record.steps for record in records):
        code = "observe.no-optimizer-step"
        reason = "torch was imported, but no optimizer of torch.optim took a step"
    else:
        code = "observe.too-few-steps"
        most = max(record.steps for record in records)
        reason = f"{most} steps were taken, {steps} of them steady; at least {LEAST_STEPS} are needed"
        # More of the same would be left out as well.
        others = {name: count for name, count in left_out.items() if count and name != "at the start"}
        if 2 * sum(others.values()) > most:
            reason += "; left out: " + ", ".join(f"{count} {name}" for name, count in others.items())
        else:
            reason += ": run it longer"
    return TrimaranError(f"nothing was seen: {reason}", code=code, steps=steps)


# ---------------------------------------------------------------------------------------------------------------------
# What it costs a script to take a batch from a loader's worker that has it ready


_BATCHES = 40
_APART_S = 3e-3


_MOST_HANDED_OVER = 2**28
"""Of a batch whose handover is measured; a larger one takes longer in proportion [bytes]."""


def measure_handover(nbytes: int, *, busy: bool = False) -> float | None:
    """Time that a ready batch takes to arrive from a worker [s]; None where no worker can be had.

    Args:
        nbytes: of the batch [bytes]
        busy: other programs run, which only lengthen it: the shortest time counts, in place of the median
    """
    measured = min(nbytes, _MOST_HANDED_OVER)
    try:
        return _measured(measured, min if busy else median) * nbytes / max(1, measured)
    except (OSError, RuntimeError, ValueError):
        # No shared memory, no fork: the report is worth more than this figure.
        return None


def _measured(nbytes: int, typical: Callable[[list[float]], float]) -> float:
    import torch
    from torch.utils.data import DataLoader, IterableDataset

    class Ready(IterableDataset[torch.Tensor]):
        def __iter__(self) -> Iterator[torch.Tensor]:
            return (torch.ones(max(1, nbytes // 4)) for _ in range(_BATCHES))

    durations = []
    iterator = iter(DataLoader(Ready(), batch_size=None, num_workers=1, multiprocessing_context="fork"))
    for _ in range(_BATCHES):
        # Busy meanwhile, as a script is, so that the worker is ahead.
        until = time.perf_counter() + _APART_S
        while time.perf_counter() < until:
            pass
        start = time.perf_counter()
        float(next(iterator).sum())
        durations.append(time.perf_counter() - start)
    whole = typical(durations[5:])
    batch = torch.ones(max(1, nbytes // 4))
    start = time.perf_counter()
    float(batch.sum())
    return max(0.0, whole - (time.perf_counter() - start))
