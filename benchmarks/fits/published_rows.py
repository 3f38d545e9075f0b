"""Makes the rows that come with Trimaran from files of published measurements: what predictions need, and no more.

    python benchmarks/fits/published_rows.py FOLDER

FOLDER holds `calibrate/` and `dev/` with core_performance.csv, core_memory.csv and core_collectives.csv. One file a
source is written, with the columns that differ between its rows; what all of them share stands in sources.toml.
Collectives that were timed many times become the median of each point. Rows of networks that are neither built nor of
known size are left out, as are rows that say the same as one before them, and cells without which
a row is understood as it was.
"""

import csv
import math
import re
import statistics
import sys
from collections import defaultdict
from pathlib import Path

from trimaran.base.errors import TrimaranError
from trimaran_studies.facts.sizes import SIZED
from trimaran_studies.published.rows import figure, read_rows
from trimaran_studies.time_to_train import answer_times
from trimaran_studies.validation.measurement import Row
from trimaran_studies.validation.setups import recipe_of, understand

TARGET = Path(__file__).parents[2] / "src/trimaran_studies/published"
LEFT_OUT = {"split", "split_reason", "anchor_row_id", "source_file", "line", "busbw_gb_s"}
UNIQUE = {"row_id", "commit", "source_path"}
"""Columns in which rows that say the same may differ."""

RESULTS = {"source_path", "source_file", "split", "n_runs", "to_target_stdev", "to_target_min", "to_target_max", "unit"}
"""Columns of results that predictions do not need."""

USES = ("calibrate", "dev")
STEPS = ("single_gpu_time", "dp_throughput", "dp_step_time")


def main(folder: Path) -> None:
    sources: dict[str, list[dict[str, str]]] = defaultdict(list)
    seen: set[tuple[tuple[str, str], ...]] = set()
    for use in USES:
        for name in ("core_performance.csv", "core_memory.csv"):
            rows = read_rows(folder / use / name)
            for number, (row, cells) in enumerate(zip(rows, _cells(folder / use / name), strict=True), start=2):
                if not _answerable(row):
                    continue
                short = _short(row, cells) | {"use": use}
                mark = tuple(sorted((key, value) for key, value in short.items() if key not in UNIQUE))
                if mark in seen:
                    continue
                seen.add(mark)
                short["row_id"] = short.get("row_id", f"{use[0]}{number}")[:6]
                sources[_stem(cells, name)].append(short)
        for name in ("core_performance.csv", "core_convergence.csv"):
            for short in _times(folder / use / name):
                sources[short.pop("stem")].append(short | {"use": use})
        for cells in _thinned(_medians(_cells(folder / use / "core_collectives.csv"))):
            sources[_stem(cells, "collectives")].append(cells | {"use": use})
    TARGET.mkdir(exist_ok=True)
    for old in TARGET.glob("*.csv"):
        old.unlink()
    constants = {stem: _write(stem, rows) for stem, rows in sorted(sources.items())}
    lines = ["# Written by benchmarks/fits/published_rows.py: what is the same in all rows of a file.\n"]
    for stem, values in constants.items():
        lines.append(f"\n[{stem}]\n")
        lines += [f'{name} = "{_escaped(value)}"\n' for name, value in sorted(values.items())]
    (TARGET / "sources.toml").write_text("".join(lines), encoding="utf-8")


def _times(path: Path) -> list[dict[str, str]]:
    """Times to train: of read-me tables, and of results that were submitted, but for those that nothing is said of."""
    rows = read_rows(path, family="time_to_train")
    cells_of = [cells for cells in _cells(path) if cells.get("family", "time_to_train") == "time_to_train"]
    found = []
    for row, answered, cells in zip(rows, answer_times(rows), cells_of, strict=True):
        submitted = cells.get("kind", "").startswith("submission")
        if not submitted and "kind" in cells:
            continue
        if answered.predicted is None and not submitted and "no smaller" not in answered.skipped:
            continue
        short = {name: value for name, value in cells.items() if name not in (RESULTS if submitted else LEFT_OUT)}
        short |= {"commit": cells["commit"][:8], "row_id": row.row_id[:6], "family": "time_to_train"}
        short["stem"] = "times_" + cells["source_file"].removesuffix(".csv")
        found.append(short)
    return found


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


def _cells(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return [{name: value for name, value in cells.items() if value} for cells in csv.DictReader(file)]


def _stem(cells: dict[str, str], name: str) -> str:
    kind = "memory_" if name == "core_memory.csv" else ""
    return kind + cells["source_file"].removesuffix(".csv")


def _short(row: Row, cells: dict[str, str]) -> dict[str, str]:
    short = {name: value for name, value in cells.items() if name not in LEFT_OUT}
    if "commit" in short:
        short["commit"] = short["commit"][:8]
    for name in ("value", "anchor_value"):
        number = figure(short.get(name, ""))
        if number is not None and ":" not in short[name]:
            short[name] = f"{number:.6g}"
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


def _medians(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    points: dict[tuple[str, ...], list[float]] = defaultdict(list)
    names = ("source_file", "source_repo", "commit", "machine", "gpu", "n_gpus", "op", "bytes")
    for cells in rows:
        points[tuple(cells.get(name, "") for name in names)].append(float(cells["time_us"]))
    return [
        {**dict(zip(names, point, strict=True)), "time_us": f"{statistics.median(times):.6g}"}
        for point, times in points.items()
    ]


def _write(stem: str, rows: list[dict[str, str]]) -> dict[str, str]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    constant = {
        name: rows[0].get(name, "") for name in names if len({row.get(name, "") for row in rows}) == 1 and len(rows) > 1
    }
    columns = [name for name in ("row_id", "use", *names) if name in names and name not in constant]
    columns = list(dict.fromkeys(columns))
    with (TARGET / f"{stem}.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n", restval="")
        writer.writeheader()
        writer.writerows(rows)
    return constant


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


if __name__ == "__main__":
    main(Path(sys.argv[1]))
