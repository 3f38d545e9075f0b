"""Makes the table of rows that comes with Trimaran from files of measurements: what predictions need, and no more.

    python scripts/convert_published.py FOLDER

FOLDER holds `calibrate/` and `dev/` with core_performance.csv, core_memory.csv, core_collectives.csv and
core_convergence.csv. The table is written to src/trimaran_studies/published/rows.csv;
benchmarks/validation/README.md lists its columns. Collectives that were timed many times
become the median of each point. Rows of networks that are neither built
nor of known size are left out, as are rows that say the same as one before them, and cells without which a row is
understood as it was.
"""

import csv
import math
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from trimaran.base.errors import TrimaranError
from trimaran_studies.facts.sizes import SIZED
from trimaran_studies.published.rows import SUBMITTED, read_rows
from trimaran_studies.time_to_train import answer_times
from trimaran_studies.validation.measurement import Row
from trimaran_studies.validation.setups import recipe_of, understand

TARGET = Path(__file__).parents[1] / "src/trimaran_studies/published/rows.csv"
COLUMNS = (
    "row_id", "family", "use",
    "source_repo", "source_path", "source_file", "commit",
    "framework", "model", "dataset", "mode", "precision",
    "machine", "gpu", "gpu_mem_gb", "n_gpus", "n_nodes",
    "batch_per_gpu", "global_batch", "seq_len",
    "tp", "pp", "cp", "ep", "dp", "micro_batch", "zero", "recompute",
    "op", "bytes", "round", "to_target_mean", "config",
    "metric", "value", "unit", "anchor_value", "flag",
)  # fmt: skip
LEFT_OUT = {"split", "split_reason", "anchor_row_id", "source_file", "line"}
UNIQUE = {"row_id", "commit", "source_path"}
"""Columns in which rows that say the same may differ."""

RESULTS = {"source_path", "source_file", "split", "n_runs", "to_target_stdev", "to_target_min", "to_target_max"}
"""Columns of results that predictions do not need."""

ROUNDS = "mlperf_training_summary.csv"
"""The source of submitted results that have a time; points of convergence of other sources have none."""

USES = ("calibrate", "dev")
STEPS = ("single_gpu_time", "dp_throughput", "dp_step_time")


def main(folder: Path) -> None:
    """Convert the files of a folder into the table.

    Args:
        folder: with `calibrate/` and `dev/`
    """
    sources: dict[str, list[dict[str, str]]] = defaultdict(list)
    seen: set[tuple[tuple[str, str], ...]] = set()
    for use in USES:
        for name in ("core_performance.csv", "core_memory.csv"):
            for number, row in enumerate(read_rows(folder / use / name), start=2):
                if not _answerable(row):
                    continue
                short = _short(row) | {"use": use}
                mark = tuple(sorted((key, value) for key, value in short.items() if key not in UNIQUE))
                if mark in seen:
                    continue
                seen.add(mark)
                short["row_id"] = (f"{use[0]}{number}" if row.row_id == str(number) else row.row_id)[:6]
                sources[_stem(row, "memory_" if name == "core_memory.csv" else "")].append(short)
        for cells in _thinned(_medians(read_rows(folder / use / "core_collectives.csv"))):
            numbered = sources[cells["source_file"].removesuffix(".csv")]
            numbered.append(cells | {"use": use, "row_id": str(len(numbered) + 2)})
    _write(sources)  # times of networks of known size are predicted from the steps among these rows
    for use in USES:
        for name in ("core_performance.csv", "core_convergence.csv"):
            for row in _times(folder / use / name):
                short = {key: cell for key, cell in row.fields.items() if key not in _unused(row)} | {"use": use}
                sources[_stem(row, "times_")].append(_cells(row, short, digits=12) | {"row_id": row.row_id[:6]})
    _write(sources)


def _write(sources: Mapping[str, Sequence[Mapping[str, str]]]) -> None:
    with TARGET.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n", restval="")
        writer.writeheader()
        for _, rows in sorted(sources.items()):
            writer.writerows(rows)


def _cells(row: Row, cells: Mapping[str, str], *, digits: int) -> dict[str, str]:
    """Cells with the row's family, unit and figures."""
    found = {**cells, "family": row.family, "unit": row.unit, "value": f"{row.measured:.{digits}g}"}
    if row.anchor is not None:
        found["anchor_value"] = f"{row.anchor:.{digits}g}"
    return found | {"commit": found.get("commit", "")[:8]}


def _stem(row: Row, kind: str) -> str:
    return kind + row.fields["source_file"].removesuffix(".csv")


def _times(path: Path) -> Iterable[Row]:
    """Times to train: of read-me tables, and of results that were submitted, but for those that nothing is said of."""
    rows = read_rows(path, family="time_to_train")
    for row, answered in zip(rows, answer_times(rows), strict=True):
        if row.fields["metric"] == SUBMITTED:
            if row.fields["source_file"] == ROUNDS:
                yield row
        elif answered.predicted is not None or "no smaller" in answered.skipped:
            yield row


def _unused(row: Row) -> set[str]:
    return RESULTS if row.fields["metric"] == SUBMITTED else LEFT_OUT


def _answerable(row: Row) -> bool:
    if row.family == "time_to_train":
        return False
    if row.family not in STEPS:
        return True
    try:
        setup = understand(row)
    except TrimaranError:
        return False
    return not setup.network.startswith(SIZED) or (row.anchor is not None and setup.devices > 1)


def _short(row: Row) -> dict[str, str]:
    """Cells of a row, without those that say nothing of its set-up."""
    short = _cells(row, {name: cell for name, cell in row.fields.items() if name not in LEFT_OUT}, digits=6)
    if row.family not in STEPS:
        return short
    for name in ("config", "source_path", "global_batch", "dataset", "n_nodes", "gpu", "mode"):
        if name in short and _same(row, {key: value for key, value in short.items() if key != name}):
            del short[name]
    if "config" in short:
        for part in (short["config"].split("|")[0].strip(), _plain(short["config"])):
            if _same(row, short | {"config": part}):
                return short | {"config": part}
    return short


def _plain(text: str) -> str:
    """The part of a title that says something of the run: its last words in letters of the Latin alphabet."""
    return " ".join(re.findall(r"[A-Za-z0-9=_./&%-]+", text.rpartition(">")[2]))


def _same(row: Row, cells: dict[str, str]) -> bool:
    """Whether a row with these cells only is understood as it was."""
    other = Row(
        row_id=row.row_id, family=row.family, fields=cells, measured=row.measured, unit=row.unit, anchor=row.anchor
    )
    try:
        return understand(other) == understand(row) and recipe_of(other) == recipe_of(row)
    except TrimaranError:
        return False


def _thinned(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """At most one point of a collective in every half octave."""
    places: dict[tuple[object, ...], dict[str, str]] = {}
    for cells in rows:
        octave = round(2 * math.log2(max(1.0, float(cells["bytes"]))))
        places.setdefault((*(cells[name] for name in ("source_file", "machine", "n_gpus", "op")), octave), cells)
    return list(places.values())


def _medians(rows: Sequence[Row]) -> list[dict[str, str]]:
    points: dict[tuple[str, ...], list[float]] = defaultdict(list)
    names = ("source_file", "source_repo", "commit", "machine", "gpu", "n_gpus", "op", "bytes", "unit")
    for row in rows:
        points[tuple(row.fields.get(name, "") for name in names)].append(row.measured)
    return [
        {**dict(zip(names, point, strict=True)), "family": "collectives", "value": f"{statistics.median(times):.6g}"}
        for point, times in points.items()
    ]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
