"""A page in a terminal: verdict, facts, tables, words and notes, the same as in HTML; of a chart its table."""

from collections.abc import Sequence
from itertools import accumulate

from rich.console import Console, Group, RenderableType
from rich.text import Text

from trimaran.base.units import format_count
from trimaran.report.page.layout import Chart, Commands, Page, Section, Timelines, Words
from trimaran.report.tables import bullet, shows_all, table_view

SCREEN = 24
"""Lines of a terminal."""

_NEXT = 3
"""Of them for the next command."""


def print_page(out: Console, page: Page, *, on_a_screen: bool = False) -> None:
    """Print a page, whose tables are readable at 80 columns.

    Args:
        out: where; with `--verbose` it has everything
        page: of an answer
        on_a_screen: it and the next command have no more than `SCREEN` lines otherwise: tables end after eight rows or
            fewer, and notes where there is no more room
    """
    whole = shows_all(out)
    facts = "; ".join(f"{name}: {value}" for name, value in page.facts if value)
    head = [Text(page.verdict, style="bold"), Text(), Text(f"{page.title}; {facts}", style="dim")]
    notes = [Text.assemble(("note:", "yellow"), f" {note}") for note in page.notes]
    notes += [Text(f"{name}: {value}", style="dim") for name, value in page.environment.items() if value]
    sections = [section for section in page.sections if whole or not section.is_detail]

    def shown(most: int | None) -> list[RenderableType]:
        return [*head, *(part for section in sections for part in (Text(), *section_view(section, most=most))), Text()]

    if whole or not on_a_screen:
        out.print(*shown(None), *notes, sep="\n")
        return
    details = [section.title for section in page.sections if section.is_detail]
    room = SCREEN - _NEXT - _height(out, [_more(details, len(notes))])
    top = next((parts for most in range(8, 2, -1) if _height(out, parts := shown(most)) <= room), shown(2))
    room -= _height(out, top)
    fitting = sum(height <= room for height in accumulate(_height(out, [note]) for note in notes))
    out.print(*top, *notes[:fitting], _more(details, len(notes) - fitting), sep="\n")


def _more(titles: Sequence[str], notes: int) -> Text:
    """What is left to `--verbose`."""
    left = [*titles, *([format_count(notes, "more note")] if notes else [])]
    return Text(f"--verbose: {'; '.join(left)}", style="dim")


def _height(out: Console, parts: Sequence[RenderableType]) -> int:
    return sum(len(out.render_lines(part, pad=False)) for part in parts)


def section_view(section: Section, *, most: int | None = None) -> list[RenderableType]:
    """A section for a terminal.

    Args:
        section: of a page
        most: rows of a table that are shown; None: all
    """
    shown: list[RenderableType] = []
    for part in section.content:
        title = "" if shown else section.title
        if isinstance(part, Words):
            lines = [bullet(Text(line)) if part.is_list else Text(line) for line in part.lines]
            shown.append(Group(*([Text(title, style="bold")] if title else []), *lines))
        elif not isinstance(part, Commands | Timelines):
            table, caption = (part.table, part.caption) if isinstance(part, Chart) else (part, "")
            shown.append(table_view(table, title, caption, most=most))
    return shown
