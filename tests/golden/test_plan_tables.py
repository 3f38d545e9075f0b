"""What `trimaran plan` prints of its candidates. `TRIMARAN_GOLDEN=write` rewrites the files; the diff is reviewed."""

import dataclasses
import io
import os
from pathlib import Path

import pytest
from rich.console import Console
from tests import builders
from tests.builders import network, table_for

from trimaran.cli.views.plans import print_candidates
from trimaran.planner import EpochData, Rejection, Search, enumerate_strategies, search
from trimaran.planner.candidates import Candidate

FOLDER = Path(__file__).parent / "plans"


def searches() -> dict[str, Search[Candidate]]:
    """Six layers on two and on four devices; the larger space has more than there is room for."""
    graph = network(6)
    table = table_for(graph)

    def find(devices: int, *, memory_bytes: int = 2**30, epoch: EpochData | None = None) -> Search[Candidate]:
        cluster = builders.cluster(devices, memory_bytes=memory_bytes)
        return search(builders.problem(graph=graph, table=table, cluster=cluster, batch=16, epoch=epoch))

    compiled, _ = enumerate_strategies(graph, devices=2, batch=16, executions=("compiled",))
    rejections = [
        Rejection(strategy=one, cause="compiling", reason="the whole training takes 4.00 s by dp2") for one in compiled
    ]
    two = find(2)
    return {
        "two_devices": dataclasses.replace(two, rejected=(*two.rejected, *rejections)),
        "four_devices": find(4),
        "epoch": find(2, epoch=EpochData(samples=100, evaluation_samples=50)),
        "little_memory": find(2, memory_bytes=1000),
    }


def printed(found: Search[Candidate]) -> str:
    file = io.StringIO()
    print_candidates(Console(file=file, width=80, no_color=True), found)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n"


@pytest.mark.parametrize("name", searches())
def test_the_candidates_are_printed_as_they_were(name: str) -> None:
    text = printed(searches()[name])
    path = FOLDER / f"{name}.txt"
    if os.environ.get("TRIMARAN_GOLDEN") == "write":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
    assert max(map(len, text.splitlines())) <= 80


def test_no_file_is_left_over() -> None:
    assert {path.stem for path in FOLDER.glob("*.txt")} == set(searches())
