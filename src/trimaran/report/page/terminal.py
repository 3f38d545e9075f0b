"""A page in a terminal: verdict, facts, tables, words and notes, the same as in HTML; of a chart its table."""

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.text import Text

from trimaran.report.page.layout import Chart, Commands, Section, StudyPage, Timelines, Words
from trimaran.report.tables import bullet, table_view


def print_page(out: Console, page: StudyPage) -> None:
    """Print a page, whose tables are readable at 80 columns.

    Args:
        out: where
        page: of an answer
    """
    out.print(Text(page.verdict, style="bold"), "", sep="\n")
    known = [*page.facts, *page.environment.items()]
    out.print(Text(f"{page.title}; {'; '.join(f'{name}: {value}' for name, value in known if value)}", style="dim"))
    for section in page.sections:
        out.print("", *section_view(section), sep="\n")
    out.print()
    for note in page.notes:
        out.print(f"[yellow]note:[/] {escape(note)}")


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
