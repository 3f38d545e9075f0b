"""`trimaran crossover JOB`: from how many devices on a hybrid reaches the target before data parallelism alone."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from trimaran.base.arguments import told_of_classes
from trimaran.base.errors import InputError
from trimaran.base.progress import Progress, ignore_progress
from trimaran.base.units import format_seconds
from trimaran.features.crossover.candidates import (
    LINKS,
    Demand,
    Option,
    as_planned,
    compare,
    first_ahead,
    fixed_options,
    free_options,
    local_batches,
    tried_counts,
)
from trimaran.features.crossover.request import check_request, counts_of, machine_for
from trimaran.features.crossover.steps import ALONE, Replicas, Workers, check_size
from trimaran.jobs.resolve import resolve
from trimaran.planning.data_parallel_job import DataParallelJob
from trimaran.planning.precision import choose_precision
from trimaran.planning.requests import PlanRequest, check_traced, devices_given, parse_software
from trimaran.pricing.kernels.software import Software
from trimaran.report.crossover import Basis, Crossing, Crossover, Row, Sensitivity, UsedCurve, Worker

if TYPE_CHECKING:
    from trimaran.convergence.curve import Curve


# ---------------------------------------------------------------------------------------------------------------------
# Why a hybrid is ahead or not, in words


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
        basis: how it is calculated
        demand: what batches need
        devices: at which the hybrid is first ahead; None: at none, or no curve
        needed: speedup that the worker needs at the same global batch, where exchanges cost nothing
        idle: at every local batch one device of a worker works alone
    """
    if idle:
        return (
            f"never: no model parallelism over {worker.devices} devices is faster than one device, so the devices of a "
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
    lost = [row.devices for row in rows if row.devices > devices and row.ahead_by <= 1.0]
    if lost:
        return f"at {devices} devices, and not at {', '.join(map(str, lost))}: "
    return f"from {devices} devices on: "


def _short_of(worker: Worker, needed: float | None) -> str:
    if needed is None:
        return ""
    return (
        f". At local batch {worker.local_batch_size} a worker of {worker.devices} would have to be {needed:.2f} times "
        f"as fast as one device, by T(b) / T(b / {worker.devices}), and is {worker.speedup:.2f} times "
        f"({worker.strategy})"
    )


def _needs(rows: Sequence[Row], worker: Worker, basis: Basis, needed: float | None) -> str:
    last = rows[-1]
    if basis == "paper":
        return (
            f"needs a curve: ahead where {worker.devices} times the batch takes more than "
            f"{last.needed_epoch_ratio:.2f} times the epochs ({worker.devices} / {worker.speedup:.2f})"
        )
    known = [(row, row.equal_batch_limit, row.needed_epoch_ratio) for row in rows]
    crossing = [(row, limit, ratio) for row, limit, ratio in known if limit is not None and ratio is not None]
    if not crossing:
        return (
            f"never, whatever the curve: up to {last.devices} devices data parallelism with the same global batch has "
            f"the shorter step at every batch that was tried{_short_of(worker, needed)}"
        )
    row, limit, ratio = crossing[-1]
    beyond = "" if row is last else f"; on {last.devices} devices never, whatever the curve"
    if ratio <= 1.0 and limit <= row.data_parallel.global_batch_size:
        return (
            f"ahead unless smaller batches need far fewer epochs: on {row.devices} devices at a global batch of "
            f"{limit:,} it does more samples a second than data parallelism at "
            f"{row.data_parallel.global_batch_size:,}, its best{beyond}{_short_of(worker, needed)}"
        )
    return (
        f"needs a curve: on {row.devices} devices the largest global batch at which the hybrid's step is the shorter "
        f"one is {limit:,}. It is ahead where the batch at which data parallelism does the most samples a second, "
        f"{row.data_parallel.global_batch_size:,}, takes over {ratio:.1f} times the epochs of that one"
        f"{beyond}{_short_of(worker, needed)}"
    )


def _paper(row: Row, worker: Worker) -> str:
    ratio = row.data_parallel.need / row.hybrid.need
    return (
        f"on {row.devices} devices {row.data_parallel.global_batch_size:,} samples need {ratio:.2f} times the epochs "
        f"of {row.hybrid.global_batch_size:,}; a worker must be more than {worker.devices / ratio:.2f} times as fast "
        f"as one device, and is {worker.speedup:.2f} times ({worker.strategy})"
    )


def _ours(row: Row, rows: Sequence[Row]) -> str:
    data, hybrid = row.data_parallel, row.hybrid
    fewer = f", on {data.devices} of them," if data.devices < row.devices else ""
    told = (
        f"on {row.devices} devices data parallelism at local batch {data.local_batch_size} (global "
        f"{data.global_batch_size:,}){fewer} takes {format_seconds(data.step_time_s)} a step, the best hybrid "
        f"{format_seconds(hybrid.step_time_s)} at global {hybrid.global_batch_size:,}"
    )
    if data.global_batch_size != hybrid.global_batch_size:
        told += f", which needs {hybrid.need / data.need:.2f} times the samples"
    nearest = max(rows, key=lambda one: one.ahead_by)
    if nearest.ahead_by > 1.0:
        return told
    told += f"; it comes nearest on {nearest.devices} devices, {nearest.ahead_by:.2f} times as soon"
    if row.equal_batch_limit is None:
        return f"{told}. With the same global batch, data parallelism has the shorter step at every batch"
    return f"{told}. The largest global batch at which its step is the shorter one is {row.equal_batch_limit:,}"


# ---------------------------------------------------------------------------------------------------------------------
# One width of workers against data parallelism: rows, the crossover, what it would be otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedInputs:
    """The inputs that all widths share.

    Attributes:
        asked: numbers of devices
        base: local batch of paper mode
        replicas: steps of one device, and exchanges
        workers: of several devices
        demand: what batches need
        known: smallest and largest global batch of the curve, where others were not asked for; None: any is tried
    """

    asked: tuple[int, ...]
    base: int
    replicas: Replicas
    workers: Workers
    demand: Demand
    known: tuple[int, int] | None


def cross(case: SharedInputs, width: int, basis: Basis) -> Crossing:
    """A width on a basis.

    Args:
        case: what all widths share
        width: devices of a worker
        basis: how it is calculated
    """
    counts = counts_of(case.asked, width)
    if basis == "ours":
        beyond = _beyond(case, width)
        counts = tuple(count for count in counts if count not in beyond)
    data, hybrid = (_options(case, counts, each, basis) for each in (1, width))
    if basis == "ours":
        hybrid = as_planned(counts, hybrid, case.demand, case.workers)
    idle = basis == "ours"
    found = compare(counts, data, hybrid, case.demand, idle=idle)
    worker = case.workers.at(width, case.base)
    needed = case.replicas.needed_speedup(case.base, width)
    is_known = case.demand.curve is not None
    return Crossing(
        model_parallel_width=width,
        basis=basis,
        worker=worker,
        needed_speedup=needed,
        crossover_devices=found.devices if is_known else None,
        crossover_interval=found.interval if is_known else (None, None),
        share_never=found.never if is_known else None,
        rows=found.rows if is_known else tuple(map(_untold, found.rows)),
        sensitivity=_sensitivities(case, counts, data, hybrid, worker, idle=idle) if is_known else (),
        reason=lack_of_memory(width, data, hybrid)
        or reason_of(
            found.rows,
            worker,
            basis,
            case.demand,
            devices=found.devices if is_known else None,
            needed=needed,
            idle=all(one.worker is not None and one.worker.strategy == ALONE for one in hybrid),
        ),
    )


def _untold(row: Row) -> Row:
    return replace(row, speedup_over_dp=None, speedup_interval=None, likely=None)


def _options(case: SharedInputs, counts: Sequence[int], width: int, basis: Basis) -> tuple[Option, ...]:
    if basis == "paper":
        return fixed_options(counts, width, base=case.base, replicas=case.replicas, workers=case.workers)
    return free_options(
        counts,
        width,
        base=case.base,
        replicas=case.replicas,
        workers=case.workers,
        links=(1.0,) if case.demand.curve is None else LINKS,
        known=case.known,
    )


def _beyond(case: SharedInputs, width: int) -> tuple[int, ...]:
    """Numbers of devices that have no global batch within the curve, as replicas or as workers of a width."""
    if case.known is None:
        return ()
    low, high = case.known

    def has(count: int, each: int) -> bool:
        tried = (used // each * batch for used in tried_counts((count,), each) for batch in local_batches(case.base))
        return any(low <= batch <= high for batch in tried)

    return tuple(count for count in counts_of(case.asked, width) if not (has(count, 1) and has(count, width)))


def _check_beyond(case: SharedInputs, widths: Sequence[int]) -> Iterator[str]:
    """What is said of numbers of devices that have no batch within the curve; refused where a width has no others."""
    for width in widths:
        beyond = _beyond(case, width)
        if not beyond or case.known is None:
            continue
        low, high = case.known
        told = f"on {', '.join(map(str, beyond))} devices no global batch is among those of the curve, {low} to {high}"
        if beyond == counts_of(case.asked, width):
            raise InputError(
                f"workers of {width}: {told}: ask for other --devices, or for a --local-batch, with which batches "
                "beyond the curve are tried too",
                code="crossover.beyond-curve",
                range=case.known,
                width=width,
            )
        yield f"workers of {width}: {told}; --local-batch asks for others too"


def _sensitivities(
    case: SharedInputs,
    counts: Sequence[int],
    data: Sequence[Option],
    hybrid: Sequence[Option],
    worker: Worker,
    *,
    idle: bool,
) -> tuple[Sensitivity, ...]:
    """The crossover with one thing otherwise."""
    demand = case.demand
    batches = sorted({one.global_batch for one in (*data, *hybrid)})
    usual = {batch: demand.at(batch).amount for batch in batches}
    flatter, steeper = demand.steeper(batches, -1.0), demand.steeper(batches, 1.0)
    found: list[Sensitivity] = []

    def note(change: str, cost: Callable[[Option], float]) -> None:
        found.append(Sensitivity(change=change, crossover_devices=first_ahead(counts, data, hybrid, cost, idle=idle)))

    low, high = (end / worker.speedup for end in worker.speedup_interval)
    for factor, end in ((low, worker.speedup_interval[0]), (high, worker.speedup_interval[1])):
        note(f"workers of {worker.devices} {end:.2f} times as fast", _with_workers(usual, factor))
    for change, needs in (("curve as flat as its interval allows", flatter), ("curve as steep", steeper)):
        note(change, _with_workers(needs, 1.0))
    for change, links in (("links half as fast", 0.5), ("links twice as fast", 2.0)):
        note(change, _on_links(usual, links))
    return tuple(found)


def _with_workers(needs: Mapping[int, float], factor: float) -> Callable[[Option], float]:
    """Time to the target by what batches need, with a factor on the speed of workers of several devices."""

    def cost(one: Option) -> float:
        changed_s = 0.0
        if one.worker is not None:
            speedup = max(1.0, one.speedup * factor)
            changed_s = one.alone_s / speedup - one.alone_s / one.speedup
        return (one.step_s() + changed_s) * needs[one.global_batch] / one.global_batch

    return cost


def _on_links(needs: Mapping[int, float], links: float) -> Callable[[Option], float]:
    return lambda one: one.step_s(links) * needs[one.global_batch] / one.global_batch


BASES: tuple[Basis, ...] = ("paper", "ours")


@told_of_classes
def find_crossover(
    job: str,
    *,
    cluster: str,
    devices: int | Sequence[int] | None = None,
    widths: Sequence[int] = (2, 4, 8),
    curve: str | None = None,
    local_batch: int | None = None,
    precision: str | None = None,
    software: str | None = None,
    options: Mapping[str, str] | None = None,
    progress: Progress = ignore_progress,
) -> Crossover:
    """Find from how many devices on workers of several devices reach a target sooner than data parallelism.

    Each width of workers is compared with data parallelism, on the study's basis and on ours.

    Args:
        job: as for `trimaran.check`
        cluster: machine of the catalog, such as "dgx1-v100", with the number of nodes that is needed, or "dgx-a100:64"
        devices: numbers of devices, such as (8, 16), or one; None: 8 to 1,024 in doublings, on as many nodes as
            that takes; of "NAME:N" as far as its nodes have them
        widths: devices of a worker
        curve: of convergence: name in the catalog, or a file; None: the job's own
        local_batch: samples of a worker, with which batches beyond the curve are tried too; None: the job's batch
        precision: of compute: "ieee", "fp32", "tf32", "bf16" or "fp16"; None: as for `trimaran.plan`
        software: framework and year, such as "pytorch:2022"; None: PyTorch of today
        options: of the job, by name
        progress: told what is being done

    Raises:
        InputError: an unknown job, machine or curve, a curve of another task, or too few devices
    """
    counts = tuple(sorted(set(devices_given(devices, cluster=cluster, usual="8..1024"))))
    check_request(counts, tuple(widths), local_batch)
    found_cluster, machine = machine_for(cluster, max(counts))
    made = resolve(job)
    name = curve or getattr(made, "curve", None)
    known = None if name is None else _curve(name, job)
    base = local_batch or made.global_batch_size
    framework = Software() if software is None else check_traced(parse_software(software))
    chosen = choose_precision(job, precision, machine.node.device)
    asked = PlanRequest(cluster=found_cluster, precision=chosen.name, software=framework, options=options or {})
    check_size(job, asked, max(widths))
    workers = Workers(job, asked, base)
    alone = DataParallelJob(
        reference=job, machine=machine, precision=chosen.name, software=framework, options=options or {}
    )
    case = SharedInputs(
        asked=counts,
        base=base,
        replicas=Replicas(alone),
        workers=workers,
        demand=Demand(None if known is None else known[0]),
        known=None if known is None or local_batch is not None else known[0].range,
    )
    left_out = tuple(_check_beyond(case, widths))
    crossings = []
    for place, width in enumerate(widths):
        progress(f"workers of {width} devices", place, len(widths))
        crossings += [cross(case, width, basis) for basis in BASES]
    used = None if known is None or name is None else _used(name, case, *known)
    return Crossover(
        job=job,
        cluster=found_cluster,
        device=machine.node.device.title,
        precision=chosen.name,
        precision_source=chosen.source,
        software=framework.text,
        local_batch_size=base,
        devices=case.asked,
        curve=used,
        crossings=tuple(crossings),
        notes=(*_notes(cluster, found_cluster, case, used), *left_out),
    )


def _curve(name: str, reference: str) -> "tuple[Curve, tuple[str, ...]]":
    from trimaran.convergence.curve import check_task
    from trimaran.convergence.files import find_curve

    curve = find_curve(name)
    return curve, check_task(curve, reference)


def _used(name: str, case: SharedInputs, curve: "Curve", warnings: tuple[str, ...]) -> UsedCurve:
    table = curve.table
    # Of paper mode, whose local batch is given.
    beyond = [told for count in case.asked for told in curve.need(case.base * count).warnings]
    return UsedCurve(
        name=name,
        task=table.task,
        source=table.source,
        unit=table.unit,
        range=curve.range,
        projection=table.projection,
        warnings=tuple(dict.fromkeys((*warnings, *beyond))),
    )


def _notes(asked: str, cluster: str, case: SharedInputs, used: UsedCurve | None) -> tuple[str, ...]:
    found = []
    if cluster != asked:
        found.append(f'"{asked}" has fewer devices than were asked for: {cluster} is taken')
    if used is None:
        found.append("no curve: what would have to hold is said, and when it holds is not (--curve NAME|FILE)")
    elif used.projection:
        found.append("the curve is a study's projection, not a measurement")
    if not case.replicas.fits(case.base):
        found.append(f"no device holds a step of {case.base} samples: paper mode calculates as if one did")
    return (*found, *case.workers.notes.values())
