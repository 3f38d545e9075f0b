"""`trimaran plan` as a person runs it; answers are scored again from what is printed."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from tests.commands.running import trimaran

KEYS = [
    "schema_version",
    "speedup",
    "makespan_s",
    "serial_s",
    "bound_s",
    "gap",
    "schedule",
    "transfers",
    "heft_s",
    "busy",
]


def inception_like(cells: int) -> dict[str, Any]:
    """Cells of four branches of one to three convolutions, joined; with an input that takes long to load."""
    nodes: list[dict[str, Any]] = []
    edges = []

    def add(op: str, forward_ms: float, reads: list[str], nbytes: float = 20e6) -> str:
        name = f"node{len(nodes) + 1}"
        nodes.append(
            {
                "id": name,
                "op": op,
                "forward_ms": forward_ms,
                "backward_ms": 2 * forward_ms,
                "activation_bytes": nbytes,
                "parameter_bytes": 1000.0,
            }
        )
        edges.extend([[read, name] for read in reads])
        return name

    last = add("Input", 500.0, [])
    for _ in range(cells):
        ends = []
        for length in (1, 2, 3, 1):
            end = last
            for _ in range(length):
                end = add("ReLU", 0.2, [add("Conv2d(64, 64)", 1.0 + 0.2 * length, [end])])
            ends.append(end)
        last = add("Concat", 0.1, ends, 60e6)
    add("Linear", 0.5, [last], 1e4)
    return {"source": {"repo": "made up"}, "nodes": nodes, "edges": edges}


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    path = tmp_path / "cells.json"
    path.write_text(json.dumps(inception_like(4)))
    return path


def rescored(graph: dict[str, Any], found: dict[str, Any], bytes_per_s: float) -> float:
    """The makespan by the published rules, from the printed rows alone; an assertion fails where one is broken."""
    cost = {n["id"]: (0.0, 0.0) if n["op"] == "Input" else (n["forward_ms"], n["backward_ms"]) for n in graph["nodes"]}
    size = {n["id"]: n["activation_bytes"] / bytes_per_s for n in graph["nodes"]}
    start = {(row["node"], row["phase"]): row["start_s"] for row in found["schedule"]}
    on = {row["node"]: row["device"] for row in found["schedule"]}
    end = {key: value + cost[key[0]]["FB".index(key[1])] / 1e3 for key, value in start.items()}
    assert len(start) == len(found["schedule"]) == 2 * len(graph["nodes"])
    assert all(on[row["node"]] == row["device"] for row in found["schedule"])
    moves = {(row["node"], row["phase"], row["from"], row["to"]): row["start_s"] for row in found["transfers"]}
    assert len(moves) == len(found["transfers"])
    held: dict[Any, list[tuple[float, float]]] = {}
    for key, begin in start.items():
        held.setdefault(on[key[0]], []).append((begin, end[key]))
    for (node, _, source, target), begin in moves.items():
        held.setdefault((source, target), []).append((begin, begin + size[node]))
    for spans in held.values():
        spans.sort()
        assert all(b[0] >= a[1] - 1e-9 for a, b in itertools.pairwise(spans))
    for a, b in graph["edges"]:
        there, back = end[a, "F"], end[b, "B"]
        if on[a] != on[b]:
            gone, returned = moves[a, "F", on[a], on[b]], moves[a, "B", on[b], on[a]]
            assert gone >= there - 1e-9
            assert returned >= back - 1e-9
            there, back = gone + size[a], returned + size[a]
        assert start[b, "F"] >= there - 1e-9
        assert start[a, "B"] >= back - 1e-9
    assert all(start[node, "B"] >= end[node, "F"] - 1e-9 for node in on)
    return max(end.values())


def test_an_answer_is_printed_that_anyone_can_score(graph: Path, tmp_path: Path) -> None:
    arguments = ("place", str(graph), "--devices", "2", "--bandwidth", "25GB/s", "--time-limit", "10", "--json")
    done = trimaran(*arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert next(iter(found)) == "schema_version"
    assert set(KEYS) <= found.keys()
    content = json.loads(graph.read_text())
    assert rescored(content, found, 25e9) == pytest.approx(found["makespan_s"])
    serial_ms = sum(node["forward_ms"] + node["backward_ms"] for node in content["nodes"] if node["op"] != "Input")
    assert found["serial_s"] == pytest.approx(serial_ms / 1e3)
    assert found["speedup"] == pytest.approx(found["serial_s"] / found["makespan_s"])
    assert found["gap"] == pytest.approx(found["makespan_s"] / found["bound_s"] - 1)
    assert found["heft_s"] >= found["makespan_s"] >= found["bound_s"]
    assert found["speedup"] > 1.4


@pytest.mark.sweep
def test_the_same_seed_prints_the_same_bytes(tmp_path: Path) -> None:
    """A graph for which the time suffices whatever else the machine does."""
    path = tmp_path / "one.json"
    path.write_text(json.dumps(inception_like(1)))
    first, second = (
        trimaran("place", str(path), "--seed", "1", "--time-limit", "60", "--json", cwd=tmp_path) for _ in range(2)
    )
    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout


def test_a_person_reads_it_at_80_columns(graph: Path, tmp_path: Path) -> None:
    done = trimaran("place", str(graph), "--time-limit", "3", "--devices", "3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert max(len(line.rstrip()) for line in done.stdout.splitlines()) <= 80
    for part in ("cells on 3 devices", "times as fast as one device", "crosses", "Concat", "busy"):
        assert part in done.stdout


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (lambda graph: graph["edges"].append(["node9", "node1"]), "node9"),
        (lambda graph: graph["edges"].append(["node9", "nobody"]), "edges[73][1]"),
        (lambda graph: graph["nodes"][2].update(forward_ms=-1.0), "nodes[2].forward_ms"),
        (lambda graph: graph["nodes"][2].update(backward_ms="soon"), "$.nodes[2].backward_ms"),
        (lambda graph: graph["nodes"][2].pop("forward_ms"), "nodes[2]"),
        (lambda graph: graph["nodes"][3].update(id="node1"), "nodes[3].id"),
        (lambda graph: graph["nodes"][3].update(forward_ms=float("nan")), "JSON"),
        (lambda graph: graph["nodes"].clear(), "no nodes"),
        (lambda graph: graph.pop("nodes"), "nodes"),
    ],
)
def test_a_wrong_graph_is_told_with_the_place(change: Any, path: str, graph: Path, tmp_path: Path) -> None:
    content = json.loads(graph.read_text())
    change(content)
    if path == "no nodes":
        content["edges"] = []
    graph.write_text(json.dumps(content))
    done = trimaran("place", str(graph), "--time-limit", "1", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (6 if path == "JSON" else 2, ""), done.stderr
    assert path in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--bandwidth", "fast"], "fast"),
        (["--memory", "12"], "12"),
        (["--time-limit", "0"], "--time-limit"),
        (["--devices", "100"], "--devices"),
        (["--latency", "nan"], "--latency"),
    ],
)
def test_a_wrong_figure_is_told(arguments: list[str], told: str, graph: Path, tmp_path: Path) -> None:
    done = trimaran("place", str(graph), *arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert told in done.stderr


def test_a_file_cut_short_and_no_file_are_told(graph: Path, tmp_path: Path) -> None:
    graph.write_text(graph.read_text()[:500])
    done = trimaran("place", str(graph), cwd=tmp_path)
    assert (done.returncode, "JSON" in done.stderr) == (6, True), done.stderr
    done = trimaran("place", "absent.json", cwd=tmp_path)
    assert (done.returncode, "absent.json" in done.stderr) == (2, True), done.stderr


def test_the_name_of_a_job_is_told_where_jobs_are_placed(tmp_path: Path) -> None:
    found = trimaran("place", "digits-branches", "--devices", "4", cwd=tmp_path)
    assert found.returncode == 2
    assert "`trimaran plan digits-branches --devices 4 --allow placement`" in found.stderr


def test_what_does_not_fit_is_told(graph: Path, tmp_path: Path) -> None:
    done = trimaran("place", str(graph), "--memory", "100MB", "--time-limit", "3", cwd=tmp_path)
    assert (done.returncode, "fits 2 devices" in done.stderr) == (3, True), done.stderr
