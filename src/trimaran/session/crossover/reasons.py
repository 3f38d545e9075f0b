"""Why a hybrid is ahead or not, in words."""

from collections.abc import Sequence

from trimaran.report.crossover.study import Basis, Row, Worker
from trimaran.session.crossover.demand import Demand
from trimaran.session.crossover.ways import Option
from trimaran.units import format_seconds


def lack_of_memory(width: int, data: Sequence[Option], hybrid: Sequence[Option]) -> str:
    """Why there is nothing to compare; empty where there is.

    Args:
        width: devices of a worker
        data: ways of data parallelism that fit
        hybrid: ways with workers of several devices that fit
    """
    if data and hybrid:
        return ""
    if hybrid:
        return (
            f"no device holds a step at any local batch, and a worker of {width} does: there is nothing to compare with"
        )
    return f"neither a device nor a worker of {width} holds a step at any local batch"


def reason_of(
    rows: Sequence[Row],
    worker: Worker,
    basis: Basis,
    demand: Demand,
    *,
    devices: int | None,
    needed: float | None,
    idle: bool = False,
) -> str:
    """Why the crossover is where it is.

    Args:
        rows: by devices
        worker: at the local batch of paper mode
        basis: how it is reckoned
        demand: what batches need
        devices: at which the hybrid is first ahead; None: at none, or no curve
        needed: speedup that the worker needs at the same global batch, where exchanges cost nothing
        idle: at every local batch one device of a worker works alone
    """
    if idle:
        return (
            f"never: no division of a step over {worker.width} devices is faster than one device, so the devices of a "
            "worker are better used as replicas"
        )
    if demand.curve is None:
        return _needs(rows, worker, basis, needed)
    row = next((row for row in rows if row.devices == devices), rows[-1])
    begin = _from(rows, devices)
    return begin + (_paper(row, worker) if basis == "paper" else _ours(row, rows) + _short_of(worker, needed))


def _from(rows: Sequence[Row], devices: int | None) -> str:
    """From where the hybrid is ahead, and where it is no longer."""
    if devices is None:
        return "never: "
    lost = [row.devices for row in rows if row.devices > devices and row.speedup <= 1.0]
    if lost:
        return f"at {devices} devices, and not at {', '.join(map(str, lost))}: "
    return f"from {devices} devices on: "


def _short_of(worker: Worker, needed: float | None) -> str:
    if needed is None:
        return ""
    return (
        f". At local batch {worker.batch} a worker of {worker.width} would have to be {needed:.2f} times as fast as "
        f"one device, by T(b) / T(b / {worker.width}), and is {worker.speedup:.2f} times ({worker.strategy})"
    )


def _needs(rows: Sequence[Row], worker: Worker, basis: Basis, needed: float | None) -> str:
    last = rows[-1]
    if basis == "paper":
        return (
            f"needs a curve: ahead where {worker.width} times the batch takes more than "
            f"{last.needed_epoch_ratio:.2f} times the epochs ({worker.width} / {worker.speedup:.2f})"
        )
    if last.equal_batch_limit is None:
        return (
            f"never, whatever the curve: up to {last.devices} devices data parallelism with the same global batch has "
            f"the shorter step at every batch that was tried{_short_of(worker, needed)}"
        )
    if last.needed_epoch_ratio <= 1.0 and last.equal_batch_limit <= last.data.global_batch:
        return (
            f"ahead unless smaller batches need far fewer epochs: on {last.devices} devices at a global batch of "
            f"{last.equal_batch_limit:,} it does more samples a second than data parallelism at "
            f"{last.data.global_batch:,}, its best" + _short_of(worker, needed)
        )
    return (
        f"needs a curve: on {last.devices} devices the largest global batch at which the hybrid's step is the shorter "
        f"one is {last.equal_batch_limit:,}. It is ahead where the batch at which data parallelism does the most "
        f"samples a second, {last.data.global_batch:,}, takes over {last.needed_epoch_ratio:.1f} times the epochs "
        f"of that one{_short_of(worker, needed)}"
    )


def _paper(row: Row, worker: Worker) -> str:
    ratio = row.data.need / row.hybrid.need
    return (
        f"on {row.devices} devices {row.data.global_batch:,} samples need {ratio:.2f} times the epochs of "
        f"{row.hybrid.global_batch:,}; a worker must be more than {worker.width / ratio:.2f} times as fast as one "
        f"device, and is {worker.speedup:.2f} times ({worker.strategy})"
    )


def _ours(row: Row, rows: Sequence[Row]) -> str:
    data, hybrid = row.data, row.hybrid
    fewer = f", on {data.devices} of them," if data.devices < row.devices else ""
    told = (
        f"on {row.devices} devices data parallelism at local batch {data.local_batch} (global {data.global_batch:,})"
        f"{fewer} takes {format_seconds(data.step_s)} a step, the best hybrid {format_seconds(hybrid.step_s)} at "
        f"global {hybrid.global_batch:,}"
    )
    if data.global_batch != hybrid.global_batch:
        told += f", which needs {hybrid.need / data.need:.2f} times the samples"
    nearest = max(rows, key=lambda one: one.speedup)
    if nearest.speedup > 1.0:
        return told
    told += f"; it comes nearest on {nearest.devices} devices, {nearest.speedup:.2f} times as soon"
    if row.equal_batch_limit is None:
        return f"{told}. With the same global batch, data parallelism has the shorter step at every batch"
    return f"{told}. The largest global batch at which its step is the shorter one is {row.equal_batch_limit:,}"
