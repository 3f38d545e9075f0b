"""The page of what four studies ask for says what its command finds.

Rows that take seconds are judged again and compared line by line; those that take longer in the sweep, where figures of
searches that a time limit ends may differ by a few per cent.
"""

import re
from pathlib import Path

import pytest

from trimaran_studies.specification.page import COMMAND, judge, lines_of, requirements
from trimaran_studies.specification.requirements import Recorded

pytestmark = pytest.mark.published

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "specification.md"
RECORDED = Recorded(ROOT / "benchmarks" / "results")
SLOW = ("A7", "B3", "B5", "B7", "B8", "C4", "C7", "C8", "D2", "D3", "D4", "D5", "D7")
"""Rows that take more than some seconds."""
FAST = [row.id for row in requirements() if row.id not in SLOW]
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


def said(row: str) -> list[str]:
    """Lines of a row on the page."""
    lines = PAGE.read_text("utf-8").split("\n")
    first = next(number for number, line in enumerate(lines) if line.startswith(f"| {row} |"))
    after = next(number for number, line in enumerate(lines) if number > first and not line.startswith("|  |"))
    return lines[first:after]


@pytest.mark.parametrize("row", FAST)
def test_a_row_is_as_the_page_says(row: str) -> None:
    (found,) = judge(RECORDED, rows=[row])
    assert [line.markdown for line in lines_of(found)] == said(row)


@pytest.mark.sweep
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("row", SLOW)
def test_a_slow_row_is_as_the_page_says(row: str) -> None:
    (found,) = judge(RECORDED, rows=[row])
    lines = [line.markdown for line in lines_of(found)]
    assert [NUMBER.sub("#", line) for line in lines] == [NUMBER.sub("#", line) for line in said(row)]
    for line, before in zip(lines, said(row), strict=True):
        figures, kept = ([float(text.replace(",", "")) for text in NUMBER.findall(each)] for each in (line, before))
        assert figures == pytest.approx(kept, rel=0.03, abs=0.1)


def test_the_page_names_its_command_and_is_found() -> None:
    assert COMMAND in PAGE.read_text("utf-8")
    for index in ("README.md", "docs/index.md"):
        assert "specification.md" in (ROOT / index).read_text("utf-8")
