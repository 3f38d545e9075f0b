"""Timelines are written whole, with all their digits, under a digest."""

import hashlib
import json
from pathlib import Path

import pytest
from tests.raising import raises
from tests.unit.report.runs import measured, predicted

from trimaran.base.errors import EnvironmentProblem
from trimaran.base.timeline import Span, Timeline
from trimaran.report.timelines import encode_timeline, write_timeline

THIRD = Timeline([Span(rank=3, stream="compute", start_s=0.1 + 0.2, end_s=1 / 3 + 1, instruction="r3/0F0", step=7)])


@pytest.mark.parametrize(
    "timeline", [measured(), predicted(), THIRD, Timeline([])], ids=["measured", "predicted", "digits", "empty"]
)
def test_a_file_has_every_span_and_every_byte_of_memory(timeline: Timeline, tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    write_timeline(path, timeline)
    found = json.loads(path.read_text())["timeline"]
    columns, names = timeline.columns, found["instructions"]
    spans = [
        (names[number], found["streams"][stream])
        for number, stream in zip(found["instruction"], found["stream"], strict=True)
    ]
    assert spans == list(zip(columns.instruction, columns.stream, strict=True))
    for name in ("rank", "start_s", "end_s", "nbytes", "step"):
        assert found[name] == list(getattr(columns, name))
    memory = [list(zip(one["time_s"], one["nbytes"], strict=True)) for one in found["memory"]]
    assert memory == [list(map(tuple, changes)) for changes in timeline.memory]
    assert [item.name for item in tmp_path.iterdir()] == ["timeline.json"]


def test_the_schema_version_comes_first_and_the_digest_is_of_the_content() -> None:
    content = encode_timeline(predicted())
    assert content.startswith(b'{"schema_version":1,')
    body = content.partition(b'"timeline":')[2][:-1]
    assert json.loads(content)["digest"] == hashlib.sha256(body).hexdigest()


def test_the_same_timeline_gives_the_same_bytes() -> None:
    assert encode_timeline(Timeline(reversed(list(measured())))) == encode_timeline(measured())


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with raises("file.unwritable", EnvironmentProblem):
        write_timeline(tmp_path / "no such folder" / "timeline.json", predicted())
