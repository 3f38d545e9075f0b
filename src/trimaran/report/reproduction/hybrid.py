"""The study of hybrid parallelism again, for people and programs: its projections beside ours."""

from dataclasses import dataclass
from typing import Any

from rich import box
from rich.table import Table

from trimaran.report.crossover.document import way_document, worker_document
from trimaran.report.crossover.study import Basis, Way, Worker
from trimaran.report.reproduction.hybrid_figures import StudiedHybrid

SOURCE = "Pal et al., IEEE Micro 39(5), 2019; arXiv:1907.13257"


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridRow:
    """A network on so many devices, on one basis.

    Attributes:
        network: of the study
        devices: in all
        basis: the paper's arithmetic and figures, or our predictions with the local batch free
        speedup: time of data parallelism by that of the hybrid; None where data parallelism does not fit
        interval: 90 % of it; None in paper mode, which has none
        published: gain that the paper states, as a share; None: none
        worker: ours; None in paper mode
        ways: ours: best data parallelism and best hybrid
        held: ours: time of the hybrid with the paper's local batch by that of the best data parallelism
        reason: why
    """

    network: StudiedHybrid
    devices: int
    basis: Basis
    speedup: float | None
    interval: tuple[float, float] | None
    published: float | None
    worker: Worker | None
    ways: tuple[Way, Way] | None
    reason: str
    held: float | None = None

    @property
    def pays(self) -> bool:
        """Whether the hybrid is ahead."""
        return self.speedup is None or self.speedup > 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReproducedHybrid:
    """All networks.

    Attributes:
        cluster: machine of our figures
        software: framework and year of our figures
        rows: by network and devices, the paper's before ours
        same_method: our speedup of two devices by the study's own method, by network; None: the planner found none
        notes: what the reader should know
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
    ways = None if row.ways is None else [way_document(way) for way in row.ways]
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
        "worker": None if row.worker is None else worker_document(row.worker),
        "data_parallel": None if ways is None else ways[0],
        "hybrid": None if ways is None else ways[1],
        "paper_hybrid_over_dp_time": row.held,
        "reason": row.reason,
    }


def hybrid_table(found: ReproducedHybrid) -> Table:
    """A line for each network and number of devices: published, the paper's arithmetic, ours."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, title_justify="left")
    table.add_column("network", no_wrap=True)
    for title in ("GPUs", "published", "paper mode", "ours", "90 %"):
        table.add_column(title, justify="right", no_wrap=True)
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
    """Where ours disagrees, and why; what the figures rest on."""
    lines = []
    for row in found.rows:
        if row.basis == "paper":
            continue
        paper = next(one for one in found.rows if one.basis == "paper" and _key(one) == _key(row))
        verdict = "agrees" if paper.pays == row.pays else "disagrees"
        lines.append(f"{row.network.title} on {row.devices}: ours {verdict}. {row.reason}")
    return lines


def legend_lines(found: ReproducedHybrid) -> list[str]:
    """What the columns mean."""
    studied = {row.network.network: row.network for row in found.rows}.values()
    return [
        f"Gain of two-device workers over data parallelism on the same devices. {SOURCE}.",
        "paper mode: its speedups and epochs, SE = 1, a fixed local batch. ours: the same epochs, steps predicted on "
        f"{found.cluster} ({found.software}), the local batch free on both sides.",
        "~: recalled, not in the abstract. *: the abstract says 'at scale'; the count is ours.",
        *(f"{one.title}: {one.note}. {_same_method(found, one)}" for one in studied),
        *found.notes,
    ]


def _key(row: HybridRow) -> tuple[str, int]:
    return row.network.network, row.devices


def _interval(interval: tuple[float, float]) -> str:
    low, high = (100 * (end - 1) for end in interval)
    return f"{low:+.0f} to {high:+.0f} %"


def _gain(row: HybridRow) -> str:
    return "no dp" if row.speedup is None else f"{100 * (row.speedup - 1):+.1f} %"


def _same_method(found: ReproducedHybrid, one: StudiedHybrid) -> str:
    ours = found.same_method.get(one.network)
    told = "finds none" if ours is None else f"predicts {ours:.2f}"
    return f"Two devices by {one.method}, its own method: {one.worker_speedup:.2f}; our planner {told}."
