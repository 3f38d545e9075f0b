import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.unit.report.memory_steps import COSTS, PLAN, TRACE

from trimaran.program.memory import KEEP_ALL
from trimaran.report.trace import PlannedStep, memory_trace, write_memory_trace
from trimaran.simulator.memory import live_bytes, simulate_memory


@pytest.fixture
def step() -> PlannedStep:
    return PlannedStep(
        title="example, batch 1",
        trace=TRACE,
        plan=PLAN,
        run=simulate_memory(TRACE, PLAN, COSTS),
        live=live_bytes(TRACE, PLAN),
        kept=live_bytes(TRACE, KEEP_ALL),
        budget_bytes=2700,
    )


def _spans(document: dict[str, Any], lane: int) -> list[tuple[str, float, float]]:
    events = [event for event in document["traceEvents"] if event["ph"] == "X" and event["tid"] == lane]
    return sorted(((event["name"], event["ts"], event["dur"]) for event in events), key=lambda span: span[1])


def test_operations_have_their_names_and_wait_where_nothing_runs(step: PlannedStep) -> None:
    """a_back starts 2 s late, at 7 s: it waits for s0 from 5 s on."""
    spans = _spans(memory_trace(step), 1)
    assert [name for name, _, _ in spans][-4:] == [
        "aten.b_back.default",
        "wait for a copy",
        "aten.a_back.default",
        "aten.update.default",
    ]
    assert spans[-3][1:] == (5e6, 2e6)
    assert spans[-2][1:] == (7e6, 2e6)


def test_copies_have_a_lane_for_each_direction(step: PlannedStep) -> None:
    """1000 B at 1000 B/s from 1 s on, and back at 500 B/s from 5 s on."""
    document = memory_trace(step)
    assert _spans(document, 2) == [("a [0]", 1e6, 1e6)]
    assert _spans(document, 3) == [("a [0]", 5e6, 2e6)]


def test_spans_of_a_lane_do_not_overlap(step: PlannedStep) -> None:
    document = memory_trace(step)
    for lane in (1, 2, 3):
        spans = _spans(document, lane)
        for (_, start, length), (_, following, _) in pairwise(spans):
            assert start + length <= following + 1e-3


def test_live_bytes_are_counted_with_and_without_the_plan(step: PlannedStep) -> None:
    counters = [event["args"] for event in memory_trace(step)["traceEvents"] if event["ph"] == "C"]
    assert max(entry["without a plan"] for entry in counters) == 3604
    assert max(entry["under the plan"] for entry in counters) == 3100


def test_the_file_is_json_with_the_lanes_named(step: PlannedStep, tmp_path: Path) -> None:
    write_memory_trace(tmp_path / "trace.json", step)
    document = json.loads((tmp_path / "trace.json").read_text())
    names = [event["args"]["name"] for event in document["traceEvents"] if event["ph"] == "M"]
    assert names == ["example, batch 1", "compute", "d2h", "h2d"]
