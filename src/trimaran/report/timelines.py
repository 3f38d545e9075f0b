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

import msgspec

from trimaran.base.files import write_whole
from trimaran.base.timeline import Timeline

TIMELINE_VERSION = 1


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
