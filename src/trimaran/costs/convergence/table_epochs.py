"""How many samples an epoch has, by a user's table of runs, and whether its rows agree on it."""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from trimaran.costs.convergence.table_rows import TableRow
from trimaran.errors import InputError

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
    """Samples of an epoch, by the rows that give epochs beside samples or steps, and by the column.

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
