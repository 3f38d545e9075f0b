"""The ablation of three remedies for data that do not arrive, for people and programs: ours, and what is published."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from trimaran.report.reproduction.feeding_figures import PUBLISHED_SAVINGS, SOURCE, PublishedSaving

Basis = Literal["simulated", "measured"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedingRow:
    """One network on one machine with some remedies.

    Attributes:
        machine: its name
        links: between its devices: "PCIe" or "NVLink"
        network: its name
        batch: samples of a device
        baseline: what the saving is held against: "replicate-and-scatter" or "ddp"
        remedy: "none", "split", "pre-load", "compress", "all"; against replicate-and-scatter also "ddp", a process for
            each device, and "ddp, all", the same with what then is left of the three
        step_s: the step [s]
        step_interval: 90 % of it [s]
        saved: share of the baseline's step that is saved
        interval: 90 % of it
        parts: of the step, by name; they sum to it [s]
        basis: how it was found
    """

    machine: str
    links: str
    network: str
    batch: int
    baseline: str
    remedy: str
    step_s: float
    step_interval: tuple[float, float]
    saved: float
    interval: tuple[float, float]
    parts: Mapping[str, float]
    basis: Basis = "simulated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """What a remedy saves on a machine, over its networks and batches.

    Attributes:
        machine: its name
        links: between its devices
        baseline: what it is held against
        remedy: which
        mean: of the saved shares
        interval: 90 % of it, as if all rows erred alike
        most: the largest
        most_network: whose it is
        least: the smallest
        rows: how many
        published: of the study, where it has a figure for this
    """

    machine: str
    links: str
    baseline: str
    remedy: str
    mean: float
    interval: tuple[float, float]
    most: float
    most_network: str
    least: float
    rows: int
    published: PublishedSaving | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReproducedFeeding:
    """All rows.

    Attributes:
        devices: GPUs of each machine
        software: framework and year
        rows: by machine, batch, network, baseline, remedy
        titles: of the machines, by name
        notes: what the reader should know
    """

    devices: int
    software: str
    rows: tuple[FeedingRow, ...]
    titles: Mapping[str, str]
    notes: tuple[str, ...] = ()

    @property
    def machines(self) -> tuple[str, ...]:
        """In order."""
        return tuple(dict.fromkeys(row.machine for row in self.rows))

    @property
    def batches(self) -> tuple[int, ...]:
        """Of a device, in order."""
        return tuple(dict.fromkeys(row.batch for row in self.rows))


def savings(rows: Sequence[FeedingRow]) -> tuple[Saving, ...]:
    """Each remedy against each baseline on each machine; nothing for "none".

    Args:
        rows: in the order in which savings are wanted
    """
    groups: dict[tuple[str, str, str], list[FeedingRow]] = {}
    for row in rows:
        if row.remedy != "none":
            groups.setdefault((row.machine, row.baseline, row.remedy), []).append(row)
    return tuple(_saving(found) for found in groups.values())


def _saving(rows: Sequence[FeedingRow]) -> Saving:
    first, most = rows[0], max(rows, key=lambda row: row.saved)
    is_studied = first.baseline == "replicate-and-scatter" and first.remedy == "all"
    return Saving(
        machine=first.machine,
        links=first.links,
        baseline=first.baseline,
        remedy=first.remedy,
        mean=fmean(row.saved for row in rows),
        interval=(fmean(row.interval[0] for row in rows), fmean(row.interval[1] for row in rows)),
        most=most.saved,
        most_network=most.network,
        least=min(row.saved for row in rows),
        rows=len(rows),
        published=PUBLISHED_SAVINGS.get(first.links) if is_studied else None,
    )


def feeding_document(found: ReproducedFeeding) -> dict[str, Any]:
    """The ablation as plain data; savings are shares, intervals `[low, high]`."""
    return {
        "paper": SOURCE,
        "devices": found.devices,
        "software": found.software,
        "machines": [{"machine": name, "title": found.titles[name]} for name in found.machines],
        "rows": [_row(row) for row in found.rows],
        "summary": [
            *(_summary(one, None) for one in savings(found.rows)),
            *(
                _summary(one, batch)
                for batch in found.batches
                for one in savings([row for row in found.rows if row.batch == batch])
            ),
        ],
        "notes": list(found.notes),
    }


def _row(row: FeedingRow) -> dict[str, Any]:
    return {
        "machine": row.machine,
        "links": row.links,
        "network": row.network,
        "batch_per_device": row.batch,
        "baseline": row.baseline,
        "remedy": row.remedy,
        "step_time_s": row.step_s,
        "step_interval_s": list(row.step_interval),
        "saved": row.saved,
        "interval": list(row.interval),
        "parts_s": dict(row.parts),
        "basis": row.basis,
    }


def _summary(one: Saving, batch: int | None) -> dict[str, Any]:
    published = one.published
    return {
        "machine": one.machine,
        "links": one.links,
        "baseline": one.baseline,
        "remedy": one.remedy,
        "batch_per_device": batch,
        "mean_saved": one.mean,
        "interval": list(one.interval),
        "max_saved": one.most,
        "max_network": one.most_network,
        "min_saved": one.least,
        "rows": one.rows,
        "published_mean_saved": None if published is None else published.mean,
        "published_max_saved": None if published is None else published.most,
        "published_grade": None if published is None else "published",
    }
