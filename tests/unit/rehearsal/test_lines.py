"""The lines that are told of what a script does."""

import sys

import pytest
import typing_extensions

from trimaran.rehearsal.lines import Lines
from trimaran.rehearsal.record import Record


@pytest.mark.skipif(not typing_extensions.__file__.startswith(sys.prefix), reason="part of the system's Python")
def test_a_deprecated_function_is_told_by_its_caller() -> None:
    record = Record(rank=0, world=1, per_node=1, device="h100-sxm", memory_bytes=1, script=["train.py"])
    lines = Lines(record, "/")
    found = typing_extensions.deprecated("since long", category=None)(lambda: lines.stack())()
    assert not any("typing_extensions" in frame.file for frame in record.lines[found])
    assert record.lines[found][0].file == __file__.removeprefix("/")
