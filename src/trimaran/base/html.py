"""HTML texts and tables: what pages and notebooks are made of. What a file says is escaped here, and nowhere else."""

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trimaran.base.printable import printable

__all__ = ["DataTable", "escaped", "fragment", "table_html"]


def escaped(value: object) -> str:
    r"""A text as HTML shows it, in an element or between the quotes of an attribute.

    Args:
        value: of any origin

    Example:
        >>> print(escaped('<script>"x"' + chr(27)))
        &lt;script&gt;&quot;x&quot;\x1b
    """
    return html.escape(printable(str(value)), quote=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataTable:
    """Figures in rows.

    Attributes:
        columns: their titles, with units
        rows: a text for each column
        words: columns of words, aligned to the left; the others are figures
        caption: what the table is of; "": nothing
        left_out: rows that are not there, in words; "": none
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: frozenset[int] = frozenset({0})
    caption: str = ""
    left_out: str = ""


def table_html(table: DataTable) -> str:
    """A table as HTML.

    Args:
        table: with texts of any origin

    Example:
        >>> table_html(DataTable(columns=("rank",), rows=[("<0>",)])).count("&lt;0&gt;")
        1
    """
    caption = f"<caption>{escaped(table.caption)}</caption>" if table.caption else ""
    head = "".join(f'<th scope="col"{_side(table, n)}>{escaped(title)}</th>' for n, title in enumerate(table.columns))
    body = "\n".join(
        f"<tr>{''.join(f'<td{_side(table, n)}>{escaped(cell)}</td>' for n, cell in enumerate(row))}</tr>"
        for row in table.rows
    )
    left_out = f'<p class="note">{escaped(table.left_out)}</p>' if table.left_out else ""
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>{left_out}"


def _side(table: DataTable, column: int) -> str:
    return "" if column in table.words else ' class="figure"'


def fragment(verdict: str, table: DataTable, notes: Iterable[str] = ()) -> str:
    """What a notebook shows of a result: the verdict, a table, notes.

    Args:
        verdict: one sentence
        table: its figures
        notes: what else a reader should know

    Example:
        >>> fragment("Fits.", DataTable(columns=("a",), rows=())).startswith("<div><p><strong>Fits.</strong></p>")
        True
    """
    below = "".join(f"<p>{escaped(note)}</p>" for note in notes)
    return f"<div><p><strong>{escaped(verdict)}</strong></p>{table_html(table)}{below}</div>"
