"""Fits what whole trainings of tables take besides their steps, to rows of calibration that come with Trimaran.

    python benchmarks/fits/times.py

Printed are, for starts of TensorFlow's trainings, the errors of those that take minutes; for deviations of networks of
known size only, how many figures an interval holds; and how epochs grow with the batch between neighbouring points of
calibration, given the file:

    python benchmarks/fits/times.py FOLDER/calibrate/core_convergence.csv

The constants stand in trimaran_studies/time_to_train/from_tables.py and time_to_train_epochs.py.
"""

import csv
import math
import sys
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import mean, median

from trimaran_studies.facts.sizes import SIZED
from trimaran_studies.published.rows import published_rows
from trimaran_studies.time_to_train import from_tables as tables
from trimaran_studies.validation.intervals import interval
from trimaran_studies.validation.measurement import Answer, Row

STARTS_S = (0.0, 20.0, 40.0, 80.0, 120.0)
DEVIATIONS = (0.0, 0.1, 0.2, 0.3, 0.4)
_SLOW = 1.3 * 1.645
"""Of a deviation, to the slow end of an interval (intervals.toml)."""


def main(points: Path | None) -> None:
    rows = [row for row in published_rows("time_to_train") if row.fields["use"] == "calibrate"]
    for start_s in STARTS_S:
        tables._START_S["tensorflow"] = start_s
        errors = [abs(found.error or 0.0) for found in _anchored(rows) if _is_short(found)]
        print(f"start {start_s:5.0f} s  {len(errors)} rows  median {median(errors):.3f}  mean {mean(errors):.3f}")
    tables._START_S["tensorflow"] = 40.0
    answers = [found for found in _anchored(rows) if found.setup and found.setup.network.startswith(SIZED)]
    for more in DEVIATIONS:
        held = [_holds(found, more) for found in answers]
        print(f"deviation {more:.1f}  {len(held)} rows  inside {mean(held):.0%}")
    if points is not None:
        growth = sorted(_growth(points))
        print(
            f"epochs at twice the batch: median {median(growth):.2f}, 95 % below {growth[int(0.95 * len(growth))]:.2f}"
        )


def _anchored(rows: Sequence[Row]) -> list[Answer]:
    return [found for found in tables.answer_tables(rows) if found.predicted is not None and found.anchors]


def _is_short(found: Answer) -> bool:
    """TensorFlow's, but for a table that gives hours as minutes."""
    framework = found.row.fields["framework"].lower()
    return framework.startswith("tensorflow") and "Detection" not in found.row.fields["model"]


def _holds(found: Answer, more: float) -> bool:
    """Whether an interval holds the figure, with another deviation for the network's size."""
    if found.predicted is None or found.high is None:
        return False
    own = math.log(found.high / found.predicted) / _SLOW
    without = math.sqrt(max(0.0, own**2 - tables._SIZED**2))
    low, high = interval(found.predicted, math.hypot(without, more), time=True)
    return low <= found.row.measured <= high


def _growth(path: Path) -> list[float]:
    """Of epochs for one doubling of the batch, between neighbouring points of a curve."""
    curves: dict[tuple[str, ...], list[tuple[int, float]]] = defaultdict(list)
    with path.open(encoding="utf-8-sig", newline="") as file:
        for cells in csv.DictReader(file):
            batch, amount = int(cells["global_batch"]), float(cells["to_target_mean"])
            where = cells["source_path"] if cells["kind"].startswith("reference") else cells["kind"]
            samples = amount * (batch if cells["unit"] == "steps" else 1)
            curves[where, cells["benchmark"], cells["unit"]].append((batch, samples))
    found = []
    for (_, benchmark, _), points in curves.items():
        points.sort()
        for (batch, amount), (larger, more) in pairwise(points):
            if benchmark != "cosmoflow":  # its points are of two settings
                found.append((more / amount) ** (1 / math.log2(larger / batch)))
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
