"""A user's table of runs as a `CurveTable`: units made one, runs of a batch made a point."""

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from trimaran.base.errors import InputError
from trimaran.base.files import read_text
from trimaran.convergence.types import LARGEST_BATCH, CurveTable, Point, Unit

# ---------------------------------------------------------------------------------------------------------------------
# The rows of a user's table of runs: every cell checked where it stands, so that an error names line and column


AMOUNTS = ("epochs", "samples", "steps", "tokens")
_NAMES = {
    "batch": "global_batch",
    "batch_size": "global_batch",
    "global_batch_size": "global_batch",
    "updates": "steps",
    "iterations": "steps",
    "examples": "samples",
    "seed": "run",
    "stdev": "deviation",
    "std": "deviation",
    "n_runs": "runs",
}
_YES = ("yes", "true", "1", "y", "reached")
_NO = ("no", "false", "0", "n", "failed")
_SEPARATORS = (",", ";", "\t")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """One run, or the mean of several.

    Attributes:
        line: in the file, from 1
        global_batch: samples of one update
        amounts: by unit; empty for a run that did not reach the target and says no more
        run: name of the run; "" where it has no name
        reached: whether it reached the target
        target: of the metric; None where the row does not say
        runs: how many the row stands for; None where the row does not say
        deviation: over them, as a share of the amount; None where the row does not say
        deviation_of: the first column of an amount that the row has, in whose unit the deviation was given
        samples_per_epoch: of the data; None where the row does not say
    """

    line: int
    global_batch: int
    amounts: dict[str, float]
    run: str = ""
    reached: bool = True
    target: float | None = None
    runs: int | None = None
    deviation: float | None = None
    deviation_of: str = ""
    samples_per_epoch: int | None = None


def read_rows(text: str, *, file: str) -> tuple[TableRow, ...]:
    """The rows of a CSV text.

    Args:
        text: with a header; comma, semicolon or tab between cells; lines that begin with # are skipped
        file: name of it, for messages

    Raises:
        InputError: an empty text, a missing or unknown column, a cell of the wrong kind for its column
    """
    lines = text.removeprefix("\ufeff").splitlines()
    kept = [(number, line) for number, line in enumerate(lines, start=1) if line.strip() and not line.startswith("#")]
    if not kept:
        raise InputError(
            f"{file}: empty: expected a header such as global_batch,epochs and a row a run",
            code="curve-table.empty",
            file=file,
        )
    separator = max(_SEPARATORS, key=kept[0][1].count)
    header = _header(_cells(kept[0][1], separator), file=file, line=kept[0][0])
    if len(kept) == 1:
        raise InputError(
            f"{file}: a header and no rows: give at least one batch that was run", code="curve-table.no-rows", file=file
        )
    commas = separator == ";"
    return tuple(
        _row(header, _cells(line, separator), file=file, line=number, decimal_comma=commas) for number, line in kept[1:]
    )


def _cells(line: str, separator: str) -> list[str]:
    found = next(csv.reader(io.StringIO(line), delimiter=separator, skipinitialspace=True), [])
    return [cell.strip() for cell in found]


def _header(cells: list[str], *, file: str, line: int) -> list[str]:
    names = [cell.lower().replace(" ", "_") for cell in cells]
    names = [_NAMES.get(name, name) for name in names]
    while names and not names[-1]:
        names.pop()
    for name in sorted(set(names)):
        if names.count(name) > 1:
            raise InputError(
                f'{file}: line {line}: column "{name}" is there twice',
                code="curve-table.column-twice",
                file=file,
                line=line,
            )
    if "global_batch" not in names:
        raise InputError(
            f"{file}: line {line}: no column global_batch among {', '.join(cells)}",
            code="curve-table.no-batch-column",
            file=file,
            line=line,
        )
    if not any(name in AMOUNTS for name in names):
        raise InputError(
            f"{file}: line {line}: no column epochs, samples, steps or tokens among {', '.join(cells)}",
            code="curve-table.no-amount-column",
            file=file,
            line=line,
        )
    return names


def _row(header: list[str], cells: list[str], *, file: str, line: int, decimal_comma: bool) -> TableRow:
    while len(cells) > len(header) and not cells[-1]:
        cells.pop()
    if len(cells) > len(header):
        raise InputError(
            f"{file}: line {line}: {len(cells)} cells under {len(header)} columns",
            code="curve-table.wrong-cell-count",
            file=file,
            line=line,
        )
    row = dict(zip(header, cells + [""] * (len(header) - len(cells)), strict=True))
    place = _TableRow(file=file, line=line, row=row, decimal_comma=decimal_comma)
    batch = place.whole("global_batch")
    if batch is None:
        raise place.wrong("global_batch", "a whole number of at least 1")
    reached = place.flag("reached")
    amounts = {unit: amount for unit in AMOUNTS if unit in row and (amount := place.positive(unit)) is not None}
    if reached and not amounts:
        wanted = next(unit for unit in AMOUNTS if unit in row)
        raise place.wrong(wanted, "a positive number, or no under a column reached")
    first = next((name for name in header if name in amounts), "")
    deviation = place.number("deviation", least=0.0) if first else None
    if deviation is not None and deviation > amounts[first]:
        raise place.wrong("deviation", f"a standard deviation of {first}, no larger than the {amounts[first]:g} there")
    return TableRow(
        line=line,
        global_batch=batch,
        amounts=amounts,
        run=row.get("run", ""),
        reached=reached,
        target=place.number("target"),
        runs=place.whole("runs"),
        deviation=None if deviation is None else deviation / amounts[first],
        deviation_of=first,
        samples_per_epoch=place.whole("samples_per_epoch"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _TableRow:
    """A row of which cells are asked for by column; a cell that is empty or not there is None."""

    file: str
    line: int
    row: dict[str, str]
    decimal_comma: bool

    def wrong(self, column: str, expected: str) -> InputError:
        return InputError(
            f'{self.file}: line {self.line}, column {column}: expected {expected}, got "{self.row.get(column, "")}"',
            code="curve-table.wrong-cell",
            file=self.file,
            line=self.line,
            column=column,
        )

    def number(self, column: str, *, least: float = -math.inf) -> float | None:
        text = self.row.get(column, "")
        if not text:
            return None
        try:
            value = float(text.replace(",", ".") if self.decimal_comma else text)
            if "_" in text:
                raise ValueError
        except ValueError:
            raise self.wrong(column, "a number") from None
        if not math.isfinite(value) or value < least:
            raise self.wrong(column, "a finite number" + (f" of at least {least:g}" if math.isfinite(least) else ""))
        return value

    def positive(self, column: str) -> float | None:
        value = self.number(column)
        if value is not None and value <= 0:
            raise self.wrong(column, "a positive number")
        return value

    def whole(self, column: str) -> int | None:
        value = self.number(column)
        if value is None:
            return None
        if value != int(value) or not 1 <= value <= LARGEST_BATCH:
            raise self.wrong(column, "a whole number of at least 1")
        return int(value)

    def flag(self, column: str) -> bool:
        text = self.row.get(column, "").lower()
        if text and text not in (*_YES, *_NO):
            raise self.wrong(column, "yes or no")
        return text not in _NO


# ---------------------------------------------------------------------------------------------------------------------
# How many samples an epoch has, by a user's table of runs, and whether its rows agree on it


AGREE = 0.02
"""Amounts in two units may differ by this share, or by one update, or one in each epoch: its last may be smaller."""


class _Epoch(NamedTuple):
    """How many samples an epoch has, by one row.

    Attributes:
        line: of the row
        samples: most likely
        low: at least
        high: at most
        exact: samples are counted; else updates are, of which the last in an epoch may be smaller, or left out
    """

    line: int
    samples: float
    low: float
    high: float
    exact: bool


def samples_per_epoch(rows: Sequence[TableRow], *, file: str) -> float | None:
    """Samples of an epoch, by the rows that give both epochs and samples or steps, and by the column.

    Args:
        rows: of the table
        file: name of it, for messages

    Returns:
        Samples; None where no row says it.

    Raises:
        InputError: two rows contradict each other
    """
    found = [epoch for row in rows for epoch in _epochs_of(row)]
    if not found:
        return None
    lowest = highest = found[0]
    for epoch in found:
        lowest = epoch if epoch.high < lowest.high else lowest
        highest = epoch if epoch.low > highest.low else highest
        if highest.low > lowest.high:
            one, other = sorted((lowest, highest))
            raise InputError(
                f"{file}: lines {one.line} and {other.line} contradict each other: an epoch has {one.samples:.6g} "
                f"samples by the one and {other.samples:.6g} by the other; correct epochs, samples or steps, or keep "
                "one of them",
                code="curve-table.epochs-contradict",
                file=file,
                line=other.line,
            )
    exact = [epoch.samples for epoch in found if epoch.exact]
    if exact:
        return math.fsum(exact) / len(exact)
    return min(found, key=lambda epoch: epoch.high - epoch.low).samples


def _epochs_of(row: TableRow) -> Iterator[_Epoch]:
    about = AGREE / 2
    if row.samples_per_epoch is not None:
        samples = float(row.samples_per_epoch)
        yield _Epoch(row.line, samples, samples * (1 - about), samples * (1 + about), True)
    epochs = row.amounts.get("epochs")
    if epochs is None:
        return
    if "samples" in row.amounts:
        samples = row.amounts["samples"] / epochs
        yield _Epoch(row.line, samples, samples * (1 - about), samples * (1 + about), True)
    elif "steps" in row.amounts:
        samples = row.amounts["steps"] * row.global_batch / epochs
        low, high = (samples + way * row.global_batch * max(1.0, 1.0 / epochs) for way in (-1, 1))
        yield _Epoch(row.line, samples, low * (1 - about), high * (1 + about), False)


def compare_steps(rows: Sequence[TableRow], *, file: str) -> None:
    """Refuse a row whose steps and samples are not of one run.

    Args:
        rows: of the table
        file: name of it, for messages

    Raises:
        InputError: they differ by more than smaller last updates explain
    """
    for row in rows:
        if "steps" not in row.amounts or "samples" not in row.amounts:
            continue
        made = row.amounts["steps"] * row.global_batch
        epochs = row.amounts.get("epochs")
        if epochs is None:
            epochs = row.amounts["samples"] / row.samples_per_epoch if row.samples_per_epoch else 0.0
        if abs(made - row.amounts["samples"]) > max(row.global_batch * max(1.0, epochs), AGREE * made):
            raise InputError(
                f"{file}: line {row.line}: {row.amounts['steps']:g} steps of batch {row.global_batch} are "
                f"{made:g} samples, not {row.amounts['samples']:g}: correct one, or keep one of the columns",
                code="curve-table.steps-contradict-samples",
                file=file,
                line=row.line,
            )


_MOST_BYTES = 2 * 2**20
"""Of a table of runs [bytes]."""


def read_table(path: Path) -> CurveTable:
    """The table of a CSV file.

    Args:
        path: columns `global_batch` and one of `epochs`, `samples`, `steps`, `tokens`, or several that agree; optional
            `run`, `reached` (yes, no), `target`, `runs` and `deviation` (a row is a mean), `samples_per_epoch`

    Raises:
        InputError: it cannot be read, or a place in it is wrong: the message names it
    """
    return parse_table(read_text(path, most_bytes=_MOST_BYTES), file=str(path))


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
"""Units that convert to samples, epochs only where the samples of one are known."""


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
    """Unit of the amounts of a table.

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
                "each is a separate task; make two tables",
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
            f"{file}: line {done[1].line}: batch {batch} has both a row that is a mean of several runs and others "
            "it: give either means or runs",
            code="curve-table.means-and-runs",
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
            notes.append(f"batch {row.global_batch}: the number of runs of a deviation is not given: taken as two")
            return 2, row.deviation
        return row.runs or 1, row.deviation
    notes.append(f"batch {row.global_batch}: a single run has no deviation, left out")
    return 1, None
