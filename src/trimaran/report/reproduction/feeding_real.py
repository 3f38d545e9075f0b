"""The three remedies tried on the machine at hand, for people and programs: predicted and measured."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from rich.table import Table

from trimaran.report.framing import frame_table

_DRAWS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedRemedy:
    """One job on one kind of links with some remedies.

    Attributes:
        machine: with what its links are held to, such as "2 ranks, 200 Mb/s"
        network: the job
        batch: samples of a rank
        baseline: what the saving is held against
        remedy: as in `report.reproduction.feeding`
        times_s: of its steps [s]
        base_times_s: of the steps of the baseline [s]
        predicted_s: of a step [s]; None where nobody measured what it rests on
    """

    machine: str
    network: str
    batch: int
    baseline: str
    remedy: str
    times_s: tuple[float, ...]
    base_times_s: tuple[float, ...]
    predicted_s: float | None

    @property
    def step_s(self) -> float:
        """Mean of the steps [s]; what workers hand over comes in bursts, of which a median shows one side."""
        return fmean(self.times_s)

    @property
    def saved(self) -> float:
        """Share of the baseline's mean step that is saved."""
        return 1.0 - self.step_s / fmean(self.base_times_s)

    @property
    def interval(self) -> tuple[float, float]:
        """90 % of it, by drawing steps again and again."""
        if self.times_s == self.base_times_s:
            return 0.0, 0.0
        draw = random.Random(0)
        found = sorted(
            1.0
            - fmean(draw.choices(self.times_s, k=len(self.times_s)))
            / fmean(draw.choices(self.base_times_s, k=len(self.base_times_s)))
            for _ in range(_DRAWS)
        )
        return found[_DRAWS // 20], found[-_DRAWS // 20 - 1]

    @property
    def error(self) -> float | None:
        """Predicted by measured step, less 1."""
        return None if self.predicted_s is None else self.predicted_s / self.step_s - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedFeeding:
    """All that was tried.

    Attributes:
        ranks: processes
        rows: by links, job, baseline and remedy
        notes: what the reader should know
    """

    ranks: int
    rows: tuple[TriedRemedy, ...]
    notes: tuple[str, ...] = ()


def tried_document(found: TriedFeeding) -> dict[str, Any]:
    """All figures as plain data; savings are shares, `error` is predicted / measured - 1."""
    return {
        "ranks": found.ranks,
        "rows": [
            {
                "machine": row.machine,
                "network": row.network,
                "batch_per_device": row.batch,
                "baseline": row.baseline,
                "remedy": row.remedy,
                "step_time_s": row.step_s,
                "steps": len(row.times_s),
                "saved": row.saved,
                "interval": list(row.interval),
                "predicted_step_time_s": row.predicted_s,
                "error": row.error,
                "basis": "measured",
            }
            for row in found.rows
        ],
        "notes": list(found.notes),
    }


def tried_tables(found: TriedFeeding) -> list[Table]:
    """One table for each job on each kind of links.

    Args:
        found: all that was tried
    """
    groups: dict[tuple[str, str], list[TriedRemedy]] = {}
    for row in found.rows:
        groups.setdefault((row.network, row.machine), []).append(row)
    return [_tried_table(rows) for rows in groups.values()]


def _tried_table(rows: Sequence[TriedRemedy]) -> Table:
    first = rows[0]
    table = frame_table(f"{first.network} on {first.machine}, {first.batch} samples a rank")
    table.add_column("against", no_wrap=True)
    table.add_column("remedy", no_wrap=True)
    for title in ("step\nms", "saved\n%", "90 %\n", "predicted\nms", "error\n"):
        table.add_column(title, justify="right", no_wrap=True)
    before = ""
    for row in rows:
        low, high = row.interval
        table.add_row(
            "" if row.baseline == before else row.baseline,
            row.remedy,
            f"{1e3 * row.step_s:.1f}",
            "" if row.remedy == "none" else f"{100 * row.saved:.0f}",
            "" if row.remedy == "none" else f"{100 * low:.0f} to {100 * high:.0f}",
            "" if row.predicted_s is None else f"{1e3 * row.predicted_s:.1f}",
            "" if row.error is None else f"{100 * row.error:+.0f} %",
        )
        before = row.baseline
    return table


def tried_lines(found: TriedFeeding) -> list[str]:
    """How the figures are meant."""
    return [
        "replicate-and-scatter: rank 0 loads the batch, scatters it, sends the weights out, sums the gradients and "
        "updates, as DataParallel does by its first GPU. ddp: a plan of replicas, each with its own share of the data.",
        "pre-load: workers beside the training. compress: 16-bit weights and gradients on the wire, with error "
        "feedback. error: predicted / measured - 1; means of steps.",
        *found.notes,
    ]
