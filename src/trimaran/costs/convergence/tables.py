"""A user's table of runs as a `CurveTable`: units made one, runs of a batch made a point."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from trimaran.costs.convergence.table_epochs import AGREE, compare_steps, samples_per_epoch
from trimaran.costs.convergence.table_rows import AMOUNTS, TableRow, read_rows
from trimaran.costs.convergence.types import CurveTable, Point, Unit
from trimaran.errors import InputError


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
        raise InputError(
            f"{path}: not UTF-8 text: save it as CSV in UTF-8", code="curve-table.not-utf8", file=str(path)
        ) from None
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read: {error.strerror}", code="curve-table.unreadable", file=str(path)
        ) from None
    return parse_table(text, file=str(path))


def parse_table(text: str, *, file: str) -> CurveTable:
    r"""The table of a CSV text.

    Args:
        text: as `read_table` describes it
        file: name of it, for messages

    Returns:
        In the first of epochs, samples and tokens that every run has, else in samples.

    Example:
        >>> table = parse_table("global_batch,steps,run\n64,100,a\n64,110,b\n", file="runs.csv")
        >>> table.unit, table.points[0].amount, table.points[0].runs
        ('samples', 6720.0, 2)
    """
    rows = read_rows(text, file=file)
    target = _one([(row.line, row.target) for row in rows if row.target is not None], "target", file=file)
    per_epoch = samples_per_epoch(rows, file=file)
    compare_steps(rows, file=file)
    done = [row for row in rows if row.reached]
    if not done:
        raise InputError(
            f"{file}: none of its {len(rows)} runs reached the target",
            code="curve-table.no-run-reached-target",
            file=file,
            runs=len(rows),
        )
    unit = _common_unit(done, per_epoch, file=file)
    notes: list[str] = []
    by_batch: dict[int, list[TableRow]] = {}
    for row in rows:
        by_batch.setdefault(row.global_batch, []).append(row)
    count = _count_in(unit, done, per_epoch, file=file)
    points = [_point(batch, by_batch[batch], count, file=file, notes=notes) for batch in sorted(by_batch)]
    return CurveTable(
        task=Path(file).stem,
        unit=unit,
        points=tuple(point for point in points if point is not None),
        source=f"runs in {file}",
        samples_per_epoch=None if per_epoch is None else round(per_epoch),
        target=target,
        notes=tuple(notes),
    )


_AS_SAMPLES = {"samples", "steps", "epochs"}
"""What can be counted in samples, epochs only where it is known how many one has."""


def _without_epochs(rows: Sequence[TableRow]) -> bool:
    """Whether every row is in samples or steps."""
    return all({"samples", "steps"} & set(row.amounts) for row in rows)


def _common_unit(rows: Sequence[TableRow], per_epoch: float | None, *, file: str) -> Unit:
    units: tuple[Unit, ...] = ("epochs", "samples", "tokens")
    for unit in units:
        if all(unit in row.amounts for row in rows):
            return unit
    in_samples = all(_AS_SAMPLES & set(row.amounts) for row in rows)
    if in_samples and (per_epoch is not None or _without_epochs(rows)):
        return "samples"
    hint = ", or a column samples_per_epoch" if in_samples else ""
    for row in rows:
        missing = [unit for unit in AMOUNTS if unit not in row.amounts]
        others = sorted(set(rows[0].amounts) - set(row.amounts))
        if others:
            raise InputError(
                f"{file}: line {row.line}: no {others[0]}, which line {rows[0].line} has: "
                f"give one unit in every row (missing here: {', '.join(missing)}){hint}",
                code="curve-table.unit-missing",
                file=file,
                line=row.line,
            )
    raise InputError(f"{file}: no unit that every row has: fill one of {', '.join(AMOUNTS)}", file=file)


class _Count(NamedTuple):
    """In what the amounts of a table are counted.

    Attributes:
        unit: of all of them
        per_epoch: samples of an epoch; 0 where epochs are not counted in samples
    """

    unit: Unit
    per_epoch: float

    def of(self, row: TableRow) -> float:
        if self.unit in row.amounts:
            return row.amounts[self.unit]
        if self.per_epoch and "epochs" in row.amounts:
            return row.amounts["epochs"] * self.per_epoch
        return row.amounts["steps"] * row.global_batch


def _count_in(unit: Unit, rows: Sequence[TableRow], per_epoch: float | None, *, file: str) -> _Count:
    """How rows are counted in a unit.

    Steps are counted as full batches, epochs as the samples that were seen: of each epoch they may differ by a batch.
    Where both are on one curve this must be little.
    """
    if unit != "samples" or per_epoch is None or _without_epochs(rows):
        return _Count(unit=unit, per_epoch=0.0)
    for row in rows:
        share = row.global_batch / per_epoch
        if share > AGREE and not {"samples", "epochs"} & set(row.amounts):
            raise InputError(
                f"{file}: line {row.line}: an epoch of {per_epoch:g} samples is {1 / share:.3g} steps of batch "
                f"{row.global_batch}, of which the last may be smaller or left out: {row.amounts['steps']:g} steps "
                f"cannot be compared with epochs of other rows to better than {share:.0%}; give epochs or samples here",
                code="curve-table.epoch-too-short",
                file=file,
                line=row.line,
            )
    return _Count(unit=unit, per_epoch=per_epoch)


def _one(found: Sequence[tuple[int, float]], name: str, *, file: str) -> float | None:
    for line, value in found[1:]:
        if value != found[0][1]:
            raise InputError(
                f"{file}: lines {found[0][0]} and {line} have two values of {name}, {found[0][1]:g} and {value:g}: "
                "each is a task of its own; make two tables",
                code="curve-table.several-tasks",
                file=file,
                line=line,
            )
    return found[0][1] if found else None


def _point(batch: int, rows: Sequence[TableRow], count: _Count, *, file: str, notes: list[str]) -> Point | None:
    done = [row for row in rows if row.reached]
    failed = sum(row.runs or 1 for row in rows if not row.reached)
    names = [row.run for row in rows if row.run]
    for name in names:
        if names.count(name) > 1:
            lines = [row.line for row in rows if row.run == name]
            raise InputError(
                f"{file}: lines {lines[0]} and {lines[1]} are both run {name} of batch {batch}: "
                "name the runs apart, or keep one",
                code="curve-table.run-twice",
                file=file,
                line=lines[1],
            )
    if not done:
        notes.append(f"batch {batch}: left out, none of {failed} runs reached the target")
        return None
    if len(rows) > 1 and len(names) < len(rows):
        notes.append(f"batch {batch} is there {len(rows)} times without a name under run: taken as repeated runs")
    if len(done) > 1 and any((row.runs or 1) > 1 or row.deviation is not None for row in done):
        raise InputError(
            f"{file}: line {done[1].line}: batch {batch} has a row that is a mean of several runs and others beside "
            "it: give either means or runs",
            code="curve-table.means-beside-runs",
            file=file,
            line=done[1].line,
        )
    values = tuple(count.of(row) for row in done)
    if len(done) == 1:
        runs, share = _spread_of(done[0], notes=notes)
        spread = None if share is None else share * values[0]
        return Point(global_batch=batch, amount=values[0], runs=runs, deviation=spread, failed=failed)
    mean = math.fsum(values) / len(values)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
    return Point(global_batch=batch, amount=mean, runs=len(values), deviation=spread, values=values, failed=failed)


def _spread_of(row: TableRow, *, notes: list[str]) -> tuple[int, float | None]:
    """Runs of a row that is a mean, and their deviation as a share of it."""
    if row.deviation is None or (row.runs or 2) > 1:
        if row.deviation is not None and len(row.amounts) > 1:
            notes.append(f"batch {row.global_batch}: the deviation is taken as one of {row.deviation_of}")
        if row.deviation is not None and row.runs is None:
            notes.append(f"batch {row.global_batch}: a deviation over nobody says how many runs: taken as two")
            return 2, row.deviation
        return row.runs or 1, row.deviation
    notes.append(f"batch {row.global_batch}: a single run has no deviation, left out")
    return 1, None
