"""Reads a file of published measurements. Columns may be missing or stand in any order; a bad cell is named by place.

What a row means is decided elsewhere: here a row is its text, with its figure as a number. Files of collectives have no
column for the family; it is then given, or told from the columns.
"""

import csv
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from pathlib import Path

from trimaran.base.errors import InputError
from trimaran.base.files import packaged_toml, read_text
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
)
"""What can be asked for. "memory" stands for the families `MEMORY_FAMILIES` of a file, "feeding" for `FED_FAMILIES`."""

MEMORY_FAMILIES = ("peak_memory", "activation_memory")
FED_FAMILIES = ("dp_throughput", "dp_step_time")

_NAMES = ("id", "commit", "hash")
"""How columns end that hold names of hexadecimal digits, which may look like a number with a large exponent."""

_CLOCK = re.compile(r"(?:(\d+):)?(\d{1,3}):(\d{2}(?:\.\d+)?)")
_DAYS_AND_CLOCK = re.compile(r"(\d+)\s*d(?:ays?)?[,\s]+(\d+):(\d{2}):(\d{2})")
_WHOLE = re.compile(r"^(\d+)\.0+$")
"""A count that some program wrote as a fraction: "8.0"."""
_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


_MOST_BYTES = 8 * 2**20
"""Of a file of rows; the largest one that comes with Trimaran has a tenth of a MiB [bytes]."""


def read_rows(path: Path, *, family: str | None = None, same: Mapping[str, str] | None = None) -> tuple[Row, ...]:
    """The measurements of a CSV file.

    Args:
        path: the file; its first line names the columns
        family: only rows of this one; for a file without a column `family`, what its rows are
        same: columns that all rows have in common and the file leaves out, with their cells

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
    common = dict(same or {})
    try:
        columns = (*(name.strip() for name in reader.fieldnames or () if name), *common)
    except csv.Error as error:
        raise InputError(f"{path}:1: {error}", code="rows.unreadable-header", path=str(path)) from error
    given = _family_of_file(path, columns, family)
    rows = (_row(path, reader.line_num, common | cells, given) for cells in _cells(path, reader))
    return tuple(row for row in rows if wanted(row.family, family))


def wanted(family: str, asked: str | None) -> bool:
    """Whether a row of `family` belongs to what was asked for; None asks for all."""
    together = {"memory": MEMORY_FAMILIES, "feeding": FED_FAMILIES}
    return asked is None or family == asked or family in together.get(asked, ())


def _family_of_file(path: Path, columns: tuple[str, ...], asked: str | None) -> str:
    if "ttt_min" in columns and "value" not in columns:
        _require(path, columns, ("benchmark", "kind", "global_batch"))
        return "time_to_train"
    if "family" in columns:
        _require(path, columns, ("value",))
        return ""
    if "time_us" in columns:
        _require(path, columns, ("op", "bytes", "n_gpus"))
        return "collectives"
    if asked is None or asked == "collectives":
        missing = "family" if asked is None else "time_us"
        raise InputError(
            f"{path}:1: column {missing}: missing; the file has {', '.join(columns) or 'no columns'}; "
            "name the family with --family, or add the column",
            code="rows.no-family",
            path=str(path),
            column=missing,
        )
    _require(path, columns, ("value",))
    return asked


def _require(path: Path, columns: tuple[str, ...], names: Iterable[str]) -> None:
    for name in names:
        if name not in columns:
            raise InputError(
                f"{path}:1: column {name}: missing; the file has {', '.join(columns)}",
                code="rows.missing-column",
                path=str(path),
                column=name,
            )


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


def _row(path: Path, line: int, cells: Mapping[str, str], given: str) -> Row:
    for name, cell in cells.items():
        if not name.endswith(_NAMES) and _NUMBER.fullmatch(cell) and math.isinf(float(cell.replace(",", ""))):
            raise InputError(
                f'{path}:{line}: column {name}: expected a finite number, got "{cell}"',
                code="rows.bad-number",
                path=str(path),
                line=line,
                column=name,
            )
    family = cells.get("family", "") or given
    unit = cells.get("unit", "")
    if family == "collectives":
        column, unit = "time_us", "us"
        for name in ("n_gpus", "bytes"):
            number(cells.get(name, ""), path=path, line=line, column=name)
    elif family == "time_to_train" and "value" not in cells:
        column, unit = "ttt_min", "min"
        cells = _result(cells)
    else:
        column = "value"
    if not family:
        raise InputError(
            f"{path}:{line}: column family: empty", code="rows.empty-cell", path=str(path), line=line, column="family"
        )
    anchor = cells.get("anchor_value", "")
    kept = ("row_id", "family", column, "anchor_value")
    return Row(
        row_id=cells.get("row_id", "") or str(line),
        family=family,
        fields={name: _WHOLE.sub(r"\1", value) for name, value in cells.items() if value and name not in kept},
        measured=number(cells.get(column, ""), path=path, line=line, column=column),
        unit=unit or _unit_of(cells.get(column, "")),
        anchor=number(anchor, path=path, line=line, column="anchor_value") if anchor else None,
        flag=cells.get("flag", ""),
    )


def _result(cells: Mapping[str, str]) -> Mapping[str, str]:
    """Cells of a submitted result, named as others are; 0 where it has no time, as points of convergence have none."""
    minutes = figure(cells.get("ttt_min", "")) or 0.0
    return {
        "model": cells.get("benchmark", ""),
        "machine": cells.get("kind", "").removeprefix("submission").strip(),
        "gpu": cells.get("accelerator", ""),
        "n_gpus": cells.get("n_accelerators", ""),
        **cells,
        "benchmark": cells.get("benchmark", ""),
        "ttt_min": str(max(0.0, minutes)),
    }


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
    folder = Path(str(resources.files("trimaran_studies.published")))
    same = packaged_toml("trimaran_studies.published", "sources.toml")
    return tuple(
        row for path in sorted(folder.glob("*.csv")) for row in read_rows(path, family=family, same=same[path.stem])
    )
