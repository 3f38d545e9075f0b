"""Makes the catalog of convergence curves from tables of published points.

    python benchmarks/convergence/catalog.py FOLDER

FOLDER holds `calibrate/` and `dev/` with core_convergence.csv. A curve of MLPerf is a benchmark with those rounds that
agree: rows that repeat an older one count once; from the newest round on an older one joins where the two have a batch
in common and their means differ by at most two standard errors at every batch in common. Others are tasks of their own,
named after their round. Results of submissions are no points: they are logged by other rules.
"""

import csv
import math
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tasks import PROJECTIONS, RATIOS, SLIPS, TASKS, Task

from trimaran.convergence.files import plain_table, toml_text
from trimaran.convergence.types import CurveTable, Point

TARGET = Path(__file__).parents[2] / "src/trimaran/convergence/catalog.toml"
USES = ("calibrate", "dev")
STANDARD_ERRORS = 2.0


@dataclass(frozen=True, kw_only=True)
class Row:
    """A published point, in the unit of its task."""

    use: str
    round: str
    path: str
    commit: str
    point: Point


def read_tasks(folder: Path, uses: Sequence[str] = USES) -> dict[str, CurveTable]:
    """Curves by name, from the rows of some uses."""
    by_task: dict[str, list[Row]] = defaultdict(list)
    for use in uses:
        with (folder / use / "core_convergence.csv").open(newline="") as file:
            for cells in csv.DictReader(file):
                task = TASKS.get(cells["benchmark"])
                if task is not None and cells["kind"] in ("reference convergence point", "Pollux run"):
                    by_task[task.name].append(_row(cells, task, use))
    tasks = {task.name: task for task in TASKS.values()}
    found = {}
    for name, rows in by_task.items():
        for number, family in enumerate(_families(rows)):
            newest = max(family, key=lambda row: _version(row.round)).round
            called = name if number == 0 else f"{name}-{newest.removesuffix('.0')}"
            found[called] = _table(called, tasks[name], family)
    return found


def _row(cells: dict[str, str], task: Task, use: str) -> Row:
    batch, runs = int(cells["global_batch"]), int(cells["n_runs"])
    factor = 1.0
    if cells["unit"] == "steps":
        factor = float(batch)
    elif cells["unit"] == "tokens":
        factor = 1.0 / (task.tokens_per_sample or 1)
    elif cells["unit"] == "epochs" and task.unit == "samples":
        factor = float(task.samples_per_epoch or 1)
    spread = cells["to_target_stdev"]
    amount = float(cells["to_target_mean"]) * factor
    deviation = _figures(float(spread) * factor) if spread else None
    point = Point(global_batch=batch, amount=_figures(amount), runs=runs, deviation=deviation)
    path = f"github.com/{cells['source_repo']}/{cells['source_path']}"
    return Row(use=use, round=cells["round"], path=path, commit=cells["commit"], point=point)


def _figures(value: float) -> float:
    """Seven figures: what the sources have."""
    return float(f"{value:.7g}")


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")) if text else ()


def _families(rows: Sequence[Row]) -> list[list[Row]]:
    """Rounds that agree, the newest family first."""
    rounds: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        rounds[row.round].append(row)
    families: list[list[Row]] = []
    for name in sorted(rounds, key=_version, reverse=True):
        for family in families:
            if _agree(family, rounds[name]):
                family.extend(row for row in rounds[name] if not _repeats(row, family))
                break
        else:
            families.append(list(rounds[name]))
    return families


def _agree(family: Sequence[Row], others: Sequence[Row]) -> bool:
    shared = [(a.point, b.point) for a in family for b in others if a.point.global_batch == b.point.global_batch]
    return bool(shared) and all(_same(a, b) for a, b in shared)


def _same(a: Point, b: Point) -> bool:
    if math.isclose(a.amount, b.amount, rel_tol=1e-5):
        return True
    error = math.hypot(*((point.deviation or 0.0) / math.sqrt(point.runs) for point in (a, b)))
    return abs(a.amount - b.amount) <= STANDARD_ERRORS * error


def _repeats(row: Row, family: Sequence[Row]) -> bool:
    return any(
        row.point.global_batch == other.point.global_batch
        and math.isclose(row.point.amount, other.point.amount, rel_tol=1e-5)
        for other in family
    )


def _table(name: str, task: Task, rows: Sequence[Row]) -> CurveTable:
    points, notes = [], []
    for batch in sorted({row.point.global_batch for row in rows}):
        alike = [row.point for row in rows if row.point.global_batch == batch]
        if (name, batch) in SLIPS:
            notes.append(f"batch {batch} is left out: {SLIPS[name, batch]}")
            continue
        points.append(_merged(alike))
    rounds = sorted({row.round for row in rows if row.round}, key=_version)
    paths = sorted({row.path for row in rows})
    family = f"{task.program} {', '.join(rounds)}: " if rounds else ""
    where = ", ".join(paths) if len(paths) <= 3 else f"{paths[0]} and {len(paths) - 1} more beside it"
    return CurveTable(
        task=task.title,
        unit=task.unit,
        points=tuple(points),
        source=f"{family}{where}, commit {rows[0].commit[:12]}",
        samples_per_epoch=task.samples_per_epoch,
        tokens_per_sample=task.tokens_per_sample,
        network=task.network,
        notes=(*task.notes, *notes),
    )


def _merged(points: Sequence[Point]) -> Point:
    """Points of the same batch from rounds that agree: all their runs."""
    if len(points) == 1:
        return points[0]
    runs = sum(point.runs for point in points)
    mean = math.fsum(point.amount * point.runs for point in points) / runs
    squares = math.fsum(
        (point.deviation or 0.0) ** 2 * (point.runs - 1) + point.runs * (point.amount - mean) ** 2 for point in points
    )
    return replace(
        points[0], amount=_figures(mean), runs=runs, deviation=_figures(math.sqrt(squares / max(runs - 1, 1)))
    )


def main(folder: Path) -> None:
    """Write the catalog."""
    lines = ["# Written by benchmarks/convergence/catalog.py from published points; every entry names its source.\n"]
    for name, table in sorted((read_tasks(folder) | PROJECTIONS).items()):
        lines.append(f'\n[curves."{name}"]\n{toml_text(plain_table(table))}')
    for name, ratio in sorted(RATIOS.items()):
        lines.append(f'\n[ratios."{name}"]\n{toml_text(ratio)}')
    TARGET.write_text("".join(lines), encoding="utf-8")
    print(f"{TARGET.name}: {len(lines) - 1} entries")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
