"""Sentences and tables of a page, in terminals and in files."""

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table

_ENDLESS = 100_000
"""More columns than any line has."""


def print_lines(out: Console, lines: Iterable[str | Table]) -> None:
    """Print sentences and tables: in a terminal wrapped at its width; elsewhere each sentence and row stays one line.

    Args:
        out: where to
        lines: in order; brackets in sentences are no markup
    """
    if not out.is_terminal:
        out = Console(file=out.file, width=_ENDLESS, highlight=False)
    for line in lines:
        out.print(line, markup=False)
