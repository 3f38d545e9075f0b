"""Profiled graphs from files: what says nothing of its edges is not taken for a graph without any."""

import json
from pathlib import Path

import pytest
from tests.raising import raises

from trimaran.graph.profiled import read_profiled

ONE = {"id": "a", "forward_ms": 1.0, "backward_ms": 2.0}
TWO = [ONE, ONE | {"id": "b"}]


def written(folder: Path, **content: object) -> Path:
    path = folder / "graph.json"
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize("key", ["edge", "Edges", "egdes"])
def test_a_typo_of_edges_is_named(key: str, tmp_path: Path) -> None:
    with raises("profiled-graph.no-edges", match=rf'\b2\b.*"{key}"', key="edges"):
        read_profiled(written(tmp_path, nodes=TWO, **{key: [["a", "b"]]}))


def test_a_graph_that_says_nothing_of_edges_is_refused(tmp_path: Path) -> None:
    with raises("profiled-graph.no-edges", match=r"\b2\b", key="edges"):
        read_profiled(written(tmp_path, source={}, nodes=TWO))


def test_operations_that_read_nothing_are_said_to(tmp_path: Path) -> None:
    assert read_profiled(written(tmp_path, nodes=TWO, edges=[])).edges == ()


def test_a_lone_operation_needs_no_edges(tmp_path: Path) -> None:
    assert [node.name for node in read_profiled(written(tmp_path, nodes=[ONE])).nodes] == ["a"]
