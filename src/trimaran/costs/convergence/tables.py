"""A user's table of runs as a `CurveTable`: units made one, runs of a batch made a point."""

import math
from collections.abc import Sequence
from pathlib import Path

from trimaran.costs.convergence.table_rows import AMOUNTS, TableRow, read_rows
from trimaran.costs.convergence.types import CurveTable, Point, Unit
from trimaran.errors import InputError

_AGREE = 0.02
"""Amounts in two units may differ by this share, or by one update."""


def read_table(path: Path) -> CurveTable:
    """The table of a CSV file.

    Args:
        path: columns `global_batch` and one of `epochs`, `samples`, `steps`, `tokens`, or several that agree; optional
            `run`, `reached` (yes, no), `target`, `runs` and `deviation` (a row is a mean), `samples_per_epoch`

    Raises:
        InputError: it cannot be read, or a place in it is wrong: the message names it
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text: save it as CSV in UTF-8", file=str(path)) from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}", file=str(path)) from None
    return parse_table(text, file=str(path))


def parse_table(text: str, *, file: str) -> CurveTable:
    r"""The table of a CSV text.

    Args:
        text: as `read_table` describes it
        file: name of it, for messages

    Returns:
        In the first of epochs, samples and tokens that every run has; steps become samples.

    Example:
        >>> table = parse_table("global_batch,steps,run\n64,100,a\n64,110,b\n", file="runs.csv")
        >>> table.unit, table.points[0].amount, table.points[0].runs
        ('samples', 6720.0, 2)
    """
    rows = read_rows(text, file=file)
    target = _one([(row.line, row.target) for row in rows if row.target is not None], "target", file=file)
    per_epoch = _samples_per_epoch(rows, file=file)
    _compare_steps(rows, file=file)
    done = [row for row in rows if row.reached]
    if not done:
        raise InputError(f"{file}: none of its {len(rows)} runs reached the target", file=file, runs=len(rows))
    unit = _common_unit(done, file=file)
    notes: list[str] = []
    by_batch: dict[int, list[TableRow]] = {}
    for row in rows:
        by_batch.setdefault(row.global_batch, []).append(row)
    points = [_point(batch, by_batch[batch], unit, file=file, notes=notes) for batch in sorted(by_batch)]
    return CurveTable(
        task=Path(file).stem,
        unit=unit,
        points=tuple(point for point in points if point is not None),
        source=f"runs in {file}",
        samples_per_epoch=None if per_epoch is None else round(per_epoch),
        target=target,
        notes=tuple(notes),
    )


def _common_unit(rows: Sequence[TableRow], *, file: str) -> Unit:
    units: tuple[Unit, ...] = ("epochs", "samples", "tokens")
    for unit in units:
        if all(unit in row.amounts for row in rows):
            return unit
    if all("samples" in row.amounts or "steps" in row.amounts for row in rows):
        return "samples"
    for row in rows:
        missing = [unit for unit in AMOUNTS if unit not in row.amounts]
        others = sorted(set(rows[0].amounts) - set(row.amounts))
        if others:
            raise InputError(
                f"{file}: line {row.line}: no {others[0]}, which line {rows[0].line} has: "
                f"give one unit in every row (missing here: {', '.join(missing)})",
                file=file,
                line=row.line,
            )
    raise InputError(f"{file}: no unit that every row has: fill one of {', '.join(AMOUNTS)}", file=file)


def _samples_per_epoch(rows: Sequence[TableRow], *, file: str) -> float | None:
    """Of the rows that give epochs beside samples or steps, and of the column."""
    found: list[tuple[int, float, float]] = []
    for row in rows:
        if row.samples_per_epoch is not None:
            found.append((row.line, float(row.samples_per_epoch), _AGREE))
        if "epochs" in row.amounts and ("samples" in row.amounts or "steps" in row.amounts):
            samples = row.amounts.get("samples", row.amounts.get("steps", 0.0) * row.global_batch)
            slack = _AGREE + (row.global_batch / samples if "samples" not in row.amounts else 0.0)
            found.append((row.line, samples / row.amounts["epochs"], slack))
    for line, per_epoch, slack in found[1:]:
        first = found[0]
        if abs(per_epoch / first[1] - 1) > max(slack, first[2]):
            raise InputError(
                f"{file}: lines {first[0]} and {line} contradict each other: an epoch has {first[1]:.6g} samples "
                f"by the one and {per_epoch:.6g} by the other; correct epochs, samples or steps, or keep one of them",
                file=file,
                line=line,
            )
    exact = [per_epoch for _, per_epoch, slack in found if slack == _AGREE]
    usable = exact or [per_epoch for _, per_epoch, _ in found]
    return math.fsum(usable) / len(usable) if usable else None


def _compare_steps(rows: Sequence[TableRow], *, file: str) -> None:
    for row in rows:
        if "steps" not in row.amounts or "samples" not in row.amounts:
            continue
        made = row.amounts["steps"] * row.global_batch
        if abs(made - row.amounts["samples"]) > max(row.global_batch, _AGREE * made):
            raise InputError(
                f"{file}: line {row.line}: {row.amounts['steps']:g} steps of batch {row.global_batch} are "
                f"{made:g} samples, not {row.amounts['samples']:g}: correct one, or keep one of the columns",
                file=file,
                line=row.line,
            )


def _one(found: Sequence[tuple[int, float]], name: str, *, file: str) -> float | None:
    for line, value in found[1:]:
        if value != found[0][1]:
            raise InputError(
                f"{file}: lines {found[0][0]} and {line} have two values of {name}, {found[0][1]:g} and {value:g}: "
                "each is a task of its own; make two tables",
                file=file,
                line=line,
            )
    return found[0][1] if found else None


def _point(batch: int, rows: Sequence[TableRow], unit: Unit, *, file: str, notes: list[str]) -> Point | None:
    done = [row for row in rows if row.reached]
    failed = sum(row.runs for row in rows if not row.reached)
    names = [row.run for row in rows if row.run]
    for name in names:
        if names.count(name) > 1:
            lines = [row.line for row in rows if row.run == name]
            raise InputError(
                f"{file}: lines {lines[0]} and {lines[1]} are both run {name} of batch {batch}: "
                "name the runs apart, or keep one",
                file=file,
                line=lines[1],
            )
    if not done:
        notes.append(f"batch {batch}: left out, none of {failed} runs reached the target")
        return None
    if len(rows) > 1 and len(names) < len(rows):
        notes.append(f"batch {batch} is there {len(rows)} times without a name under run: taken as repeated runs")
    if len(done) > 1 and any(row.runs > 1 for row in done):
        raise InputError(
            f"{file}: line {done[1].line}: batch {batch} has a row that is a mean of several runs and others beside "
            "it: give either means or runs",
            file=file,
            line=done[1].line,
        )
    values = tuple(_amount(row, unit) for row in done)
    if len(done) == 1:
        row, spread = done[0], done[0].deviation
        if spread is not None and _from_steps(row, unit):
            spread *= batch
        return Point(global_batch=batch, amount=values[0], runs=row.runs, deviation=spread, failed=failed)
    mean = math.fsum(values) / len(values)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
    return Point(global_batch=batch, amount=mean, runs=len(values), deviation=spread, values=values, failed=failed)


def _amount(row: TableRow, unit: Unit) -> float:
    return row.amounts["steps"] * row.global_batch if _from_steps(row, unit) else row.amounts[unit]


def _from_steps(row: TableRow, unit: Unit) -> bool:
    return unit == "samples" and "samples" not in row.amounts
