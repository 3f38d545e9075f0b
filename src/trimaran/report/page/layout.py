"""One HTML file: a verdict, figures, sections with charts and the tables behind them, a timeline.

The file is complete in itself. A policy in its head forbids every load, and every script but the one of `page.js`,
which is named by its digest; so a text that somehow escaped `trimaran.base.html` would still not run. Charts are SVG
in the page and do without a script; the timeline alone needs it.

Chart libraries were left out: plotly is 3.5 MB in each file, Bokeh and Vega-Lite are about 1 MB and a second way to
draw, pictures of matplotlib have no text or tables.
"""

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trimaran.base.errors import InputError
from trimaran.base.files import packaged_text
from trimaran.base.html import DataTable, escaped, letters_across, table_html
from trimaran.base.units import format_bytes

MOST_BYTES = 2 * 10**6
"""Of a page [bytes]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A drawing with the table behind it.

    Attributes:
        svg: the element; "": nothing can be drawn, and the table stands alone
        table: what it is drawn from
        caption: what to see in it, one sentence
        is_open: the table is shown, too
    """

    svg: str
    table: DataTable
    caption: str = ""
    is_open: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """Sentences.

    Attributes:
        lines: each a paragraph, or an entry
        is_list: they are entries of a list
    """

    lines: Sequence[str]
    is_list: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """Commands for a shell.

    Attributes:
        lines: what each does, and the command
    """

    lines: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Timelines:
    """What each rank does when, for the viewer of the page.

    Attributes:
        document: as `page_timeline` makes it
        note: what is drawn, one sentence
    """

    document: Mapping[str, Any]
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of the page under one heading.

    Attributes:
        id: for links
        title: its heading
        content: in order
        is_wide: it takes the whole width, where others stand in two columns
        is_detail: a terminal has it with `--verbose`
    """

    id: str
    title: str
    content: Sequence[Chart | Words | Commands | Timelines | DataTable]
    is_wide: bool = False
    is_detail: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    """A section that the input does not know.

    Attributes:
        title: what it would be
        how: the command that gives it, or why nothing does
    """

    title: str
    how: str


@dataclass(slots=True)
class Contents:
    """Sections as they are found, and those that the input does not know."""

    sections: list[Section] = field(default_factory=list)
    absent: list[Absent] = field(default_factory=list)

    def add(self, section: Section | None, title: str, how: str) -> None:
        """Take a section, or note that there is none.

        Args:
            section: None: the input does not know it
            title: what it would be
            how: the command that gives it, or why nothing does
        """
        if section is not None:
            self.sections.append(section)
        else:
            self.absent.append(Absent(title=title, how=how))


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What a page says.

    Attributes:
        title: of the document, such as "digits on 2 ranks"
        kind: of the input, such as "training run"
        verdict: one sentence
        facts: names and values of the most important figures
        sections: in order
        absent: sections that the input does not know
        notes: what the reader should know
        sources: files that it is made of
        version: of the program
        command: that made the answer, as far as it says
        environment: where, names and values
    """

    title: str
    kind: str
    verdict: str
    facts: Sequence[tuple[str, str]]
    sections: Sequence[Section]
    absent: Sequence[Absent] = ()
    notes: Sequence[str] = ()
    sources: Sequence[str] = ()
    version: str = ""
    command: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


def those_known(*sections: Section | None) -> list[Section]:
    """Sections that the input knows."""
    return [section for section in sections if section is not None]


def render_page(page: Page) -> str:
    """The page as the text of an HTML file.

    Args:
        page: what it says

    Raises:
        InputError: the file would be larger than `MOST_BYTES`
    """
    script = packaged_text("trimaran.report.page", "page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    text = "\n".join(
        (
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            '<link rel="icon" href="data:,">',
            f"<title>{escaped(page.title)} – Trimaran report</title>",
            f"<style>\n{packaged_text('trimaran.report.page', 'page.css')}</style>",
            "</head>",
            "<body>",
            '<a class="skip" href="#content">To the content</a>',
            *_head(page),
            '<main id="content">',
            *(_section(section) for section in page.sections),
            *_absent(page.absent),
            "</main>",
            *_foot(page),
            f"<script>{script}</script>",
            "</body>",
            "</html>",
        )
    )
    nbytes = len(text.encode())
    if nbytes > MOST_BYTES:
        raise InputError(
            f"the report would have {format_bytes(nbytes)}, and one that can be sent has at most "
            f"{format_bytes(MOST_BYTES)}: report fewer documents at once",
            code="report.too-large",
            nbytes=nbytes,
        )
    return text + "\n"


def _head(page: Page) -> Iterable[str]:
    yield "<header>"
    yield f'<p class="kind">{escaped(page.kind)}: <strong>{escaped(page.title)}</strong></p>'
    yield f"<h1>{_unbroken(page.verdict)}</h1>"
    if page.facts:
        facts = "".join(f"<div><dt>{escaped(name)}</dt><dd>{escaped(value)}</dd></div>" for name, value in page.facts)
        yield f"<dl>{facts}</dl>"
    for note in page.notes:
        yield f'<p class="note">{_unbroken(note)}</p>'
    links = "".join(f'<a href="#{escaped(one.id)}">{escaped(one.title)}</a>' for one in page.sections)
    yield f'<nav aria-label="Sections">{links}</nav>' if len(page.sections) > 1 else ""
    yield "</header>"


def _section(section: Section) -> str:
    name = escaped(section.id)
    full = ' class="full"' if section.is_wide or any(_is_wide(one) for one in section.content) else ""
    parts = [f'<section id="{name}"{full} aria-labelledby="{name}-title">']
    parts.append(f'<h2 id="{name}-title">{escaped(section.title)}</h2>')
    parts += [_part(one) for one in section.content]
    return "\n".join([*parts, "</section>"])


_COLUMN = 66
"""Letters of a table across one of two columns."""


def _is_wide(part: Chart | Words | Commands | Timelines | DataTable) -> bool:
    """A table that is shown unasked and has no room in one of two columns."""
    if isinstance(part, Chart):
        return (part.is_open or not part.svg) and letters_across(part.table) > _COLUMN
    return isinstance(part, DataTable) and letters_across(part) > _COLUMN


def _part(part: Chart | Words | Commands | Timelines | DataTable) -> str:
    if isinstance(part, DataTable):
        return f'<div class="wide" tabindex="0" role="region" aria-label="table">{table_html(part)}</div>'
    if isinstance(part, Chart):
        return _chart(part)
    if isinstance(part, Words):
        kind = "li" if part.is_list else "p"
        lines = "".join(f"<{kind}>{_unbroken(line)}</{kind}>" for line in part.lines)
        return f"<ul>{lines}</ul>" if part.is_list else lines
    if isinstance(part, Commands):
        return "".join(f"<p>{_unbroken(what)}</p><pre>{_unbroken(command)}</pre>" for what, command in part.lines)
    return _timelines(part)


def _chart(chart: Chart) -> str:
    marks = (' class="broad"' if letters_across(chart.table) > _COLUMN else "") + (" open" if chart.is_open else "")
    caption = f"<figcaption>{escaped(chart.caption)}</figcaption>" if chart.caption else ""
    # Names of columns say the units, so the table stands for the chart.
    table = f'<div class="wide" tabindex="0" role="region" aria-label="table">{table_html(chart.table)}</div>'
    if not chart.svg:
        return f"<figure>{table}{caption}</figure>"
    drawn = f'<div class="wide" tabindex="0" role="region" aria-label="chart">{chart.svg}</div>'
    return f"<figure>{drawn}{caption}<details{marks}><summary>Figures as a table</summary>{table}</details></figure>"


_VIEWER = """<figure class="timeline">
<div class="tools" data-off>
<button type="button" data-do="in">Zoom in</button><button type="button" data-do="out">Zoom out</button>
<button type="button" data-do="all">Whole step</button>
<button type="button" data-do="taller">Taller rows</button><button type="button" data-do="lower">Shorter rows</button>
<label class="steps">step <select></select></label>
</div>
<ul class="legend"></ul>
<canvas tabindex="0" role="application" aria-label="Timeline of every rank. Arrow keys move, plus and minus zoom,
 comma and full stop go from span to span, 0 shows the whole step."></canvas>
<output aria-live="polite"></output>
<p class="keys" data-off>Drag to move, Ctrl and wheel to zoom. Keys: ← → ↑ ↓ move, + − zoom, [ ] height of rows,
 , . span by span, 0 whole step. In the lowest rows work covers the communication that overlaps with it.</p>
<noscript><p class="note">The timeline needs JavaScript; the tables of this page do not.</p></noscript>
<details class="spans"><summary>Spans of a rank as a table</summary>
<label>rank <input type="number" min="0" value="0"></label><div class="wide" tabindex="0" role="region"
 aria-label="table of spans"></div></details>
</figure>"""


def _timelines(part: Timelines) -> str:
    # No text of it can end the element: every "<" is an escape.
    data = json.dumps(part.document, separators=(",", ":"), ensure_ascii=True).replace("<", "\\u003c")
    return f'<p>{escaped(part.note)}</p>\n{_VIEWER}\n<script type="application/json" id="timeline">{data}</script>'


def by_way(absent: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """What a page has not, those together that the same command gives.

    Args:
        absent: titles, and what gives each

    Example:
        >>> by_way([("Memory", "run"), ("Scaling", "scale"), ("Timeline", "run")])
        [('Memory, Timeline', 'run'), ('Scaling', 'scale')]
    """
    titles: dict[str, list[str]] = {}
    for title, how in absent:
        titles.setdefault(how, []).append(title)
    return [(", ".join(those), how) for how, those in titles.items()]


def _absent(absent: Sequence[Absent]) -> Iterable[str]:
    if absent:
        found = by_way((one.title, one.how) for one in absent)
        lines = "".join(f"<li><strong>{escaped(title)}</strong>: {_unbroken(how)}</li>" for title, how in found)
        yield '<section id="absent" class="full" aria-labelledby="absent-title">'
        yield f'<h2 id="absent-title">Not in this report</h2><ul>{lines}</ul></section>'


def _unbroken(text: str) -> str:
    """A text whose lines end between words: a browser would break `--batch` behind its hyphens.

    Example:
        >>> _unbroken("plan --batch 8")
        'plan <span class="whole">--batch</span> 8'
    """
    words = ((escaped(word), "-" in word) for word in text.split(" "))
    return " ".join(f'<span class="whole">{word}</span>' if is_whole else word for word, is_whole in words)


def _foot(page: Page) -> Iterable[str]:
    made = f"Made by Trimaran {page.version}" if page.version else "Made by Trimaran"
    files = f" from {', '.join(page.sources)}" if page.sources else ""
    yield f"<footer><p>{escaped(made + files)}. This file loads nothing from anywhere.</p></footer>"
