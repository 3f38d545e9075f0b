"""What a table owes: every word of it, at any width."""

import io

from rich.table import Table

from trimaran.report.tables import join_figures, make_console, parted

LONGEST = 24
"""A longer word, such as a path, may be folded."""


def assert_whole(table: Table, width: int) -> None:
    """Every word and every figure with its unit is in one line of a table, and no line is longer than the page."""
    file = io.StringIO()
    out = make_console(file=file, width=width, no_color=True)
    out.print(table)
    page = file.getvalue()
    assert max(map(len, page.splitlines()), default=0) <= width
    cells = [cell for column in table.columns for cell in (column.header, *column.cells)]
    texts = [out.render_str(cell).plain if isinstance(cell, str) else str(cell) for cell in cells]
    shown = [f" {parted(line)} " for line in page.splitlines()]
    for word in {parted(word) for text in texts for word in join_figures(text).split()}:
        assert len(word) > LONGEST or any(f" {word} " in line for line in shown), (word, page)
    assert "…" not in page or any("…" in text for text in texts)
