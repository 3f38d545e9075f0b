"""Reproduces the study of hybrid parallelism: its projections from its figures, next to ours.

Paper mode is the paper's arithmetic: SU^2 of its text, its epochs, SE = 1, the same local batch for both. Ours uses
only its epochs: our planner finds the workers, steps and exchanges are predicted, and each side has the local batch
that reaches the target soonest, among the global batches with known epochs.

The public figures of the study, and their grades.

Source:
    Pal et al., "Optimizing Multi-GPU Parallelization Strategies for Deep Learning Training", IEEE Micro 39(5), 2019;
    arXiv:1907.13257. Its abstract has the gains: 26.5, 8 and 22 %.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from rich.table import Table

from trimaran.base.errors import InputError
from trimaran.base.progress import Progress, ignore_progress
from trimaran.base.units import format_seconds, format_span
from trimaran.convergence.types import CurveTable, Point
from trimaran.features.crossover.candidates import Demand, Option, as_planned, compare, free_options
from trimaran.features.crossover.request import machine_for
from trimaran.features.crossover.steps import Replicas, Workers
from trimaran.planner.pins import Pins
from trimaran.planning.data_parallel_job import DataParallelJob
from trimaran.planning.plan import make_plan
from trimaran.planning.requests import PlanRequest
from trimaran.pricing.kernels.software import Software
from trimaran.program.json_files import to_plain
from trimaran.program.strategy import Schedule
from trimaran.report.crossover import Basis, Row, TrainingWay, Worker
from trimaran.report.tables import add_figures, add_words, frame_table
from trimaran_studies.reproduce.hybrid_speedup import hybrid_over_data, needed_worker_speedup

Grade = Literal["published", "recalled", "derived"]
"""Published: in the abstract. Recalled: in no public text, but the arithmetic gives the published gain.
Derived: computed from the published gain, by solving the arithmetic for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudiedHybrid:
    """A network of the study.

    Attributes:
        network: reference
        title: in the study
        method: model parallelism inside a worker: "placement" of branches, or "stages" of a pipeline
        local_batch: of a worker [samples]
        worker_speedup: SU^2, two devices over one [1]
        epochs: to the target by number of devices with a local batch each; where only a ratio is known, 1 and the ratio
        epochs_grade: grade of the epochs
        devices: numbers of devices with a figure
        assumed_devices: whether the count is assumed, because the public text says only "at scale"
        published: gain of the hybrid over data parallelism, by devices, as a share
        published_grades: grade of each gain
        note: for the reader
    """

    network: str
    title: str
    method: str
    local_batch: int
    worker_speedup: float
    epochs: Mapping[int, float]
    epochs_grade: Grade
    devices: tuple[int, ...]
    assumed_devices: bool
    published: Mapping[int, float]
    published_grades: Mapping[int, Grade]
    note: str


STUDIED: tuple[StudiedHybrid, ...] = (
    StudiedHybrid(
        network="inception_v3",
        title="Inception-V3",
        method="placement",
        local_batch=64,
        worker_speedup=1.32,
        epochs={1: 4, 2: 4, 4: 4, 8: 4, 16: 4, 32: 4, 64: 7, 128: 12, 256: 23},
        epochs_grade="recalled",
        devices=(8, 16, 32, 64, 128, 256),
        assumed_devices=False,
        published={64: 0.155, 128: 0.131, 256: 0.265},
        published_grades={64: "recalled", 128: "recalled", 256: "published"},
        note="epochs at 128 devices are derived from the gain there",
    ),
    StudiedHybrid(
        network="gnmt",
        title="GNMT",
        method="stages",
        local_batch=128,
        worker_speedup=1.15,
        epochs={128: 1.0, 256: 1.878},
        epochs_grade="derived",
        devices=(256,),
        assumed_devices=True,
        published={256: 0.08},
        published_grades={256: "published"},
        note="the ratio of epochs, 1.878, is computed from the published 8 %; 256 devices are assumed",
    ),
    StudiedHybrid(
        network="biglstm",
        title="BigLSTM",
        method="stages",
        local_batch=128,
        worker_speedup=1.22,
        epochs={16: 1.0, 32: 2.0},
        epochs_grade="derived",
        devices=(32,),
        assumed_devices=True,
        published={32: 0.22},
        published_grades={32: "published"},
        note="the ratio of epochs, 2, is computed from the published 22 %: twice the replicas gain nothing; "
        "32 devices are assumed",
    ),
)

WIDTH = 2
"""Devices of a worker."""

CLUSTER = "dgx1-v100-32gb"
"""The machine of our figures: V100 joined by NVLink, with memory for BigLSTM."""


# ---------------------------------------------------------------------------------------------------------------------
# Tables and JSON of the study: its projections next to ours


SOURCE = "Pal et al., IEEE Micro 39(5), 2019; arXiv:1907.13257"


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridRow:
    """A network on a number of devices, on one basis.

    Attributes:
        network: of the study
        devices: in all
        basis: the paper's arithmetic and figures, or our predictions with the local batch free
        speedup: time of data parallelism by time of the hybrid; None where data parallelism does not fit
        interval: 90 % of it; None in paper mode, which has none
        published: gain in the paper, as a share; None: it gives none
        worker: ours; None in paper mode
        ways: ours: best data parallelism and best hybrid
        at_paper_batch: ours: time of the hybrid with the paper's local batch by time of the best data parallelism
        reason: of the result, in words
    """

    network: StudiedHybrid
    devices: int
    basis: Basis
    speedup: float | None
    interval: tuple[float, float] | None
    published: float | None
    worker: Worker | None
    ways: tuple[TrainingWay, TrainingWay] | None
    reason: str
    at_paper_batch: float | None = None

    @property
    def pays(self) -> bool:
        """Whether the hybrid is faster."""
        return self.speedup is None or self.speedup > 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReproducedHybrid:
    """All networks.

    Attributes:
        cluster: machine of our figures
        software: framework and year of our figures
        rows: by network and devices, the paper's before ours
        same_method: our speedup of two devices by the study's own method, by network; None: the planner found none
        notes: for the reader
    """

    cluster: str
    software: str
    rows: tuple[HybridRow, ...]
    same_method: dict[str, float | None]
    notes: tuple[str, ...] = ()


def hybrid_document(found: ReproducedHybrid) -> dict[str, Any]:
    """The reproduction as plain data; intervals are `[low, high]`, gains are shares."""
    studied = {row.network.network: row.network for row in found.rows}
    return {
        "paper": SOURCE,
        "cluster": found.cluster,
        "software": found.software,
        "rows": [_row(row) for row in found.rows],
        "networks": [
            {
                "network": one.network,
                "title": one.title,
                "method": one.method,
                "local_batch_size": one.local_batch,
                "paper_worker_speedup": one.worker_speedup,
                "our_worker_speedup_same_method": found.same_method.get(one.network),
                "epochs_by_devices": {str(devices): epochs for devices, epochs in one.epochs.items()},
                "epochs_grade": one.epochs_grade,
                "devices_assumed": one.assumed_devices,
                "note": one.note,
            }
            for one in studied.values()
        ],
        "notes": list(found.notes),
    }


def _row(row: HybridRow) -> dict[str, Any]:
    ways = None if row.ways is None else to_plain(row.ways)
    return {
        "network": row.network.network,
        "devices": row.devices,
        "basis": row.basis,
        "speedup_over_dp": row.speedup,
        "gain_over_dp": None if row.speedup is None else row.speedup - 1.0,
        "interval": None if row.interval is None else list(row.interval),
        "hybrid_pays": row.pays,
        "published_gain": row.published,
        "published_grade": None if row.published is None else row.network.published_grades[row.devices],
        "model_parallel_width": 2,
        "worker": to_plain(row.worker),
        "data_parallel": None if ways is None else ways[0],
        "hybrid": None if ways is None else ways[1],
        "paper_hybrid_over_dp_time": row.at_paper_batch,
        "reason": row.reason,
    }


def hybrid_table(found: ReproducedHybrid) -> Table:
    """A line for each network and number of devices: published, the paper's arithmetic, ours."""
    table = frame_table()
    add_words(table, "network", no_wrap=True)
    add_figures(table, "GPUs", "published", "paper mode", "ours", "90 %")
    for row in found.rows:
        if row.basis != "paper":
            continue
        ours = next(
            (one for one in found.rows if one.basis == "ours" and _key(one) == _key(row)),
            None,
        )
        grade = "" if row.published is None or row.network.published_grades[row.devices] == "published" else " ~"
        table.add_row(
            row.network.title,
            f"{row.devices}{'*' if row.network.assumed_devices else ''}",
            "" if row.published is None else f"{100 * row.published:+.1f} %{grade}",
            _gain(row),
            "" if ours is None else _gain(ours),
            "" if ours is None or ours.interval is None else _interval(ours.interval),
        )
    return table


def hybrid_lines(found: ReproducedHybrid) -> list[str]:
    """Whether ours agrees with the paper, and why."""
    lines = []
    for row in found.rows:
        if row.basis == "paper":
            continue
        paper = next(one for one in found.rows if one.basis == "paper" and _key(one) == _key(row))
        verdict = "agrees" if paper.pays == row.pays else "disagrees"
        lines.append(f"{row.network.title} on {row.devices}: ours {verdict}. {row.reason}")
    return lines


def legend_lines(found: ReproducedHybrid) -> list[str]:
    """The meaning of the columns."""
    studied = {row.network.network: row.network for row in found.rows}.values()
    return [
        f"Gain of two-device workers over data parallelism on the same devices. {SOURCE}.",
        "paper mode: its speedups and epochs, SE = 1, a fixed local batch. ours: the same epochs, steps predicted on "
        f"{found.cluster} ({found.software}), the best local batch on each side.",
        "~: recalled, not in the abstract. *: the abstract says only 'at scale'; the count is assumed.",
        *(f"{one.title}: {one.note}. {_same_method_line(found, one)}" for one in studied),
        *found.notes,
    ]


def _key(row: HybridRow) -> tuple[str, int]:
    return row.network.network, row.devices


def _interval(interval: tuple[float, float]) -> str:
    low, high = (100 * (end - 1) for end in interval)
    return f"{format_span(f'{low:+.0f}', f'{high:+.0f}')} %"


def _gain(row: HybridRow) -> str:
    return "no dp" if row.speedup is None else f"{100 * (row.speedup - 1):+.1f} %"


def _same_method_line(found: ReproducedHybrid, one: StudiedHybrid) -> str:
    ours = found.same_method.get(one.network)
    told = "finds none" if ours is None else f"predicts {ours:.2f}"
    return f"Two devices by {one.method}, its own method: {one.worker_speedup:.2f}; our planner {told}."


PLAIN_SCHEDULES: tuple[Schedule, ...] = ("gpipe", "1f1b")
"""Schedules of whole backward passes, with one segment a stage."""


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
        progress: called with the current item

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
        software=software.text,
        rows=tuple(rows),
        same_method=same,
    )


def paper_rows(studied: StudiedHybrid) -> tuple[HybridRow, ...]:
    """The paper's arithmetic on its figures.

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
    from trimaran.convergence.curve import fit_curve

    cluster, machine = machine_for(CLUSTER, max(studied.devices))
    replicas = Replicas(DataParallelJob(reference=studied.network, machine=machine, software=software))
    asked = PlanRequest(cluster=cluster, software=software)
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
    hybrid = as_planned(studied.devices, hybrid, demand, workers)
    found = {row.devices: row for row in compare(studied.devices, data, hybrid, demand, idle=True).rows}
    return _Ours(
        rows=tuple(
            _our_row(
                studied,
                found[devices],
                replicas,
                workers,
                at_paper_batch=_at_paper_batch(found[devices], hybrid, studied, demand),
            )
            if devices in found
            else _missing(studied, devices)
            for devices in studied.devices
        ),
        same_method=_same_method(studied, asked, workers),
    )


def _same_method(studied: StudiedHybrid, asked: PlanRequest, workers: Workers) -> float | None:
    """Speedup of two devices with the study's method: branches placed, or whole stages in a plain schedule."""
    if studied.method == "placement":
        return workers.speedups(WIDTH).get("placement")
    plans = [
        make_plan(
            studied.network,
            replace(asked, devices=WIDTH, batch=studied.local_batch, pins=Pins(pp=WIDTH, schedule=schedule)),
        )
        for schedule in PLAIN_SCHEDULES
    ]
    return max(plan.simulated.speedup for plan in plans)


def _at_paper_batch(row: Row, hybrid: Iterable[Option], studied: StudiedHybrid, demand: Demand) -> float | None:
    """Time of the hybrid with the paper's local batch on all devices, by time of the best data parallelism."""
    own = [one for one in hybrid if one.devices == row.devices and one.local_batch == studied.local_batch]
    if not own:
        return None
    way, data = own[0].way(demand), row.data_parallel
    return way.step_time_s * way.need / way.global_batch_size / (data.step_time_s * data.need / data.global_batch_size)


def _our_row(
    studied: StudiedHybrid, row: Row, replicas: Replicas, workers: Workers, *, at_paper_batch: float | None
) -> HybridRow:
    worker = workers.at(WIDTH, row.hybrid.local_batch_size)
    return HybridRow(
        network=studied,
        devices=row.devices,
        basis="ours",
        speedup=row.speedup_over_dp,
        interval=row.speedup_interval,
        published=None,
        worker=worker,
        ways=(row.data_parallel, row.hybrid),
        reason=_reason(studied, row, worker, replicas, at_paper_batch),
        at_paper_batch=at_paper_batch,
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
        reason=f"With every global batch of known epochs, a step exceeds the memory of a device of {CLUSTER}.",
    )


def _reason(studied: StudiedHybrid, row: Row, worker: Worker, replicas: Replicas, at_paper_batch: float | None) -> str:
    """The best strategy of each side, and the worker speedup needed at the same global batch."""
    data, hybrid = row.data_parallel, row.hybrid
    told = (
        f"Data parallelism takes {data.name} (global batch {data.global_batch_size:,}, "
        f"{format_seconds(data.step_time_s)} a step), the hybrid {hybrid.name} ({hybrid.global_batch_size:,}, "
        f"{format_seconds(hybrid.step_time_s)})"
    )
    needed = replicas.needed_speedup(hybrid.local_batch_size, WIDTH)
    if needed is not None:
        told += (
            f"; at the same global batch, with {hybrid.local_batch_size // WIDTH} a device, a worker must be more than "
            f"{needed:.2f} times as fast as one device, and is {worker.speedup:.2f} times ({worker.strategy})"
        )
    if data.local_batch_size != studied.local_batch:
        told += f". The paper gives both a local batch of {studied.local_batch}"
        if at_paper_batch is not None and at_paper_batch > 1.0:
            told += f"; with it, the hybrid takes {at_paper_batch:.2f} times as long as the best data parallelism"
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
    """Options whose epochs are known."""
    return tuple(one for one in options if one.global_batch in batches)
