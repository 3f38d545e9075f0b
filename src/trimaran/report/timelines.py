"""Timelines as JSON files.

    {"schema_version": 1, "digest": "...", "timeline": {
        "instructions": ["r0/IN0", "r0/0F0", ...],          each id once; so with the streams
        "streams": ["compute", "host"],
        "rank": [0, 0, ...], "stream": [1, 0, ...], "start_s": [...], "end_s": [...],
        "instruction": [0, 1, ...], "nbytes": [...], "step": [...],      one entry a span
        "memory": [{"time_s": [...], "nbytes": [...]}, ...]}}             one entry a rank

`digest` is the SHA-256 of the bytes of the value of `timeline`, by which a reader knows a damaged or edited file. Times
are written with all their digits.
"""

import hashlib
from pathlib import Path
from typing import Annotated, Any

import msgspec

from trimaran.base.decoding import decode_typed
from trimaran.base.errors import CorruptDataError, InputError
from trimaran.base.files import read_bytes, write_whole
from trimaran.base.timeline import Columns, Timeline

TIMELINE_VERSION = 1

_Number = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
_Rank = Annotated[int, msgspec.Meta(ge=0, le=10**6)]
_Seconds = Annotated[float, msgspec.Meta(ge=-1e12, le=1e12)]


class _MemoryCurve(msgspec.Struct):
    """Live bytes of a rank at every change."""

    time_s: list[_Seconds]
    nbytes: list[_Number]


class _Spans(msgspec.Struct):
    """The content of a file."""

    instructions: list[str]
    streams: list[str]
    rank: list[_Rank]
    stream: list[_Number]
    start_s: list[_Seconds]
    end_s: list[_Seconds]
    instruction: list[_Number]
    nbytes: list[_Number]
    step: list[_Number]
    memory: list[_MemoryCurve]


class _TimelineFile(msgspec.Struct):
    """A file."""

    schema_version: int
    digest: str
    timeline: msgspec.Raw


def encode_timeline(timeline: Timeline) -> bytes:
    """The JSON form of a timeline, the same bytes for the same timeline.

    Args:
        timeline: from any interpreter
    """
    columns = timeline.columns
    instructions = {name: number for number, name in enumerate(dict.fromkeys(columns.instruction))}
    streams = {name: number for number, name in enumerate(dict.fromkeys(columns.stream))}
    body = msgspec.json.encode(
        {
            "instructions": list(instructions),
            "streams": list(streams),
            "rank": columns.rank,
            "stream": [streams[name] for name in columns.stream],
            "start_s": columns.start_s,
            "end_s": columns.end_s,
            "instruction": [instructions[name] for name in columns.instruction],
            "nbytes": columns.nbytes,
            "step": columns.step,
            "memory": [
                {"time_s": [time_s for time_s, _ in changes], "nbytes": [nbytes for _, nbytes in changes]}
                for changes in timeline.memory
            ],
        }
    )
    head = {"schema_version": TIMELINE_VERSION, "digest": hashlib.sha256(body).hexdigest()}
    return msgspec.json.encode(head | {"timeline": msgspec.Raw(body)})


def write_timeline(path: Path, timeline: Timeline) -> None:
    """Write a timeline; the file is there whole or not at all.

    Args:
        path: where; an existing file is replaced
        timeline: from any interpreter

    Raises:
        EnvironmentProblem: it cannot be written there
    """
    write_whole(path, encode_timeline(timeline))


def read_timeline(path: Path) -> Timeline:
    """Read a timeline that `write_timeline` wrote.

    Args:
        path: of the file

    Raises:
        InputError: it cannot be read, is of another version, or has columns that do not fit each other
        CorruptDataError: it was truncated or edited
    """
    source = str(path)
    file = decode_typed(read_bytes(path), _TimelineFile, source=source)
    if file.schema_version != TIMELINE_VERSION:
        raise InputError(
            f"{source}: schema_version is {file.schema_version}, and timelines of version {TIMELINE_VERSION} are read",
            code="timeline.version",
            source=source,
        )
    body = bytes(file.timeline)
    if hashlib.sha256(body).hexdigest() != file.digest:
        raise CorruptDataError(
            f"{source} was edited or damaged after it was written: take another copy, or train again",
            code="timeline.digest-mismatch",
            source=source,
        )
    spans = decode_typed(body, _Spans, source=source)
    columns = (spans.rank, spans.stream, spans.start_s, spans.end_s, spans.instruction, spans.nbytes, spans.step)
    wrong = "columns of different lengths" if len({len(column) for column in columns}) > 1 else _wrong(spans)
    if wrong:
        raise InputError(f"{source}: {wrong}: take another copy", code="timeline.inconsistent", source=source)
    return Timeline.from_columns(
        Columns(
            spans.rank,
            [spans.streams[number] for number in spans.stream],
            spans.start_s,
            spans.end_s,
            [spans.instructions[number] for number in spans.instruction],
            spans.nbytes,
            spans.step,
        ),
        [list(zip(one.time_s, one.nbytes, strict=True)) for one in spans.memory],
    )


def _wrong(spans: _Spans) -> str:
    """What of a timeline does not fit; "" where all does."""
    names: tuple[tuple[str, list[Any], list[str]], ...] = (
        ("instruction", spans.instruction, spans.instructions),
        ("stream", spans.stream, spans.streams),
    )
    for what, numbers, known in names:
        if max(numbers, default=-1) >= len(known):
            return f"a span has {what} {max(numbers)}, and there are {len(known)}"
    if any(end < start for start, end in zip(spans.start_s, spans.end_s, strict=True)):
        return "a span ends before it starts"
    if any(len(one.time_s) != len(one.nbytes) for one in spans.memory):
        return "memory has times and sizes of different numbers"
    return ""
