"""What `trimaran plan` prints of its candidates. `TRIMARAN_GOLDEN=write` rewrites the files; the diff is reviewed."""

import dataclasses
import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from tests import builders
from tests.builders import network, table_for

from trimaran.planner.candidates import Candidate
from trimaran.planner.epoch import EpochData
from trimaran.planner.result import Search
from trimaran.planner.search import search
from trimaran.planner.space import Rejection, enumerate_strategies
from trimaran.planning.answer.pages import print_candidates

FOLDER = Path(__file__).parent / "plans"


GRAPH = network(6)


def find(devices: int, *, memory_bytes: int = 2**30, epoch: EpochData | None = None) -> Search[Candidate]:
    """The search for six layers."""
    cluster = builders.cluster(devices, memory_bytes=memory_bytes)
    return search(builders.problem(graph=GRAPH, table=table_for(GRAPH), cluster=cluster, batch=16, epoch=epoch))


def with_compiled(found: Search[Candidate]) -> Search[Candidate]:
    """The same with rejections of what would be compiled."""
    compiled, _ = enumerate_strategies(GRAPH, devices=2, batch=16, executions=("compiled",))
    rejections = [
        Rejection(strategy=one, cause="compiling", reason="the whole training takes 4.00 s by dp2") for one in compiled
    ]
    return dataclasses.replace(found, rejected=(*found.rejected, *rejections))


SEARCHES: dict[str, Callable[[], Search[Candidate]]] = {
    "two_devices": lambda: with_compiled(find(2)),
    "four_devices": lambda: find(4),
    "epoch": lambda: find(2, epoch=EpochData(samples=100, evaluation_samples=50)),
    "little_memory": lambda: find(2, memory_bytes=1000),
}
"""On two and on four devices; the larger space has more than there is room for."""


def printed(found: Search[Candidate]) -> str:
    file = io.StringIO()
    print_candidates(Console(file=file, width=80, no_color=True), found)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


@pytest.mark.parametrize("name", SEARCHES)
def test_the_candidates_are_printed_as_they_were(name: str) -> None:
    text = printed(SEARCHES[name]())
    path = FOLDER / f"{name}.txt"
    if os.environ.get("TRIMARAN_GOLDEN") == "write":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
    assert max(map(len, text.splitlines())) <= 80


def test_no_file_is_left_over() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(SEARCHES)
