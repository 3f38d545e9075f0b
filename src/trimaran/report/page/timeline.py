"""Timelines as the viewer of a page draws them: every rank, the prediction above the measurement.

    {"unit_s": 1e-6,                                        of all times below [s]
     "parts": [["forward", "--forward"], ...],              names and variables of the style sheet
     "events": [["0F0", 0, 0], ...],                        name, part, bytes
     "lanes": [[start, length, event, ...], ...],           each start from the start before it
     "views": [{"name": "…", "length": 123, "rows": [[rank, source, [[stream, lane], ...]], ...]}, ...],
     "sources": ["predicted", "measured"]}

Lanes that are alike are there once: 256 replicas that do the same take the room of one. Where a timeline is still too
large, neighbouring spans of a part are joined, and the note says so.
"""

import itertools
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Any

from trimaran.base.timeline import COMMUNICATION, COMPUTE, COPY, HOST, WAIT, Span, Timeline
from trimaran.base.units import format_count, format_seconds
from trimaran.program.types import Kind, Program
from trimaran.report.breakdown import part_of
from trimaran.report.page.layout import Timelines
from trimaran.report.trace import threads_of

MOST_BYTES = 1_200_000
"""Of the timelines of a page [bytes]."""

MOST_RANKS = 4096
"""That each have a row."""

PARTS_SHOWN = (
    ("forward", "--forward"),
    ("backward", "--backward"),
    ("update", "--update"),
    ("loading", "--load"),
    ("communication", "--exposed"),
    ("copies", "--overlapped"),
    ("waiting", "--idle"),
    ("other", "--unattributed"),
)
_OF_PART = {"forward": 0, "backward": 1, "update": 2, "load": 3, "transfer": 4, "wait": 6, "other": 7}
_OF_STREAM = {COMMUNICATION: 4, COPY: 5, WAIT: 6, HOST: 3, COMPUTE: 7}
_TICKS = 4_000_000
"""Of the longest view: finer than any screen, zoomed in a thousand times."""


@dataclass(frozen=True, slots=True)
class _LaneRow:
    rank: int
    source: int
    lanes: tuple[tuple[str, tuple[Span, ...]], ...]


def typical_steps(timeline: Timeline, warmup: int) -> list[tuple[str, int]]:
    """The steps of a measurement that are worth a look: of the median time, the fastest, the slowest.

    Args:
        timeline: measured
        warmup: steps at the beginning that are left out

    Returns:
        What each is, and its number; no step twice.
    """
    starts: dict[int, float] = {}
    for step, start_s in zip(timeline.columns.step, timeline.columns.start_s, strict=True):
        starts[step] = min(start_s, starts.get(step, start_s))
    steps = sorted(starts)
    follows = dict(itertools.pairwise(steps))
    # The last step has no next one that says when it ended.
    counted = [step for step in steps[warmup:] if step in follows] or steps[-1:]
    if not counted:
        return []
    took = {step: starts[follows[step]] - starts[step] if step in follows else 0.0 for step in counted}
    half = median_low(took.values())
    ranked = [
        ("of median time", next(step for step in counted if took[step] == half)),
        ("fastest", min(counted, key=lambda step: took[step])),
        ("slowest", max(counted, key=lambda step: took[step])),
    ]
    return [(what, step) for n, (what, step) in enumerate(ranked) if step not in [other for _, other in ranked[:n]]]


def step_timelines(
    predicted: Timeline | None,
    measured: Timeline | None = None,
    *,
    program: Program | None = None,
    warmup: int = 0,
) -> Timelines | None:
    """The timelines of a step for a page.

    Args:
        predicted: one step, as simulated; None: not known
        measured: steps as they were; None: not known
        program: says which part of a step an instruction is; None: its stream does
        warmup: measured steps that are left out

    Returns:
        None where there is no span.
    """
    kinds = {} if program is None else {one.id: one.kind for one in program}
    views: list[tuple[str, list[_LaneRow]]] = []
    steps = [] if measured is None else typical_steps(measured, warmup)
    simulated = _rows(predicted, 0, None) if predicted is not None else []
    if measured is not None and steps:
        for what, step in steps:
            views.append((f"{step}, {what}", _merged([*simulated, *_rows(measured, 1, step)])))
    elif simulated:
        views.append(("as predicted", simulated))
    if not any(row.lanes for _, rows in views for row in rows):
        return None
    ranks = sorted({row.rank for _, rows in views for row in rows})
    shown = set(ranks)
    said = f"{format_count(len(ranks), 'rank')}, each with {_sources(predicted, measured, steps)}."
    join_s = 0.0
    # What a prediction adds behind the last span is a part of its step.
    after_s = 0.0 if predicted is None else predicted.after_s
    longest_s = max(_length(rows) for _, rows in views) + after_s or 1e-9
    document = _document(views, kinds, shown, join_s, longest_s, after_s)
    for _ in range(24):
        if len(shown) <= MOST_RANKS and len(json.dumps(document, separators=(",", ":"))) <= MOST_BYTES:
            break
        if len(shown) > MOST_RANKS or join_s > longest_s / 50:
            # As many of the first as of the last, and even steps between them.
            half = max(2, min(MOST_RANKS, len(shown) // 2))
            kept = sorted(shown)
            shown = {kept[round(n * (len(kept) - 1) / (half - 1))] for n in range(half)}
        else:
            join_s = max(2 * join_s, longest_s / 20_000)
        document = _document(views, kinds, shown, join_s, longest_s, after_s)
    if join_s:
        said += f" Spans of one kind that are less than {format_seconds(join_s)} apart are drawn as one."
    if len(shown) < len(ranks):
        said += f" For the size of this file {len(shown)} ranks are drawn, evenly over all."
    return Timelines(document=document, note=said)


def _sources(predicted: Timeline | None, measured: Timeline | None, steps: Sequence[object]) -> str:
    if measured is None or not steps:
        return "its predicted step"
    above = "the predicted step above a measured one" if predicted is not None else "a measured step"
    if len(steps) == 1:
        return above
    count = format_count(len(measured.steps), "measured step")
    return f"{above}: of {count} the one of median time, the fastest or the slowest"


def _rows(timeline: Timeline, source: int, step: int | None) -> list[_LaneRow]:
    """The lanes of each rank, from the start of the step."""
    of_rank: dict[int, list[Span]] = defaultdict(list)
    for span in timeline:
        if step is None or span.step == step:
            of_rank[span.rank].append(span)
    begin_s = min((span.start_s for spans in of_rank.values() for span in spans), default=0.0)
    return [
        _LaneRow(
            rank,
            source,
            tuple((name, tuple(_moved(spans, -begin_s))) for name, spans in threads_of(of_rank[rank])),
        )
        for rank in sorted(of_rank)
    ]


def _moved(spans: Iterable[Span], by_s: float) -> Iterable[Span]:
    for span in spans:
        yield Span(
            rank=span.rank,
            stream=span.stream,
            start_s=span.start_s + by_s,
            end_s=span.end_s + by_s,
            instruction=span.instruction,
            nbytes=span.nbytes,
            step=span.step,
        )


def _merged(rows: Iterable[_LaneRow]) -> list[_LaneRow]:
    return sorted(rows, key=lambda row: (row.rank, row.source))


def _length(rows: Iterable[_LaneRow]) -> float:
    return max((span.end_s for row in rows for _, spans in row.lanes for span in spans), default=0.0)


def _document(
    views: Sequence[tuple[str, Sequence[_LaneRow]]],
    kinds: Mapping[str, Kind],
    shown: set[int],
    join_s: float,
    longest_s: float,
    after_s: float,
) -> dict[str, Any]:
    unit_s = longest_s / _TICKS
    events: dict[tuple[str, int, int], int] = {}
    lanes: dict[tuple[int, ...], int] = {}
    written = []
    for name, rows in views:
        entries = [
            [
                row.rank,
                row.source,
                [[stream, _lane(spans, kinds, events, lanes, unit_s, join_s)] for stream, spans in row.lanes],
            ]
            for row in rows
            if row.rank in shown
        ]
        written.append({"name": name, "length": round((_length(rows) + after_s) / unit_s), "rows": entries})
    return {
        "unit_s": unit_s,
        "parts": [list(part) for part in PARTS_SHOWN],
        "events": [list(event) for event in events],
        "lanes": [list(lane) for lane in lanes],
        "views": written,
        "sources": ["predicted", "measured"],
    }


def _lane(
    spans: Sequence[Span],
    kinds: Mapping[str, Kind],
    events: dict[tuple[str, int, int], int],
    lanes: dict[tuple[int, ...], int],
    unit_s: float,
    join_s: float,
) -> int:
    """Number of the lane with these spans, which may be one that is there."""
    found: list[int] = []
    last = 0
    for first, end_s, name, count in _joined(spans, kinds, join_s):
        start, length = round(first.start_s / unit_s), round((end_s - first.start_s) / unit_s)
        event = (name if count == 1 else f"{name} and {count - 1} more", _part(first, kinds), first.nbytes)
        found += [start - last, length, events.setdefault(event, len(events))]
        last = start
    return lanes.setdefault(tuple(found), len(lanes))


def _joined(spans: Sequence[Span], kinds: Mapping[str, Kind], join_s: float) -> Iterable[tuple[Span, float, str, int]]:
    """Spans, neighbours of one part that are closer than that as one: the first, the end, its name, how many."""
    first: Span | None = None
    end_s, count = 0.0, 0
    for span in spans:
        near = first is not None and span.start_s - end_s <= join_s and _part(first, kinds) == _part(span, kinds)
        if first is not None and near and join_s:
            end_s, count = max(end_s, span.end_s), count + 1
            continue
        if first is not None:
            yield first, end_s, _token(first), count
        first, end_s, count = span, span.end_s, 1
    if first is not None:
        yield first, end_s, _token(first), count


def _token(span: Span) -> str:
    # The rank is that of the row; without it the lanes of replicas are alike.
    return span.instruction.partition("/")[2] or span.instruction


def _part(span: Span, kinds: Mapping[str, Kind]) -> int:
    kind = kinds.get(span.instruction)
    if kind is None or span.stream in (COMMUNICATION, COPY, WAIT):
        return _OF_STREAM.get(span.stream, 7)
    return _OF_PART.get(part_of(kind, span.stream), 7)
