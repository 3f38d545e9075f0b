"""From the records of processes to where the time of the job goes.

Ranks are laid beside each other step by step. What is blocked in an exchange has two causes, and they have different
remedies: the shortest block of a step, over the ranks, is the exchange itself, because the last rank to come waits for
nobody; what another rank is blocked longer, it waits for the slower ones. No common clock is needed for that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimaran.errors import TrimaranError
from trimaran.measure.observe.growth import fixed_share
from trimaran.measure.observe.parts import Parts, mean_parts
from trimaran.measure.observe.records import ProcessRecord
from trimaran.measure.observe.times import Array, StepTimes, find_job, steady_steps

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
class Findings:
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
        counts: mean of the counts of a step
        elsewhere: processes that took steps and belong to another job
        queued: share of the time in which a rank's thread was ready and others had the processors, of the rank that
            waited most [0..1]
        halves: the same of the first and of the second half of the steps; none where there are too few
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
    counts: Mapping[str, float]
    elsewhere: int
    queued: float
    halves: Sequence["Findings"]

    @property
    def first(self) -> RankFindings:
        """The first rank."""
        return self.ranks[0]

    @property
    def facts(self) -> Mapping[str, Any]:
        """Facts of the first rank."""
        return self.ranks[0].record.facts


def analyse(records: Sequence[ProcessRecord]) -> Findings:
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
    whole = _of_steps(job, common, left_out, elsewhere)
    if len(common) < 2 * LEAST_STEPS:
        return whole
    middle = len(common) // 2
    halves = [_of_steps(job, part, left_out, elsewhere) for part in (common[:middle], common[middle:])]
    return replace(whole, halves=halves)


def _of_steps(
    job: Sequence[ProcessRecord], common: NDArray[np.int64], left_out: Mapping[str, int], elsewhere: int
) -> Findings:
    times = [StepTimes(record, common) for record in job]
    exchange = np.min([time.ns["exposed"] for time in times], axis=0)
    collective = np.min([time.ns["collective"] for time in times], axis=0)
    parts = [time.parts(exchange, collective) for time in times]
    ranks = [_rank(record, time, mean_parts(own)) for record, time, own in zip(job, times, parts, strict=True)]
    each_step = [mean_parts([own[number] for own in parts]) for number in range(len(common))]
    uneven_s, uneven_samples, slower_s = _uneven(times, fixed_share(job) or 0.0)
    names = ("forwards", "backwards", "samples", "syncs", "collectives", "collective_nbytes", "dry", "batches_loaded")
    return Findings(
        ranks=ranks,
        mean=mean_parts(each_step),
        blocks=[mean_parts(block) for block in _blocks(each_step)],
        steps=len(common),
        taken=job[0].steps,
        left_out=left_out,
        uneven_s=uneven_s,
        uneven_samples=uneven_samples,
        slower_s=slower_s,
        counts={name: float(times[0].ns[name].mean()) for name in names},
        elsewhere=elsewhere,
        queued=max(float(time.ns["queued"].sum() / time.step.sum()) for time in times),
        halves=(),
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


def _blocks(steps: Sequence[Parts]) -> list[Sequence[Parts]]:
    edges = np.linspace(0, len(steps), min(_BLOCKS, len(steps) // 5 or 1) + 1).astype(int)
    return [steps[low:high] for low, high in pairwise(edges)]


def _uneven(times: Sequence[StepTimes], fixed: float) -> tuple[float, float, float]:
    """What uneven shares cost [s], how uneven they are, and what a slower rank costs [s].

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
    """What the mean step waits for the slowest rank because of differences that samples do not explain [s]."""
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
