"""Timelines survive their file, and damage does not."""

import hashlib
from pathlib import Path

import pytest
from tests.raising import raises
from tests.unit.report.runs import measured, predicted

from trimaran.base.errors import CorruptDataError, EnvironmentProblem
from trimaran.base.timeline import Span, Timeline
from trimaran.report.timelines import decode_timeline, encode_timeline, read_timeline, write_timeline

THIRD = Timeline([Span(rank=3, stream="compute", start_s=0.1 + 0.2, end_s=1 / 3 + 1, instruction="r3/0F0", step=7)])


@pytest.mark.parametrize(
    "timeline", [measured(), predicted(), THIRD, Timeline([])], ids=["measured", "predicted", "digits", "empty"]
)
def test_what_is_read_equals_what_was_written(timeline: Timeline, tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    write_timeline(path, timeline)
    assert read_timeline(path) == timeline
    assert [item.name for item in tmp_path.iterdir()] == ["timeline.json"]


def test_the_schema_version_comes_first() -> None:
    assert encode_timeline(predicted()).startswith(b'{"schema_version":1,')


def test_the_same_timeline_gives_the_same_bytes() -> None:
    assert encode_timeline(Timeline(reversed(list(measured())))) == encode_timeline(measured())


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 0.999])
def test_a_truncated_file_is_corrupt(share: float) -> None:
    content = encode_timeline(predicted())
    with pytest.raises(CorruptDataError):
        decode_timeline(content[: int(share * len(content))])


def test_an_edited_file_is_corrupt() -> None:
    content = encode_timeline(predicted())
    edited = content.replace(b"3.5", b"3.4", 1)
    assert edited != content
    with raises("timeline.digest-mismatch", CorruptDataError):
        decode_timeline(edited)


def test_bytes_that_are_not_text_are_corrupt() -> None:
    with pytest.raises(CorruptDataError):
        decode_timeline(b"\xff\xfe\x00")


def test_another_schema_version_is_refused() -> None:
    content = encode_timeline(predicted()).replace(b'"schema_version":1', b'"schema_version":2')
    with raises("timeline.schema-version", match=r"schema_version.*\b1\b", schema_version=2):
        decode_timeline(content)


def test_a_missing_file_is_an_input_error(tmp_path: Path) -> None:
    with raises("file.unreadable"):
        read_timeline(tmp_path / "nothing.json")


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with raises("file.unwritable", EnvironmentProblem):
        write_timeline(tmp_path / "no such folder" / "timeline.json", predicted())


def test_columns_of_different_lengths_are_corrupt() -> None:
    """Not by chance, since the digest is right: what wrote this was broken."""
    body = encode_timeline(THIRD).partition(b'"timeline":')[2][:-1].replace(b'"rank":[3]', b'"rank":[3,3]')
    digest = hashlib.sha256(body).hexdigest().encode()
    with raises("timeline.bad-content", CorruptDataError, source="timeline"):
        decode_timeline(b'{"schema_version":1,"digest":"%s","timeline":%s}' % (digest, body))
