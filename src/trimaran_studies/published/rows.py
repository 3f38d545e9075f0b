"""Reads published measurements: one table, whose columns benchmarks/validation/README.md lists.

A bad cell is named by its place.

Columns may be missing or stand in any order. What a row means is decided elsewhere: here a row is its text, with its
figure as a number. Two families are also printed with other columns, which are renamed as they are read (`_LAYOUTS`).
"""

import csv
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

from trimaran.base.errors import InputError
from trimaran.base.files import read_text
from trimaran_studies.validation.measurement import Row

FAMILIES = (
    "single_gpu_time",
    "dp_throughput",
    "dp_step_time",
    "mp_throughput",
    "mp_step_time",
    "time_to_train",
    "collectives",
    "memory",
    "feeding",
    "field",
)
"""What can be asked for. "memory" stands for the families `MEMORY_FAMILIES` of a file, "feeding" for `FED_FAMILIES`."""

MEMORY_FAMILIES = ("peak_memory", "activation_memory")
FED_FAMILIES = ("dp_throughput", "dp_step_time")

SUBMITTED = "submitted result"
"""The metric of a time to train that was submitted to a benchmark round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Columns of a file.

    Attributes:
        figure: column of the figure
        needed: columns without which rows say nothing
        names: columns of the table, by those of the layout
        same: cells that all rows have
    """

    figure: str
    needed: tuple[str, ...]
    names: Mapping[str, str]
    same: Mapping[str, str]


_LAYOUTS = (
    _Layout(
        figure="ttt_min",
        needed=("benchmark", "kind", "global_batch"),
        names={"benchmark": "model", "kind": "machine", "accelerator": "gpu", "n_accelerators": "n_gpus"},
        same={"family": "time_to_train", "metric": SUBMITTED, "unit": "min"},
    ),
    _Layout(
        figure="time_us",
        needed=("op", "bytes", "n_gpus"),
        names={},
        same={"family": "collectives", "unit": "us"},
    ),
    _Layout(
        figure="step_s",
        needed=("cluster", "degrees", "layers"),
        names={"run": "row_id", "source": "source_repo"},
        same={"family": "field", "unit": "s"},
    ),
)
"""Results of benchmark rounds, times of collectives, and runs of the field, as they are usually printed."""

_TABLE = _Layout(figure="value", needed=("value",), names={}, same={})

_NAMES = ("id", "commit", "hash")
"""How columns end that hold names of hexadecimal digits, which may look like a number with a large exponent."""

_CLOCK = re.compile(r"(?:(\d+):)?(\d{1,3}):(\d{2}(?:\.\d+)?)")
_DAYS_AND_CLOCK = re.compile(r"(\d+)\s*d(?:ays?)?[,\s]+(\d+):(\d{2}):(\d{2})")
_WHOLE = re.compile(r"^(\d+)\.0+$")
"""A count that some program wrote as a fraction: "8.0"."""
_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


_MOST_BYTES = 8 * 2**20
"""Of a file of rows; the one that comes with Trimaran has about a MiB [bytes]."""


def read_rows(path: Path, *, family: str | None = None, keeps_faulty: bool = False) -> tuple[Row, ...]:
    """The measurements of a CSV file.

    Args:
        path: the file; its first line names the columns
        family: only rows of this one; for a file without a column `family`, what its rows are
        keeps_faulty: a row with a wrong cell is kept with its `fault`, and does not end the file

    Returns:
        In the order of the file; those of other families are left out.

    Raises:
        InputError: the file cannot be read, or a cell of it is wrong; the message names file, line and column
    """
    if family is not None and family not in (*FAMILIES, *MEMORY_FAMILIES):
        raise InputError(
            f"--family {family}: not one of {', '.join(FAMILIES)}; choose one of them, or leave the option out",
            code="rows.unknown-family",
            family=family,
        )
    text = read_text(path, most_bytes=_MOST_BYTES)
    reader = csv.DictReader(text.splitlines(keepends=True))
    try:
        columns = tuple(name.strip() for name in reader.fieldnames or () if name)
    except csv.Error as error:
        raise InputError(f"{path}:1: {error}", code="rows.unreadable-header", path=str(path)) from error
    layout = _layout_of(path, columns, family)
    read = _row_or_fault if keeps_faulty else _row
    rows = (read(path, reader.line_num, cells, layout) for cells in _cells(path, reader))
    return tuple(row for row in rows if wanted(row.family, family))


def wanted(family: str, asked: str | None) -> bool:
    """Whether a row of `family` belongs to what was asked for; None asks for all."""
    together = {"memory": MEMORY_FAMILIES, "feeding": FED_FAMILIES}
    return asked is None or family == asked or family in together.get(asked, ())


def _layout_of(path: Path, columns: tuple[str, ...], asked: str | None) -> _Layout:
    """The layout of a file; one that does not say its family has the family that is asked for."""
    found = next((layout for layout in _LAYOUTS if layout.figure in columns and "value" not in columns), _TABLE)
    missing = next((name for name in found.needed if name not in columns), None)
    code, way = "rows.missing-column", "add it"
    if found is _TABLE and "family" not in columns:
        if asked is None:
            missing, code, way = "family", "rows.no-family", "add it, or name the family with --family"
        else:
            found = replace(_TABLE, same={"family": asked})
    if missing is not None:
        raise InputError(
            f"{path}:1: column {missing}: missing; the file has {', '.join(columns) or 'no columns'}; {way}; "
            "benchmarks/validation/README.md lists the columns",
            code=code,
            path=str(path),
            column=missing,
        )
    return found


def _cells(path: Path, reader: "csv.DictReader[str]") -> Iterator[dict[str, str]]:
    try:
        for cells in reader:
            if None in cells:
                raise InputError(
                    f"{path}:{reader.line_num}: more cells than the first line has columns; quote cells with commas",
                    code="rows.too-many-cells",
                    path=str(path),
                    line=reader.line_num,
                )
            yield {name.strip(): (value or "").strip() for name, value in cells.items() if name}
    except csv.Error as error:
        raise InputError(f"{path}:{reader.line_num}: {error}", path=str(path), line=reader.line_num) from error


def _row(path: Path, line: int, printed: Mapping[str, str], layout: _Layout) -> Row:
    for name, cell in printed.items():
        if not name.endswith(_NAMES) and _NUMBER.fullmatch(cell) and math.isinf(float(cell.replace(",", ""))):
            raise InputError(
                f'{path}:{line}: column {name}: expected a finite number, got "{cell}"',
                code="rows.bad-number",
                path=str(path),
                line=line,
                column=name,
            )
    cells = _renamed(printed, layout)
    family = cells["family"]
    if not family:
        raise InputError(
            f"{path}:{line}: column family: empty", code="rows.empty-cell", path=str(path), line=line, column="family"
        )
    if family == "collectives":
        for name in ("n_gpus", "bytes"):
            number(cells.get(name, ""), path=path, line=line, column=name)
    figure_cell, anchor = cells["value"], cells.get("anchor_value", "")
    kept = ("row_id", "family", "value", "anchor_value")
    return Row(
        row_id=cells.get("row_id", "") or str(line),
        family=family,
        fields={name: _WHOLE.sub(r"\1", value) for name, value in cells.items() if value and name not in kept},
        measured=number(figure_cell, path=path, line=line, column=layout.figure),
        unit=cells.get("unit", "") or _unit_of(figure_cell),
        anchor=number(anchor, path=path, line=line, column="anchor_value") if anchor else None,
        flag=cells.get("flag", ""),
    )


def _row_or_fault(path: Path, line: int, printed: Mapping[str, str], layout: _Layout) -> Row:
    """A row, or what is known of it and why it cannot be read."""
    try:
        return _row(path, line, printed, layout)
    except InputError as error:
        family = layout.same.get("family") or printed.get("family") or "of no family"
        return Row(
            row_id=printed.get("row_id") or str(line),
            family=family,
            fields={name: value for name, value in printed.items() if value},
            measured=0.0,
            unit=printed.get("unit", ""),
            anchor=None,
            fault=error.message,
        )


def _renamed(printed: Mapping[str, str], layout: _Layout) -> Mapping[str, str]:
    """Cells in the columns of the table."""
    cells = {**{layout.names.get(name, name): cell for name, cell in printed.items()}, **layout.same}
    cells["value"] = cells.pop(layout.figure)
    if layout.figure == "ttt_min":
        # Points of convergence among the results have no time.
        cells["value"] = str(max(0.0, figure(cells["value"]) or 0.0))
        cells["machine"] = cells["machine"].removeprefix("submission").strip()
    return cells


def _unit_of(cell: str) -> str:
    return "s" if _CLOCK.fullmatch(cell) else ""


def number(cell: str, *, path: Path, line: int, column: str) -> float:
    """A figure of a cell: "1,234.5", "12.3 s", or a time such as "1:02:03" [s].

    Raises:
        InputError: it holds no figure, or one below zero or without bounds
    """
    value = figure(cell)
    if value is None or not 0 <= value < math.inf:
        raise InputError(
            f"{path}:{line}: column {column}: expected a number at or above 0 or a time such as "
            f'"1:02:03", got "{cell}"',
            code="rows.unreadable-cell",
            path=str(path),
            line=line,
            column=column,
        )
    return value


def figure(cell: str) -> float | None:
    """The number that a cell begins with, or the seconds of a clock time; None where it holds neither.

    Example:
        >>> figure("1,234.5"), figure("1:02:03"), figure("none")
        (1234.5, 3723.0, None)
    """
    if (found := _DAYS_AND_CLOCK.fullmatch(cell)) is not None:
        days, hours, minutes, seconds = (int(part) for part in found.groups())
        return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
    if (found := _CLOCK.fullmatch(cell)) is not None:
        hours_text, minutes_text, seconds_text = found.groups()
        return (int(hours_text or 0) * 60 + int(minutes_text)) * 60 + float(seconds_text)
    if (found := _NUMBER.match(cell)) is None:
        return None
    return float(found.group().replace(",", ""))


# ---------------------------------------------------------------------------------------------------------------------
# The rows of published measurements that come with Trimaran


def published_rows(family: str | None = None) -> tuple[Row, ...]:
    """The rows that come with Trimaran; their column `use` says whether constants may be fitted on them.

    Args:
        family: only these; None for all
    """
    return read_rows(Path(str(resources.files("trimaran_studies.published") / "rows.csv")), family=family)
