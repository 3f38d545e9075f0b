"""Charts of a page: bars in parts, and curves with points, intervals and limits, on `svg.Drawing`.

Colours are variables of the page's style sheet (`page.css`), which has them for light and for dark. A chart says one
thing; its legend stands above it, the titles of its axes have units, and what it is drawn from is in a table behind it.
"""

import itertools
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from trimaran.base.files import packaged_text
from trimaran.report.svg import Drawing, Point

WIDTH = 560.0
"""Of a chart [pixels]; a page on a small screen makes it smaller."""

SERIES_COLOURS = tuple(f"var(--series-{number})" for number in range(1, 7))
INK, SOFT, GRID, GROUND = "var(--ink)", "var(--soft)", "var(--grid)", "var(--ground)"

_FONT = 13
_LETTER = 7.5  # mean width of a character in that size, of a wide font [pixels]
_LINE = 20.0
_NAME = 32
"""Letters of a name at a bar or a value."""

_MOST_ROWS = 20
"""Bars that lie below each other; of more, each stands, and they touch."""


def short(text: str, most: int) -> str:
    """A text of at most some characters.

    Example:
        >>> short("classifier", 20), short("classifier", 6)
        ('classifier', 'class…')
    """
    return text if len(text) <= most else text[: most - 1] + "…"


_UNITS = (
    ("days", 86400.0, 3.0),
    ("h", 3600.0, 2.0),
    ("min", 60.0, 5.0),
    ("s", 1.0, 1.0),
    ("ms", 1e-3, 1.0),
    ("µs", 1e-6, 1.0),
)


def time_unit(longest_s: float) -> tuple[str, float]:
    """The unit of an axis of durations, and its size [s].

    Args:
        longest_s: on it [s]

    Example:
        >>> time_unit(7.7), time_unit(0.02), time_unit(5000.0)
        (('s', 1.0), ('ms', 0.001), ('min', 60.0))
    """
    return next(((unit, size) for unit, size, enough in _UNITS if longest_s >= enough * size), ("µs", 1e-6))


def byte_unit(most: int) -> tuple[str, int]:
    """The unit of an axis of bytes, and its size [bytes].

    Args:
        most: on it [bytes]
    """
    return next(
        ((name, one) for name, one in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)) if most >= one), ("B", 1)
    )


def plain_number(value: float) -> str:
    """A number on an axis: four digits, or all that are before the point; no exponent up to a billion.

    Example:
        >>> plain_number(0.25), plain_number(500000.0), plain_number(5e6), plain_number(0.0)
        ('0.25', '500,000', '5 M', '0')
    """
    if 1e6 <= abs(value) < 1e10:
        return f"{value / 1e6:,.4g} M"
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.4g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartAxis:
    """One axis of a chart.

    Attributes:
        title: with the unit
        log: steps are factors
        ticks: values that have a label; empty: round ones
        zero: it begins at 0; not of a logarithmic axis
        label: of a value, for people
    """

    title: str
    log: bool = False
    ticks: Sequence[float] = ()
    zero: bool = False
    label: Callable[[float], str] = plain_number


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points with one meaning.

    Attributes:
        name: in the legend
        points: x and y, in the order in which they are joined
        says: what a pointer on each reads; empty: nothing
        labels: a text next to each point, "" for none; empty: no point has one
        ends: low and high y of each point, drawn as a band; empty: none
        colour: of line and points
        line: points are joined
        steps: they are joined by steps: a value holds until the next
        dashed: the line has gaps
        dots: points are drawn
        hollow: as rings
        size: of a point [pixels]
        whiskers: `ends` are drawn as a line at each point instead of a band
    """

    name: str
    points: Sequence[Point]
    says: Sequence[str] = ()
    labels: Sequence[str] = ()
    ends: Sequence[Point] = ()
    colour: str = SERIES_COLOURS[0]
    line: bool = True
    steps: bool = False
    dashed: bool = False
    dots: bool = True
    hollow: bool = False
    size: float = 3.5
    whiskers: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitLine:
    """A value that matters, as a line across the chart.

    Attributes:
        name: in the legend
        at: the value
        upright: of x instead of y
        colour: of the line
    """

    name: str
    at: float
    upright: bool = False
    colour: str = "var(--limit)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar.

    Attributes:
        name: left of it or below it
        parts: of the same order as the parts of the chart
        note: behind it, such as the sum; "": nothing
    """

    name: str
    parts: Sequence[float]
    note: str = ""


# ---------------------------------------------------------------------------------------------------------------------
# Curves


_LEFT, _RIGHT, _PLOT = 68.0, 18.0, 250.0


def curve_chart(
    title: str, series: Sequence[Series], x: ChartAxis, y: ChartAxis, *, limits: Sequence[LimitLine] = ()
) -> str:
    """Curves, or points, over an axis.

    Args:
        title: what the chart shows, for those who do not see it
        series: later ones lie above; a point that a logarithmic axis cannot show is left out
        x: the axis across
        y: the axis up
        limits: values that matter

    Returns:
        An SVG element for a page; "" where there is nothing to draw.
    """
    shown = [_drawable(one, x, y) for one in series]
    places = [place for one in shown for place in one.points]
    if not places:
        return ""
    upright = [one.at for one in limits if one.upright and _is_drawable(one.at, x)]
    level = [one.at for one in limits if not one.upright and _is_drawable(one.at, y)]
    across = _Scale.over([place[0] for place in places] + upright, x, _LEFT, WIDTH - _RIGHT)
    ends = [end for one in shown for pair in one.ends for end in pair if _is_drawable(end, y)]
    named = [(one.name, one) for one in shown if one.name and one.points]
    top = 12.0 + _LINE * _rows([name for name, _ in named] + [one.name for one in limits]) + 24.0
    # Labels of the highest points stand above them.
    head = 2.5 * _LINE if any(any(one.labels) for one in shown) else 0.0
    up = _Scale.over([place[1] for place in places] + ends + level, y, top + _PLOT, top, head=head)
    drawing = Drawing(width=WIDTH, height=top + _PLOT + 48, title=title, inline=True)
    _legend(drawing, named, limits)
    _axes(drawing, across, up, x, y, top)
    for one in shown:
        _draw_series(drawing, one, across, up)
    lines: list[_Box] = []
    for limit in limits:
        scale, axis = (across, x) if limit.upright else (up, y)
        if _is_drawable(limit.at, axis):
            at = scale.place(limit.at)
            line = [(at, top), (at, top + _PLOT)] if limit.upright else [(_LEFT, at), (WIDTH - _RIGHT, at)]
            drawing.line(line, colour=limit.colour, width=1.6, dashed=True)
            lines.append((line[0][0] - 1, line[0][1] - 1, line[1][0] + 1, line[1][1] + 1))
    _draw_labels(drawing, shown, across, up, top, lines)
    return drawing.render()


def _is_drawable(value: float, axis: ChartAxis) -> bool:
    return math.isfinite(value) and abs(value) < 1e300 and (value > 1e-300 or not axis.log)


def _drawable(series: Series, x: ChartAxis, y: ChartAxis) -> Series:
    """A series without the points that cannot be drawn."""
    kept = [n for n, (a, b) in enumerate(series.points) if _is_drawable(a, x) and _is_drawable(b, y)]
    return replace(
        series,
        points=[series.points[n] for n in kept],
        says=[series.says[n] for n in kept] if series.says else (),
        labels=[series.labels[n] for n in kept] if series.labels else (),
        ends=[series.ends[n] for n in kept] if series.ends else (),
    )


@dataclass(frozen=True, slots=True)
class _Scale:
    """Values on an axis as places in a drawing."""

    low: float
    high: float
    first: float
    last: float
    log: bool

    @classmethod
    def over(
        cls, values: Iterable[float], axis: ChartAxis, first: float, last: float, *, head: float = 0.0
    ) -> "_Scale":
        known = [*values, *axis.ticks]
        low, high = min(known), max(known)
        if axis.log:
            low, high = math.log(low), math.log(high)
            room = 0.04 * (high - low) or 0.5
        else:
            low = min(0.0, low) if axis.zero else low
            room = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
        low = low if axis.zero and low >= 0 and not axis.log else low - room
        room += (high + room - low) * head / (abs(last - first) - head)
        return cls(low, high + room, first, last, axis.log)

    def place(self, value: float) -> float:
        if self.log and value <= 0:
            return self.first
        share = ((math.log(value) if self.log else value) - self.low) / (self.high - self.low)
        return self.first + (self.last - self.first) * min(max(share, -0.01), 1.01)

    @property
    def ticks(self) -> list[float]:
        """Round values within it."""
        return _log_ticks(math.exp(self.low), math.exp(self.high)) if self.log else round_values(self.low, self.high)


def round_values(low: float, high: float, most: int = 6) -> list[float]:
    """Round values between two.

    Example:
        >>> round_values(0.0, 10.4), round_values(0.97, 1.03)
        ([0.0, 2.0, 4.0, 6.0, 8.0, 10.0], [0.97, 0.98, 0.99, 1.0, 1.01, 1.02, 1.03])
    """
    raw = (high - low) / most
    size = 10.0 ** math.floor(math.log10(raw))
    step = next(kind * size for kind in (1.0, 2.0, 5.0, 10.0) if kind * size >= raw * 0.999999)
    digits = max(0, -math.floor(math.log10(step)))
    return [round(n * step, digits) for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """Round values between two: powers of ten, with what is between them where the range is short."""
    kinds = (1.0, 2.0, 5.0) if high / low < 3000 else (1.0,)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = max(1, len(powers) // 7)
    found = [float(f"{kind:g}e{power}") for power in powers if power % every == 0 for kind in kinds]
    inside = [value for value in found if low <= value <= high]
    return inside if len(inside) >= 2 else [value for value in round_values(low, high) if value > 0]


def _axes(drawing: Drawing, across: _Scale, up: _Scale, x: ChartAxis, y: ChartAxis, top: float) -> None:
    bottom = top + _PLOT
    drawing.text(4, top - 9, _titled(y, up), size=_FONT, colour=SOFT)
    for value in y.ticks or up.ticks:
        at = up.place(value)
        drawing.line([(_LEFT, at), (WIDTH - _RIGHT, at)], colour=GRID)
        drawing.text(_LEFT - 8, at + 4.5, y.label(value), size=_FONT, anchor="end", colour=INK)
    free = -math.inf
    for value in x.ticks or across.ticks:
        at, label = across.place(value), x.label(value)
        drawing.line([(at, bottom), (at, bottom + 5)], colour=SOFT)
        half = len(label) * _LETTER / 2
        if at - half < free:
            continue
        free = at + half + 6
        drawing.text(min(at, WIDTH - half), bottom + 20, label, size=_FONT, anchor="middle", colour=INK)
    drawing.line([(_LEFT, bottom), (WIDTH - _RIGHT, bottom)], colour=SOFT)
    drawing.text(
        (_LEFT + WIDTH - _RIGHT) / 2, bottom + 42, _titled(x, across), size=_FONT, anchor="middle", colour=SOFT
    )


def _titled(axis: ChartAxis, scale: _Scale) -> str:
    """The title of an axis, with what a reader would take its places for wrongly."""
    if scale.log:
        return f"{axis.title}, log scale"
    return f"{axis.title}, does not begin at 0" if scale.low > 0 else axis.title


def _draw_series(drawing: Drawing, series: Series, across: _Scale, up: _Scale) -> None:
    places = [(across.place(a), up.place(b)) for a, b in series.points]
    if series.ends and series.whiskers:
        for (at, _), (low, high) in zip(places, series.ends, strict=True):
            drawing.line([(at, up.place(low)), (at, up.place(high))], colour=series.colour, width=3)
    elif series.ends and len(places) > 1:
        lower = [(at, up.place(low)) for (at, _), (low, _) in zip(places, series.ends, strict=True)]
        upper = [(at, up.place(high)) for (at, _), (_, high) in zip(places, series.ends, strict=True)]
        drawing.area([*lower, *reversed(upper)], colour=series.colour, opacity=0.18)
    if series.line and len(places) > 1:
        drawing.line(_stepped(places) if series.steps else places, colour=series.colour, width=2, dashed=series.dashed)
    if series.dots:
        for n, (at, height) in enumerate(places):
            says = series.says[n] if series.says else ""
            drawing.dot(at, height, colour=series.colour, size=series.size, hollow=series.hollow, says=says)


_SMALL = 12
_SMALL_LETTER = 6.9  # as `_LETTER`, in that size [pixels]


def _draw_labels(
    drawing: Drawing, shown: Sequence[Series], across: _Scale, up: _Scale, top: float, lines: Sequence["_Box"]
) -> None:
    """Labels of points, later series first, each where it covers neither a point, a limit nor another label."""
    dots = [(across.place(a), up.place(b), one.size) for one in shown for a, b in one.points]
    taken: list[_Box] = [(at - size, height - size, at + size, height + size) for at, height, size in dots]
    taken += lines
    for one in reversed(shown):
        for (a, b), text in zip(one.points, one.labels, strict=False):
            if not text:
                continue
            at, height = across.place(a), up.place(b)
            label = short(text, 48)
            spots = list(_around(at, height, one.size, len(label) * _SMALL_LETTER, top))
            if not spots:
                continue
            box = min(spots, key=lambda spot: sum(_overlap(spot, other) for other in taken))
            taken.append(box)
            end = _nearest(box, at, height)
            if math.dist(end, (at, height)) > _LINE:
                drawing.line([(at, height), end], colour=one.colour)
            # A font that is wider than thought must not cover the point.
            before = box[2] <= at
            drawing.text(
                box[2] if before else box[0],
                box[3] - 4,
                label,
                size=_SMALL,
                anchor="end" if before else "start",
                colour=one.colour,
            )


_Box = tuple[float, float, float, float]
"""Left, top, right, bottom [pixels]."""


def _around(at: float, height: float, size: float, wide: float, top: float) -> Iterable[_Box]:
    """Boxes for a label around a point and inside the plot, the nearest first."""
    tall, away = 16.0, size + 4
    lefts = (at + away, at - away - wide, at - wide / 2, at - 20, at + 20 - wide, WIDTH - _RIGHT - wide, _LEFT + 4)
    boxes = [
        # In the row of the point there is room left and right of it alone.
        (left, middle - tall / 2, left + wide, middle + tall / 2)
        for row in range(-6, 7)
        for middle in (height + row * (tall + 2),)
        for left in (lefts if row else lefts[:2])
    ]
    inside = [
        box for box in boxes if box[0] >= _LEFT and box[2] <= WIDTH - 2 and box[1] >= top and box[3] <= top + _PLOT
    ]
    return sorted(inside, key=lambda box: math.dist(_nearest(box, at, height), (at, height)))


def _nearest(box: _Box, at: float, height: float) -> Point:
    """The place in a box that is nearest to a point."""
    return min(max(at, box[0]), box[2]), min(max(height, box[1]), box[3])


def _overlap(first: _Box, second: _Box) -> float:
    wide = min(first[2], second[2]) - max(first[0], second[0])
    tall = min(first[3], second[3]) - max(first[1], second[1])
    return max(0.0, wide) * max(0.0, tall)


def _stepped(places: Sequence[Point]) -> list[Point]:
    found = [places[0]]
    for (_, before), (at, height) in itertools.pairwise(places):
        found += [(at, before), (at, height)]
    return found


def _spots(names: Sequence[str]) -> list[Point]:
    """Where each entry of a legend begins: one behind the other, in as many rows as it takes."""
    found: list[Point] = []
    at, row = 4.0, 0
    for name in names:
        wide = 34 + len(name) * _LETTER + 14
        if at + wide > WIDTH and at > 4.0:
            at, row = 4.0, row + 1
        found.append((at, 16.0 + _LINE * row))
        at += wide
    return found


def _rows(names: Sequence[str]) -> int:
    return 1 + round((_spots(names)[-1][1] - 16.0) / _LINE) if names else 0


def _legend(drawing: Drawing, named: Sequence[tuple[str, Series]], limits: Sequence[LimitLine]) -> None:
    spots = _spots([name for name, _ in named] + [one.name for one in limits])
    for (name, one), (x, y) in zip(named, spots, strict=False):
        if one.line:
            drawing.line([(x, y - 4), (x + 24, y - 4)], colour=one.colour, width=2, dashed=one.dashed)
        if one.whiskers:
            drawing.line([(x + 12, y - 12), (x + 12, y + 3)], colour=one.colour, width=3)
        if one.dots:
            drawing.dot(x + 12, y - 4, colour=one.colour, hollow=one.hollow, size=min(one.size, 4.5))
        drawing.text(x + 30, y, name, size=_FONT, colour=INK)
    for limit, (x, y) in zip(limits, spots[len(named) :], strict=True):
        drawing.line([(x, y - 4), (x + 24, y - 4)], colour=limit.colour, width=1.6, dashed=True)
        drawing.text(x + 30, y, limit.name, size=_FONT, colour=INK)


# ---------------------------------------------------------------------------------------------------------------------
# Values with their intervals, one below the other


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """One value.

    Attributes:
        name: left of it
        at: the value
        ends: of its interval; both at the value: it has none
        label: of the value, for people
        says: what a pointer on it reads
    """

    name: str
    at: float
    ends: tuple[float, float]
    label: str
    says: str


def interval_chart(title: str, intervals: Sequence[Interval], axis: ChartAxis) -> str:
    """Values with their intervals, with 0 on the axis.

    Args:
        title: what the chart shows, for those who do not see it
        intervals: in order
        axis: of the values

    Returns:
        An SVG element for a page; "" where there is nothing to draw.
    """
    values = [0.0, *(end for one in intervals for end in (one.at, *one.ends))]
    low, high = min(values), max(values)
    if not intervals or not 0 < high - low < 1e300:
        return ""
    room = 0.06 * (high - low)
    low, high = low - room if low < 0 else 0.0, high + room
    longest = max(len(short(one.name, _NAME)) for one in intervals)
    left, right, top, tall = 24 + longest * _LETTER, 24.0, 14.0, 40.0
    bottom = top + tall * len(intervals)
    drawing = Drawing(width=WIDTH, height=bottom + 48, title=title, inline=True)

    def place(value: float) -> float:
        return left + (WIDTH - left - right) * (value - low) / (high - low)

    _value_ticks(drawing, axis, (low, high), place, top, bottom, WIDTH - right)
    for n, one in enumerate(intervals):
        y, colour = top + tall * (n + 0.5), SERIES_COLOURS[n % len(SERIES_COLOURS)]
        down, up = place(one.ends[0]), place(one.ends[1])
        drawing.text(left - 10, y + 4.5, short(one.name, _NAME), size=_FONT, anchor="end", colour=INK)
        if up > down:
            drawing.line([(down, y), (up, y)], colour=colour, width=3)
            for end in (down, up):
                drawing.line([(end, y - 7), (end, y + 7)], colour=colour, width=2)
        drawing.dot(place(one.at), y, colour=colour, size=6, says=one.says)
        first, last, wide = min(down, place(one.at)), max(up, place(one.at)), len(one.label) * _LETTER
        if last + 14 + wide < WIDTH:
            drawing.text(last + 12, y + 4.5, one.label, size=_FONT, colour=INK)
        elif first - 14 - wide > left:
            drawing.text(first - 12, y + 4.5, one.label, size=_FONT, anchor="end", colour=INK)
        else:
            drawing.text(place(one.at), y - 12, one.label, size=_FONT, anchor="middle", colour=INK)
    return drawing.render()


# ---------------------------------------------------------------------------------------------------------------------
# Bars in parts


def bar_chart(
    title: str,
    bars: Sequence[Bar],
    parts: Sequence[tuple[str, str]],
    axis: ChartAxis,
    *,
    limit: LimitLine | None = None,
    names: str = "rank",
) -> str:
    """Bars whose parts stand one behind the other.

    Args:
        title: what the chart shows, for those who do not see it
        bars: in order; few lie below each other, many stand side by side
        parts: name and colour of each; one that no bar has is left out
        axis: of the values
        limit: a value that matters
        names: what the names of bars that stand are

    Returns:
        An SVG element for a page; "" where there is nothing to draw.
    """
    wholes = [sum(bar.parts) for bar in bars]
    most = max([*wholes, *([limit.at] if limit else [])], default=0.0)
    if not 0 < most < 1e300:
        return ""
    kept = [n for n in range(len(parts)) if any(bar.parts[n] > 5e-4 * most for bar in bars)]
    # One colour needs no name: the axis says what it is.
    legend = [parts[n] for n in kept] if len(kept) > 1 else []
    top = 12.0 + _LINE * _rows([name for name, _ in legend] + ([limit.name] if limit else [])) + 8.0
    shown = _Bars(
        title=title,
        bars=bars,
        parts=[(n, *parts[n]) for n in kept],
        axis=axis,
        limit=limit,
        names=names,
        top=top,
        most=most,
    )
    drawing = shown.lying() if len(bars) <= _MOST_ROWS else shown.standing()
    spots = _spots([name for name, _ in legend] + ([limit.name] if limit else []))
    for (name, colour), (x, y) in zip(legend, spots, strict=False):
        drawing.box(x, y - 11, 14, 14, colour=colour)
        drawing.text(x + 20, y, name, size=_FONT, colour=INK)
    if limit:
        x, y = spots[-1]
        drawing.line([(x, y - 4), (x + 24, y - 4)], colour=limit.colour, width=1.6, dashed=True)
        drawing.text(x + 30, y, limit.name, size=_FONT, colour=INK)
    return drawing.render()


_BAR, _SPACE = 18.0, 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bars:
    """Bars to draw.

    Attributes:
        title: of the chart
        bars: in order
        parts: number in each bar, name and colour of those that are drawn
        axis: of the values
        limit: a value that matters
        names: what the names of bars that stand are
        top: below the legend [pixels]
        most: the largest value
    """

    title: str
    bars: Sequence[Bar]
    parts: Sequence[tuple[int, str, str]]
    axis: ChartAxis
    limit: LimitLine | None
    names: str
    top: float
    most: float

    def pieces(self, bar: Bar) -> Iterable[tuple[float, float, str, str]]:
        """Begin and end of each part of a bar, its colour, and what a pointer on it reads."""
        at = 0.0
        for n, name, colour in self.parts:
            yield at, at + bar.parts[n], colour, f"{bar.name}, {name}: {self.axis.label(bar.parts[n])}"
            at += bar.parts[n]

    def lying(self) -> Drawing:
        """Below each other."""
        longest = max(len(short(bar.name, _NAME)) for bar in self.bars)
        noted = max(len(bar.note) for bar in self.bars)
        left = 14 + longest * _LETTER
        right = WIDTH - (12 + noted * _LETTER if noted else _RIGHT)
        bottom = self.top + len(self.bars) * (_BAR + _SPACE)
        drawing = Drawing(width=WIDTH, height=bottom + 48, title=self.title, inline=True)

        def place(value: float) -> float:
            return left + (right - left) * value / self.most

        _value_ticks(drawing, self.axis, (0.0, self.most), place, self.top - 4, bottom, right)
        for number, bar in enumerate(self.bars):
            y, at = self.top + number * (_BAR + _SPACE), 0.0
            drawing.text(left - 8, y + 13.5, short(bar.name, _NAME), size=_FONT, anchor="end", colour=INK)
            for begin, at, colour, says in self.pieces(bar):
                wide = place(at) - place(begin)
                if wide >= 0.3:
                    drawing.box(place(begin), y, wide - (1.0 if wide > 3 else 0.0), _BAR, colour=colour, says=says)
            if bar.note:
                behind = place(at) + 6
                if self.limit and behind - 4 < place(self.limit.at) < behind + len(bar.note) * _LETTER + 2:
                    behind = place(self.limit.at) + 6
                drawing.text(behind, y + 13.5, bar.note, size=_FONT, colour=INK)
        if self.limit:
            at = place(self.limit.at)
            drawing.line([(at, self.top - 4), (at, bottom)], colour=self.limit.colour, width=1.6, dashed=True)
        return drawing

    def standing(self) -> Drawing:
        """Side by side."""
        top = self.top + 22
        bottom, wide = top + _PLOT, (WIDTH - _LEFT - _RIGHT) / len(self.bars)
        drawing = Drawing(width=WIDTH, height=bottom + 48, title=self.title, inline=True)

        def place(value: float) -> float:
            return bottom - _PLOT * value / self.most

        drawing.text(4, top - 10, self.axis.title, size=_FONT, colour=SOFT)
        for value in round_values(0.0, self.most, 5):
            drawing.line([(_LEFT, place(value)), (WIDTH - _RIGHT, place(value))], colour=GRID)
            drawing.text(_LEFT - 8, place(value) + 4.5, self.axis.label(value), size=_FONT, anchor="end", colour=INK)
        for group, first, count in _alike(self.bars):
            for begin, end, colour, says in self.pieces(group):
                if end > begin:
                    box = (_LEFT + first * wide, place(end), count * wide + 0.05, place(begin) - place(end))
                    drawing.box(*box, colour=colour, says=says)
        every = max(1, round(len(self.bars) / 8))
        for n in range(0, len(self.bars), every):
            x = _LEFT + (n + 0.5) * wide
            drawing.text(x, bottom + 20, self.bars[n].name, size=_FONT, anchor="middle", colour=INK)
        drawing.text((_LEFT + WIDTH - _RIGHT) / 2, bottom + 42, self.names, size=_FONT, anchor="middle", colour=SOFT)
        if self.limit:
            at = place(self.limit.at)
            drawing.line([(_LEFT, at), (WIDTH - _RIGHT, at)], colour=self.limit.colour, width=1.6, dashed=True)
        return drawing


def _value_ticks(
    drawing: Drawing,
    axis: ChartAxis,
    ends: tuple[float, float],
    place: Callable[[float], float],
    top: float,
    bottom: float,
    right: float,
) -> None:
    ticks = [value for value in round_values(*ends, 5) if place(value) <= right + 1]
    free = -math.inf
    for value in ticks:
        at, label = place(value), axis.label(value)
        drawing.line([(at, top), (at, bottom)], colour=GRID)
        half = len(label) * _LETTER / 2
        if at - half >= free:
            drawing.text(at, bottom + 18, label, size=_FONT, anchor="middle", colour=INK)
            free = at + half + 6
    drawing.text((place(ends[0]) + right) / 2, bottom + 40, axis.title, size=_FONT, anchor="middle", colour=SOFT)


def _alike(bars: Sequence[Bar]) -> Iterable[tuple[Bar, int, int]]:
    """Neighbours with the same parts as one bar, with the first of them and their number."""
    first = 0
    for n in range(1, len(bars) + 1):
        if n == len(bars) or list(bars[n].parts) != list(bars[first].parts):
            name = bars[first].name if n - first == 1 else f"{bars[first].name} to {bars[n - 1].name}"
            yield Bar(name=name, parts=bars[first].parts), first, n - first
            first = n


# ---------------------------------------------------------------------------------------------------------------------
# A file of charts


_HEIGHT = re.compile(r'height="(\d+)"')
_COLOUR = re.compile(r"--([\w-]+): (#\w+)")
_VARIABLE = re.compile(r"var\(--([\w-]+)\)")
_MARGIN = 16.0


def chart_file(title: str, says: str, charts: Iterable[str]) -> str:
    """Charts below each other as the text of an SVG file, in the colours that a page has in light.

    Args:
        title: of the file
        says: below it, one sentence
        charts: elements as `curve_chart` and its like make them; "" is left out
    """
    elements = [chart for chart in charts if chart]
    heights = [float(found[1]) for found in map(_HEIGHT.search, elements) if found]
    lines = textwrap.wrap(says, int(WIDTH / _LETTER) + 8)
    top = 36 + 18.0 * len(lines)
    drawing = Drawing(width=WIDTH + 2 * _MARGIN, height=top + sum(heights) + _MARGIN * (len(heights) + 1))
    drawing.text(_MARGIN, 26, title, size=15, bold=True)
    for number, line in enumerate(lines):
        drawing.text(_MARGIN, 46 + 18 * number, line, size=_FONT, colour=SOFT)
    for element, height in zip(elements, heights, strict=True):
        drawing.element(element, _MARGIN, top + _MARGIN)
        top += height + _MARGIN
    light = packaged_text("trimaran.report.page", "page.css").partition("@media")[0]
    colours = dict(_COLOUR.findall(light))
    return _VARIABLE.sub(lambda found: colours.get(found[1], found[0]), drawing.render())
