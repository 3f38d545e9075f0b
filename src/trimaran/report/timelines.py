"""Timelines as JSON files.

    {"schema_version": 1, "digest": "...", "timeline": {
        "instructions": ["r0/IN0", "r0/0F0", ...],          each id once; so with the streams
        "streams": ["compute", "host"],
        "rank": [0, 0, ...], "stream": [1, 0, ...], "start_s": [...], "end_s": [...],
        "instruction": [0, 1, ...], "nbytes": [...], "step": [...],      one entry a span
        "memory": [{"time_s": [...], "nbytes": [...]}, ...]}}             one entry a rank

`digest` is the SHA-256 of the bytes of the value of `timeline`, so that a damaged or edited file is refused instead of
believed. Times are written with all their digits: what is read equals what was written.
"""

import hashlib
from pathlib import Path

import msgspec

from trimaran.base.decoding import decode_typed
from trimaran.base.errors import CorruptDataError, InputError
from trimaran.base.files import read_bytes, write_whole
from trimaran.base.timeline import Columns, Timeline

TIMELINE_VERSION = 1

_MOST_BYTES = 256 * 2**20
_MOST_VALUES = 16_000_000
"""Of a timeline, whose values are numbers in lists."""


class _Memory(msgspec.Struct, frozen=True):
    time_s: list[float]
    nbytes: list[int]


class _Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    instructions: list[str]
    streams: list[str]
    rank: list[int]
    stream: list[int]
    start_s: list[float]
    end_s: list[float]
    instruction: list[int]
    nbytes: list[int]
    step: list[int]
    memory: list[_Memory]


class _File(msgspec.Struct, frozen=True):
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
        _Body(
            instructions=list(instructions),
            streams=list(streams),
            rank=columns.rank,
            stream=[streams[name] for name in columns.stream],
            start_s=columns.start_s,
            end_s=columns.end_s,
            instruction=[instructions[name] for name in columns.instruction],
            nbytes=columns.nbytes,
            step=columns.step,
            memory=[
                _Memory(time_s=[time_s for time_s, _ in changes], nbytes=[nbytes for _, nbytes in changes])
                for changes in timeline.memory
            ],
        )
    )
    return msgspec.json.encode(
        _File(schema_version=TIMELINE_VERSION, digest=hashlib.sha256(body).hexdigest(), timeline=msgspec.Raw(body))
    )


def decode_timeline(content: bytes, *, source: str = "timeline") -> Timeline:
    """Read the JSON form of a timeline.

    Args:
        content: of the file
        source: what to call it in errors, such as its path

    Returns:
        The timeline that was written.

    Raises:
        CorruptDataError: truncated, damaged or edited
        InputError: a schema version that we do not know
    """
    file = decode_typed(content, _File, source=source, most_values=_MOST_VALUES)
    if file.schema_version != TIMELINE_VERSION:
        raise InputError(
            f"{source}: schema_version is {file.schema_version}, this version of Trimaran reads {TIMELINE_VERSION}",
            code="timeline.schema-version",
            source=source,
            schema_version=file.schema_version,
        )
    body = bytes(file.timeline)
    if hashlib.sha256(body).hexdigest() != file.digest:
        raise CorruptDataError(
            f"{source} was damaged or edited after it was written", code="timeline.digest-mismatch", source=source
        )
    spans = decode_typed(body, _Body, source=source, most_values=_MOST_VALUES)
    try:
        return _timeline(spans)
    except (IndexError, ValueError) as error:
        raise CorruptDataError(
            f"{source} holds no timeline: {error}", code="timeline.bad-content", source=source
        ) from error


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
    """Read a timeline.

    Args:
        path: the file

    Returns:
        The timeline that was written.

    Raises:
        CorruptDataError: truncated, damaged or edited
        InputError: no such file, or a schema version that we do not know
    """
    return decode_timeline(read_bytes(path, most_bytes=_MOST_BYTES), source=str(path))


def _timeline(body: _Body) -> Timeline:
    columns = Columns(
        rank=body.rank,
        stream=[body.streams[number] for number in body.stream],
        start_s=body.start_s,
        end_s=body.end_s,
        instruction=[body.instructions[number] for number in body.instruction],
        nbytes=body.nbytes,
        step=body.step,
    )
    memory = [list(zip(changes.time_s, changes.nbytes, strict=True)) for changes in body.memory]
    return Timeline.from_columns(columns, memory)
