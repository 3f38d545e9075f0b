"""Tables for people, readable at 80 columns.

Every function returns a rich renderable and prints nothing. Nothing is said by colour alone, so the tables are complete
where NO_COLOR is set.
"""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import StringIO
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderableType, RenderHook, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from trimaran.base.html import DataTable
from trimaran.base.printable import printable, screen_size
from trimaran.base.units import format_bytes, format_count, format_seconds
from trimaran.program.types import Kind
from trimaran.report.breakdown import Breakdown
from trimaran.report.comparison import Comparison, Figure

# ---------------------------------------------------------------------------------------------------------------------
# The console of all pages: names of files, jobs and devices do on a terminal what letters do, and nothing else


def make_console(*, verbose: bool = False, **options: Any) -> Console:
    """A console that writes control characters of what it is given as escapes; its own styles stay.

    Args:
        verbose: pages show everything on it
        options: of `rich.console.Console`
    """
    # rich takes the figures of the variables as they are: a screen of no columns shows nothing.
    width, height = screen_size()
    console = _Console(highlight=False, emoji=False, **{"width": width, "height": height} | options)
    console.verbose = verbose
    console.push_render_hook(_PrintableHook())
    return console


def shows_all(out: Console) -> bool:
    """Whether pages show everything on a console, and not only what most people want to see."""
    return isinstance(out, _Console) and out.verbose


def page_text(show: Callable[[Console], None]) -> str:
    """A page as a text of 80 columns without colours, which is what `print` shows of a result.

    Args:
        show: prints the page
    """
    text = StringIO()
    show(make_console(file=text, width=WIDTH, no_color=True))
    return text.getvalue().rstrip("\n")


class _Console(Console):
    """A console that leaves it to its caller what to do when whoever reads has had enough; rich exits with 1."""

    verbose = False

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class _PrintableHook(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Printable(Joined(one) if isinstance(one, Text) else one) for one in renderables]


class _Printable:
    """What `content` renders to, with every text of it printable."""

    def __init__(self, content: RenderableType) -> None:
        self.content = content

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self.content, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


_JOIN = "\ue000"
"""Stands for a space at which no line ends; a terminal never sees it."""
_UNIT = r"%|[nµm]?s|min|h|days?|[KMGTP]i?B|[KMGT]?B/s|[kMGT]bit/s|points|GPUs?"
_FIGURE = re.compile(rf"(?<=\d) (?=(?:{_UNIT})(?:[\s,.;:)/]|$))")


def join_figures(text: str) -> str:
    """A text whose figures keep their units when it is folded; `parted` gives it back."""
    return _FIGURE.sub(_JOIN, text)


def parted(text: str) -> str:
    """What `join_figures` made, with spaces."""
    return text.replace(_JOIN, " ")


class Joined:
    """A text whose figures keep their units when it is folded, on whatever console."""

    def __init__(self, text: Text) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text.plain

    def _joined(self) -> Text:
        found = self.text.copy()
        found.plain = join_figures(self.text.plain)
        return found

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._joined(), options):
            yield segment if segment.control else Segment(parted(segment.text), segment.style)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self._joined())


# ---------------------------------------------------------------------------------------------------------------------
# The tables that pages for people are made of: a title, one line under the head, no frame


_WORD = 24
"""Longest word that stays in one line wherever a column has room; paths and names of modules are longer."""


class _Framed(Table):
    """A table of which nothing is elided: words are folded at spaces, and what has no room then stands below.

    Its title and legend have the width of the page: a narrow table would else fold them to its own.
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.title:
            yield self.title
        if self.columns:
            yield from _laid_out(self, console, options)
        if self.caption:
            yield Joined(Text(str(self.caption), style="dim"))


def _laid_out(table: Table, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
    """The table, or where its columns have no room in one another, several with the columns that tell rows apart."""
    room = options.max_width
    cells = [[_cell(console, one) for one in column.cells] for column in table.columns]
    heads = [_cell(console, column.header) for column in table.columns]
    every = [(head, *below) for head, below in zip(heads, cells, strict=True)]
    wide = [
        min(
            max(said.min_width or 0, *(cell_len(line) for one in column for line in one.text.plain.split("\n"))),
            said.max_width or room,
        )
        for column, said in zip(every, table.columns, strict=True)
    ]
    least = [
        min(width, max(said.min_width or 1, *(_longest_word(one) for one in column)))
        for column, width, said in zip(every, wide, table.columns, strict=True)
    ]
    kept = [
        width if said.no_wrap and not said.max_width else low
        for width, low, said in zip(wide, least, table.columns, strict=True)
    ]
    every_column = range(len(wide))
    for floors, gap in ((kept, Padding.unpack(table.padding)[1] + (table.box is not None)), (kept, 1), (least, 1)):
        widths = _narrowed(wide, floors, room - gap * (len(wide) - 1))
        if widths is not None:
            yield _part(table, heads, cells, every_column, widths, gap)
            return
    keys = _key_columns(cells)
    if sum(least[:keys]) + keys > room // 2:
        keys = 1
    rest = list(every_column[keys:])
    while rest:
        if len(rest) < len(every_column) - keys:
            yield Text()
        taken = [*range(keys), rest.pop(0)]
        while rest and sum(least[one] for one in (*taken, rest[0])) + len(taken) <= room:
            taken.append(rest.pop(0))
        free = room - len(taken) + 1
        floors = [least[one] for one in taken]
        # Where two words are wider than the page, the wider one is folded.
        widths = _narrowed([wide[one] for one in taken], floors, free) or _narrowed(floors, [1] * len(taken), free)
        yield _part(table, heads, cells, taken, widths or floors, 1)


def _cell(console: Console, content: RenderableType) -> Joined:
    return (
        content
        if isinstance(content, Joined)
        else Joined(content if isinstance(content, Text) else console.render_str(str(content)))
    )


def _longest_word(cell: Joined) -> int:
    return min(_WORD, max(map(cell_len, join_figures(cell.text.plain).split()), default=0))


def _narrowed(wide: Sequence[int], least: Sequence[int], room: int) -> list[int] | None:
    """Widths that have room, taken from the widest columns first; None where there are none."""
    if sum(least) > room:
        return None
    widths = list(wide)
    while (excess := sum(widths) - room) > 0:
        loose = [one for one, width in enumerate(widths) if width > least[one]]
        widest = max(widths[one] for one in loose)
        for one in [one for one in loose if widths[one] == widest][:excess]:
            widths[one] -= 1
    return widths


def _key_columns(cells: Sequence[Sequence[Joined]]) -> int:
    """How many of the first columns tell rows apart, where an empty cell repeats the one above."""
    rows: list[tuple[str, ...]] = [()] * len(cells[0])
    for count, column in enumerate(cells[:-1], start=1):
        above = ""
        for number, cell in enumerate(column):
            above = cell.text.plain or above
            rows[number] += (above,)
        if len(set(rows)) == len(rows):
            return count
    return 1


def _part(
    table: Table,
    heads: Sequence[Joined],
    cells: Sequence[Sequence[Joined]],
    taken: Sequence[int],
    widths: Sequence[int],
    gap: int,
) -> Table:
    """Some columns of a table at their widths."""
    ruled = table.box is not None
    part = Table(
        box=table.box,
        show_header=any(head.text.plain for head in heads),
        show_edge=False,
        pad_edge=False,
        padding=(0, gap - ruled, 0, 0),
    )
    for one, width in zip(taken, widths, strict=True):
        said = table.columns[one]
        part.add_column(heads[one], justify=said.justify, style=said.style, width=width, overflow="fold")
    for number, row in enumerate(table.rows):
        part.add_row(*(cells[one][number] for one in taken), style=row.style, end_section=row.end_section)
    return part


def frame_table(title: str = "", caption: str = "", *, ruled: bool = True, gap: int = 2) -> Table:
    """An empty table.

    Args:
        title: above it; brackets in it are no markup; "": none
        caption: the legend below it, likewise: a line or two on each column and mark that does not explain itself
        ruled: a line stands under the head
        gap: between two columns; 1 where there is no room for more [columns]
    """
    return _Framed(
        box=box.SIMPLE_HEAD if ruled else None,
        padding=(0, gap - ruled, 0, 0),
        title=Text(title, style="bold") if title else None,
        caption=Text(caption) if caption else None,
    )


def table_view(table: DataTable, title: str = "", caption: str = "", *, most: int | None = None) -> Table:
    """A table as a terminal has it.

    Args:
        table: with texts of any origin
        title: above it
        caption: the legend below it, before its own
        most: rows that are shown; None: all
    """
    left = 0 if most is None else max(0, len(table.rows) - most)
    more = f"{format_count(left, 'row')} more: --json" if left else table.left_out
    framed = frame_table(title, "\n".join(filter(None, (caption, table.caption, more))))
    for number, name in enumerate(table.columns):
        (add_words if number in table.words else add_figures)(framed, name)
    for row in table.rows[: len(table.rows) - left]:
        framed.add_row(*map(Text, row))
    if 0 < table.sums < len(framed.rows):
        framed.rows[-1 - table.sums].end_section = True
    return framed


def next_text(words: Sequence[str], then: str = "") -> str:
    """The command that follows an answer, for a shell: where 80 columns do not hold it, it goes on in further lines.

    Args:
        words: of the command
        then: what it does, for people, in a line before it; "": it says that itself

    Example:
        >>> print(next_text(["trimaran", "train", "digits", "--plan", "plan.json"]))
        Next: trimaran train digits --plan plan.json
    """
    lines = [f"Next{f', {then}' if then else ''}:"]
    for number, part in enumerate(_options_of(words)):
        # Room is left for the mark of a line that goes on.
        if number and len(lines[-1]) + len(part) + 3 > WIDTH:
            lines[-1] += " \\"
            lines.append(f"   {part}")
        else:
            lines[-1] += f" {part}"
    return "\n".join(lines)


def print_next(out: Console, words: Sequence[str], then: str = "") -> None:
    """Print the command that follows an answer, as `next_text` has it."""
    out.print(next_text(words, then), soft_wrap=True, markup=False)


def _options_of(words: Sequence[str]) -> Iterator[str]:
    """Parts of a command that stay in one line: the command with its name, an option with its value."""
    part: list[str] = []
    for word in words:
        if part and (word.startswith("-") or not part[0].startswith("-") or len(part) == 2) and part != ["trimaran"]:
            yield shlex.join(part)
            part = []
        part.append(word)
    if part:
        yield shlex.join(part)


WIDTH = 80
"""Columns of a page."""


def add_words(table: Table, *titles: str, no_wrap: bool = False) -> None:
    """Add columns of words, aligned to the left.

    Args:
        table: that grows
        titles: of the columns, in order
        no_wrap: lines are not folded where a terminal is narrow
    """
    for title in titles:
        table.add_column(title, no_wrap=no_wrap)


def add_figures(table: Table, *titles: str, no_wrap: bool = True) -> None:
    """Add columns of figures, aligned to the right, each in one line.

    Args:
        table: that grows
        titles: of the columns, in order; a unit stands in a title or behind each figure
        no_wrap: figures are not folded where a terminal is narrow
    """
    for title in titles:
        table.add_column(title, justify="right", no_wrap=no_wrap)


def bullet(text: Text, *, mark: str = "-") -> Table:
    """A paragraph behind a mark, of which no line begins below the mark."""
    row = frame_table(ruled=False, gap=1)
    row.add_column(justify="right", no_wrap=True)
    row.add_column()
    row.add_row(mark, text)
    return row


_PARTS = (
    ("FP", "forward"),
    ("BP", "backward"),
    ("WU", "update"),
    ("load", "load"),
    ("comm", "exposed"),
    ("idle", "idle"),
    ("other", "unattributed"),
    ("step", "step"),
    ("overlap", "overlapped"),
)


def rank_table(comparison: Comparison) -> Table:
    """Parts of the step by rank: predicted, measured, error.

    Args:
        comparison: of a prediction and a run

    Returns:
        Three lines a rank. The parts sum to the step; overlapped communication is not one of them.
    """
    unit, size = unit_of(_longest(comparison))
    # One device waits for no other.
    alone = len(comparison.ranks) == 1
    shown = [(title, name) for title, name in _PARTS if not (alone and name in ("exposed", "idle", "overlapped"))]
    waits = "" if alone else "comm: communication while waiting; idle: waiting for other ranks; "
    overlap = "" if alone else "overlap: communication while working, not part of the step\n"
    table = frame_table(
        f"Predicted and measured step{'' if alone else ' by rank'} [{unit}]",
        f"FP, BP, WU: forward, backward, weight update; load: waiting for data; {waits}other: unattributed\n"
        f"{overlap}{comparison.steps} steps measured after {comparison.warmup} of warm-up",
    )
    add_figures(table, "device" if alone else "rank", no_wrap=False)
    add_words(table, "")
    for title, _ in shown:
        table.add_column(title, justify="right")
    for rank in comparison.ranks:
        figures = [rank.figure(name) for _, name in shown]
        table.add_row(str(rank.rank), "predicted", *(number_in(figure.predicted_s, size) for figure in figures))
        table.add_row("", "measured", *(number_in(figure.measured_s, size) for figure in figures))
        table.add_row("", "error", *(_error(figure) for figure in figures), end_section=True)
    return table


def kind_table(comparison: Comparison) -> Table:
    """Kinds of instructions: median duration of one, predicted and measured, and the error.

    Args:
        comparison: of a prediction and a run
    """
    table = frame_table(
        "Median by kind of instruction",
        "kind: of instruction; count: of them in a step; observed: those of them with a measured duration",
    )
    add_words(table, "kind")
    add_figures(table, "count", "observed", "predicted", "measured", "error", no_wrap=False)
    for kind in comparison.kinds:
        measured_s = kind.measured_s
        table.add_row(
            f"{kind.kind} {KIND_NAMES[kind.kind]}",
            str(kind.count),
            str(kind.observed),
            format_seconds(kind.predicted_s),
            "–" if measured_s is None else format_seconds(measured_s),
            _error(kind),
        )
    return table


KIND_NAMES: Mapping[Kind, str] = {
    Kind.LOAD: "load a batch",
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.BACKWARD_INPUT: "dgrad",
    Kind.BACKWARD_WEIGHT: "wgrad",
    Kind.SEND_FORWARD: "send activations",
    Kind.RECEIVE_FORWARD: "receive activations",
    Kind.SEND_BACKWARD: "send gradients",
    Kind.RECEIVE_BACKWARD: "receive gradients",
    Kind.ALL_REDUCE: "all-reduce",
    Kind.ALL_GATHER: "all-gather",
    Kind.REDUCE_SCATTER: "reduce-scatter",
    Kind.BROADCAST: "broadcast",
    Kind.REDUCE: "reduce",
    Kind.UPDATE: "update",
    Kind.CLIP: "clip gradients",
    Kind.OFFLOAD: "offload",
    Kind.PREFETCH: "prefetch",
    Kind.RELEASE: "release",
    Kind.RECOMPUTE: "recompute",
    Kind.EVALUATE: "evaluate",
}
"""What a kind of instruction does, for people."""


def utilization_table(devices: Sequence[Breakdown], *, peaks: Sequence[int] = ()) -> Table:
    """Busy, waiting and empty share of each device.

    Args:
        devices: one entry a rank
        peaks: peak memory of each rank; empty: not known [bytes]
    """
    # One device waits for no other.
    alone, peak_words = len(devices) == 1, "; peak: memory" if peaks else ""
    legend = (
        "busy: forward, backward, update, loading; idle: the rest"
        if alone
        else "busy: forward, backward, update, loading; wait: communication that nothing\noverlaps; bubble: neither"
    )
    table = frame_table("Devices", legend + peak_words)
    waits = ("idle",) if alone else ("wait", "bubble")
    add_figures(
        table, "device" if alone else "rank", "step", "busy", *waits, *(("peak",) if peaks else ()), no_wrap=False
    )
    for device in devices:
        parts = (device.busy, 1.0 - device.busy) if alone else (device.busy, device.wait, device.bubble)
        shares = (f"{100 * share:.1f} %" for share in parts)
        peak = (format_bytes(peaks[device.rank]),) if peaks else ()
        table.add_row(str(device.rank), format_seconds(device.step_s), *shares, *peak)
    return table


def _longest(comparison: Comparison) -> float:
    return max((max(rank.step.predicted_s, rank.step.measured_s or 0.0) for rank in comparison.ranks), default=0.0)


def unit_of(seconds: float) -> tuple[str, float]:
    """Unit in which a duration has at least two digits before the point, and its size [s]."""
    return next((entry for entry in _UNITS if seconds >= 10 * entry[1]), _UNITS[-1])


_UNITS = (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6))


def number_in(seconds: float | None, size: float) -> str:
    """A duration in a given unit: three digits, or all that are before the point."""
    if seconds is None:
        return "–"
    value = seconds / size
    # What is nothing but for rounding has no sign.
    return f"{value:z.{2 if abs(value) < 10 else 1 if abs(value) < 100 else 0}f}"


def _error(figure: Figure) -> Text:
    """The error in percent; bold from 20 % on, where the prediction should not be trusted."""
    error = figure.error
    if error is None:
        return Text("–")
    digits = 0 if abs(error) >= 0.0995 else 1
    text = ">999%" if error >= 9.995 else f"{100 * error:+.{digits}f}%"
    return Text(text, style="bold" if abs(error) >= 0.2 else "")
