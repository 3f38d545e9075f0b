"""The study of hybrid parallelism again: its projections from its own figures, and ours beside them.

Paper mode is its arithmetic: SU^2 of its text, its epochs, SE = 1, the same local batch for both. Ours takes the same
epochs and nothing else of it: workers from our planner, steps and exchanges as predicted, and on both sides the local
batch that reaches the target soonest, among the global batches of which the epochs are known.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from trimaran.costs.convergence.types import CurveTable, Point
from trimaran.costs.hybrid import hybrid_over_data, needed_free_speedup, needed_worker_speedup
from trimaran.costs.software import Software
from trimaran.errors import InputError
from trimaran.planner.pins import Pins
from trimaran.program.types import Schedule
from trimaran.report.crossover.study import Row, Worker
from trimaran.report.reproduction.hybrid import HybridRow, ReproducedHybrid
from trimaran.report.reproduction.hybrid_figures import CLUSTER, STUDIED, WIDTH, StudiedHybrid
from trimaran.session.cluster_planning.planning import MachinePlan, plan_on_machine
from trimaran.session.cluster_planning.request import ClusterRequest
from trimaran.session.crossover.comparing import compare
from trimaran.session.crossover.demand import Demand
from trimaran.session.crossover.replicas import Replicas
from trimaran.session.crossover.request import CrossoverRequest, machine_for
from trimaran.session.crossover.ways import Option, free_options
from trimaran.session.crossover.workers import Workers
from trimaran.session.planning import Progress, ignore_progress
from trimaran.units import format_seconds

PLAIN_SCHEDULES: tuple[Schedule, ...] = ("gpipe", "1f1b")
"""Orders of whole backwards, one segment a stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ours:
    rows: tuple[HybridRow, ...]
    same_method: float | None


def reproduce_hybrid(
    *, networks: str | None = None, software: Software | None = None, progress: Progress = ignore_progress
) -> ReproducedHybrid:
    """The study's networks on its basis and on ours.

    Args:
        networks: some of them, such as "gnmt,biglstm"; None: all
        software: of our figures; None: PyTorch of today
        progress: told what is being done

    Raises:
        InputError: a network that is not of the study
    """
    software = software or Software()
    wanted = _wanted(networks)
    rows: list[HybridRow] = []
    same: dict[str, float | None] = {}
    for place, one in enumerate(wanted):
        progress(one.title, place, len(wanted))
        ours = _ours(one, software)
        same[one.network] = ours.same_method
        for paper, own in zip(paper_rows(one), ours.rows, strict=True):
            rows += [paper, own]
    return ReproducedHybrid(
        cluster=CLUSTER,
        software=f"{software.framework} of {software.year:.0f}",
        rows=tuple(rows),
        same_method=same,
    )


def paper_rows(studied: StudiedHybrid) -> tuple[HybridRow, ...]:
    """The paper's arithmetic on its own figures.

    Args:
        studied: a network of it
    """
    return tuple(_paper_row(studied, devices) for devices in studied.devices)


def _paper_row(studied: StudiedHybrid, devices: int) -> HybridRow:
    workers = devices // WIDTH
    ratio = studied.epochs[devices] / studied.epochs[workers]
    needed = needed_worker_speedup(WIDTH, epoch_ratio=ratio)
    return HybridRow(
        network=studied,
        devices=devices,
        basis="paper",
        speedup=hybrid_over_data(WIDTH, worker_speedup=studied.worker_speedup, epoch_ratio=ratio),
        interval=None,
        published=studied.published.get(devices),
        worker=None,
        ways=None,
        reason=f"{devices} local batches need {ratio:.3f} times the epochs of {workers}; a worker must be more than "
        f"{needed:.2f} times as fast as one device, and is {studied.worker_speedup:.2f} times",
    )


def _wanted(networks: str | None) -> tuple[StudiedHybrid, ...]:
    if networks is None:
        return STUDIED
    by_name = {_plain(one.network): one for one in STUDIED}
    found: dict[str, StudiedHybrid] = {}
    for part in networks.split(","):
        if _plain(part) not in by_name:
            raise InputError(
                f'"{part.strip()}" is not of this study; there are {", ".join(one.network for one in STUDIED)}',
                network=part.strip(),
            )
        found[_plain(part)] = by_name[_plain(part)]
    return tuple(found.values())


def _plain(name: str) -> str:
    return name.strip().lower().replace("-", "").replace("_", "")


def _ours(studied: StudiedHybrid, software: Software) -> _Ours:
    from trimaran.costs.convergence import fit_curve

    cluster, machine = machine_for(CLUSTER, max(studied.devices))
    request = CrossoverRequest(cluster=cluster, devices=studied.devices, software=software)
    replicas = Replicas(studied.network, request, machine)
    asked = ClusterRequest(cluster=cluster, software=software)
    workers = Workers(studied.network, asked, studied.local_batch)
    demand = Demand(fit_curve(_table(studied)))
    known = {devices * studied.local_batch for devices in studied.epochs}
    data, hybrid = (
        _within(
            known,
            free_options(
                studied.devices,
                width,
                base=studied.local_batch,
                replicas=replicas,
                workers=workers,
                links=(1.0,),
            ),
        )
        for width in (1, WIDTH)
    )
    found = {row.devices: row for row in compare(studied.devices, data, hybrid, demand, idle=True).rows}
    return _Ours(
        rows=tuple(
            _our_row(studied, found[devices], replicas, workers, held=_held(found[devices], hybrid, studied, demand))
            if devices in found
            else _missing(studied, devices)
            for devices in studied.devices
        ),
        same_method=_same_method(studied, asked, workers),
    )


def _same_method(studied: StudiedHybrid, asked: ClusterRequest, workers: Workers) -> float | None:
    """Speedup of two devices as the study divides a step: branches placed, or whole stages in a plain order."""
    if studied.method == "placement":
        return workers.speedups(WIDTH).get("placement")
    plans = [
        plan_on_machine(
            studied.network,
            replace(asked, devices=WIDTH, batch=studied.local_batch, pins=Pins(pp=WIDTH, schedule=schedule)),
        )
        for schedule in PLAIN_SCHEDULES
    ]
    return max(plan.speedup for plan in plans if isinstance(plan, MachinePlan))


def _held(row: Row, hybrid: Iterable[Option], studied: StudiedHybrid, demand: Demand) -> float | None:
    """Time of the hybrid with the paper's local batch on all devices, by that of the best data parallelism."""
    own = [one for one in hybrid if one.devices == row.devices and one.local_batch == studied.local_batch]
    if not own:
        return None
    held, data = own[0].way(demand), row.data
    return (held.step_s * held.need / held.global_batch) / (data.step_s * data.need / data.global_batch)


def _our_row(
    studied: StudiedHybrid, row: Row, replicas: Replicas, workers: Workers, *, held: float | None
) -> HybridRow:
    worker = workers.at(WIDTH, row.hybrid.local_batch)
    return HybridRow(
        network=studied,
        devices=row.devices,
        basis="ours",
        speedup=row.speedup,
        interval=row.interval,
        published=None,
        worker=worker,
        ways=(row.data, row.hybrid),
        reason=_reason(studied, row, worker, replicas, held),
        held=held,
    )


def _missing(studied: StudiedHybrid, devices: int) -> HybridRow:
    return HybridRow(
        network=studied,
        devices=devices,
        basis="ours",
        speedup=None,
        interval=None,
        published=None,
        worker=None,
        ways=None,
        reason=f"No device of {CLUSTER} holds a step with one of the global batches whose epochs are known.",
    )


def _reason(studied: StudiedHybrid, row: Row, worker: Worker, replicas: Replicas, held: float | None) -> str:
    """The ways of both, and what a worker would have to be for the same global batch."""
    data, hybrid = row.data, row.hybrid
    told = (
        f"Data parallelism takes {data.name} (global batch {data.global_batch:,}, {format_seconds(data.step_s)} a "
        f"step), the hybrid {hybrid.name} ({hybrid.global_batch:,}, {format_seconds(hybrid.step_s)})"
    )
    share = hybrid.local_batch // WIDTH
    if share >= 1:
        needed = needed_free_speedup(replicas.alone_s(hybrid.local_batch), replicas.alone_s(share))
        told += (
            f"; at the same global batch, with {share} a device, a worker must be more than {needed:.2f} times as fast "
            f"as one device, and is {worker.speedup:.2f} times ({worker.strategy})"
        )
    if data.local_batch != studied.local_batch:
        told += f". The paper holds both to {studied.local_batch}"
        if held is not None and held > 1.0:
            told += f"; so held, the hybrid takes {held:.2f} times as long as data parallelism that is not"
    return told + "."


def _table(studied: StudiedHybrid) -> CurveTable:
    return CurveTable(
        task=f"{studied.title} of the study",
        unit="epochs",
        points=tuple(
            Point(global_batch=devices * studied.local_batch, amount=epochs)
            for devices, epochs in studied.epochs.items()
        ),
        source="projections of Pal et al., arXiv:1907.13257",
        network=studied.network,
        projection=True,
    )


def _within(batches: set[int], options: Iterable[Option]) -> tuple[Option, ...]:
    """Ways whose epochs are known."""
    return tuple(one for one in options if one.global_batch in batches)
