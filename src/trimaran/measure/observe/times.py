"""The ranks of a job among processes that were watched, and their steps that count.

Left out are the first steps, steps with an evaluation in them, and steps ten times as long as the median. Where half of
the steps have a forward without gradients, it belongs to them (a teacher, a target network).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trimaran.measure.observe.parts import Parts
from trimaran.measure.observe.records import ProcessRecord

Array = NDArray[np.float64]

_WARMUP_STEPS = 5
_WARMUP_SHARE = 0.1
_LONG = 10.0


class StepTimes:
    """Columns of the steps that count, of one rank.

    Args:
        record: of its process
        common: numbers of these steps

    Attributes:
        ns: columns by name [ns]
        cpu: processor time of the process [ns]
        step: all of it [ns]
        work: without what it is blocked by others [ns]
    """

    def __init__(self, record: ProcessRecord, common: NDArray[np.int64]) -> None:
        chosen = np.isin(record.column("step"), common)
        rows = record.rows[chosen]
        self.ns: dict[str, Array] = {
            name.removesuffix("_ns"): rows[:, number].astype(np.float64) for name, number in record.columns.items()
        }
        cpu = np.diff(record.column("cpu_ns"), prepend=record.column("cpu_ns")[:1])
        self.cpu = cpu[chosen].astype(np.float64)
        kinds = ("load", "start", "copy", "forward", "loss", "backward", "exposed", "update", "sync", "collective")
        self.step = sum((self.ns[kind] for kind in (*kinds, "other", "own", "evaluation")), np.zeros(len(rows)))
        self.work = self.step - self.ns["exposed"] - self.ns["collective"]

    def parts(self, exchange: Array, collective: Array) -> list[Parts]:
        """Parts of each step [s].

        Args:
            exchange: the part of the exposed exchange that is nobody's waiting, of each step [ns]
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
            "other": ns["other"] + ns["own"],
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
