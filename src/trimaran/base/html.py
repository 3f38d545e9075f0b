"""HTML texts and tables: what pages and notebooks are made of. What a file says is escaped here, and nowhere else."""

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trimaran.base.printable import printable


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
        words: columns of words, aligned to the left; the others are figures; long ones have a width to be read in
        caption: what the table is of; "": nothing
        left_out: rows that are not there, in words; "": none
        sums: last rows that are sums of the others
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: frozenset[int] = frozenset({0})
    caption: str = ""
    left_out: str = ""
    sums: int = 0


def table_html(table: DataTable) -> str:
    """A table as HTML.

    Args:
        table: with texts of any origin

    Example:
        >>> table_html(DataTable(columns=("rank",), rows=[("<0>",)])).count("&lt;0&gt;")
        1
    """
    caption = f"<caption>{escaped(table.caption)}</caption>" if table.caption else ""
    sides = [_side(table, n) for n in range(len(table.columns))]
    head = "".join(
        f'<th scope="col"{side}>{escaped(title)}</th>' for side, title in zip(sides, table.columns, strict=True)
    )
    body = "\n".join(
        f"<tr>{''.join(f'<td{side}>{escaped(cell)}</td>' for side, cell in zip(sides, row, strict=True))}</tr>"
        for row in table.rows
    )
    left_out = f'<p class="note">{escaped(table.left_out)}</p>' if table.left_out else ""
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>{left_out}"


def _side(table: DataTable, column: int) -> str:
    if column not in table.words:
        return ' class="figure"'
    longest = max((len(row[column]) for row in table.rows), default=0)
    return next((f' class="{name}"' for name, letters in (("long", 60), ("middle", 24)) if longest > letters), "")


def letters_across(table: DataTable) -> int:
    """About how many letters a table is wide, where the style sheet gives columns the least width that can be read.

    Args:
        table: with columns of words and of figures

    Example:
        >>> letters_across(DataTable(columns=("name", "peak"), rows=[("a" * 90, "1.2 GiB")]))
        53
    """
    widths = []
    for n, title in enumerate(table.columns):
        longest = max((len(row[n]) for row in table.rows), default=0)
        most = (
            (40 if longest > 60 else 24) if n in table.words else max((len(word) for word in title.split()), default=0)
        )
        widths.append(min(longest, most) if n in table.words else max(longest, most))
    return sum(width + 3 for width in widths)


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
