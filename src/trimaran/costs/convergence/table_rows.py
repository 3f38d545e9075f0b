"""The rows of a user's table of runs: every cell checked where it stands, so that an error names line and column."""

import csv
import io
import math
from dataclasses import dataclass

from trimaran.costs.convergence.checks import LARGEST_BATCH
from trimaran.errors import InputError

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
_KNOWN = ("global_batch", *AMOUNTS, "run", "reached", "target", "runs", "deviation", "samples_per_epoch")
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
        run: what the run is called; "" where it has no name
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
        InputError: an empty text, a missing or unknown column, a cell that is not what its column holds
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
    place = _Place(file=file, line=line, row=row, decimal_comma=decimal_comma)
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
class _Place:
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
