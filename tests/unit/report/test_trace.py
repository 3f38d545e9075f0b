"""The trace is what viewers read: fields of every event, times in microseconds, spans of a thread that nest."""

import json
import re
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.unit.report.runs import PROGRAM, RECV_F, SEND_F, measured, predicted

from trimaran.report.comparison import compare
from trimaran.report.trace import trace_document, write_trace

Event = dict[str, Any]


@pytest.fixture(scope="module")
def events() -> list[Event]:
    comparison = compare(PROGRAM, predicted(), measured(3))
    document = trace_document(PROGRAM, predicted(), measured(3), comparison=comparison)
    found: list[Event] = json.loads(json.dumps(document, allow_nan=False))["traceEvents"]
    return found


def process(events: list[Event], name: str) -> int:
    (number,) = (
        event["pid"] for event in events if event["name"] == "process_name" and event["args"] == {"name": name}
    )
    return int(number)


def spans(events: list[Event], name: str, token: str) -> list[Event]:
    number = process(events, name)
    return [event for event in events if event["ph"] == "X" and event["pid"] == number and event["name"] == token]


FIELDS = {
    "M": {"ph", "pid", "tid", "ts", "name", "args"},
    "X": {"ph", "pid", "tid", "ts", "dur", "name", "cat", "args"},
    "s": {"ph", "pid", "tid", "ts", "name", "cat", "id"},
    "f": {"ph", "pid", "tid", "ts", "name", "cat", "id", "bp"},
    "C": {"ph", "pid", "tid", "ts", "name", "args"},
}


def test_every_event_has_the_fields_of_its_type(events: list[Event]) -> None:
    assert {event["ph"] for event in events} == set(FIELDS)
    for event in events:
        assert set(event) == FIELDS[event["ph"]]
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert event["ts"] >= 0
        assert event.get("dur", 0) >= 0


def test_there_is_a_process_for_every_rank_of_both_sources(events: list[Event]) -> None:
    """Sorted so that the two of a rank lie one above the other."""
    order = {event["pid"]: event["args"]["sort_index"] for event in events if event["name"] == "process_sort_index"}
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert [names[number] for number in sorted(names, key=lambda number: order[number])] == [
        "rank 0 predicted",
        "rank 0 measured",
        "rank 1 predicted",
        "rank 1 measured",
    ]


def test_there_is_a_thread_for_every_stream(events: list[Event]) -> None:
    number = process(events, "rank 0 measured")
    names = [event["args"]["name"] for event in events if event["pid"] == number and event["name"] == "thread_name"]
    assert names == ["host", "compute", "wait", "communication", "communication 2"]


def test_spans_of_a_thread_do_not_overlap(events: list[Event]) -> None:
    threads: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            threads[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for intervals in threads.values():
        assert all(before[1] <= after[0] + 1e-3 for before, after in pairwise(sorted(intervals)))


def test_times_are_microseconds(events: list[Event]) -> None:
    """F0 of rank 0 in step 2, which starts at 20 s: from 21 s to 23 s, 21 million microseconds and 2 million long."""
    found = [event for event in spans(events, "rank 0 measured", "0F0") if event["args"]["step"] == 2]
    assert [(event["ts"], event["dur"]) for event in found] == [(21_000_000.0, 2_000_000.0)]


def test_the_prediction_starts_with_the_first_step_that_was_compared(events: list[Event]) -> None:
    """One step of warm-up, 10 s long: the predicted forward at 1 s is drawn at 11 s."""
    (found,) = spans(events, "rank 0 predicted", "0F0")
    assert (found["ts"], found["dur"]) == (11_000_000.0, 2_000_000.0)


def test_a_wait_says_what_it_waits_for(events: list[Event]) -> None:
    assert len(spans(events, "rank 1 measured", "wait for 1RECV_F0<0")) == 3


def test_a_span_carries_bytes_and_both_durations(events: list[Event]) -> None:
    """The forward message: 0.5 s predicted, 1 s measured, 0.5 / 1 - 1 = -0.5."""
    arguments = spans(events, "rank 1 measured", "1RECV_F0<0")[0]["args"]
    assert arguments == {
        "instruction": "r1/1RECV_F0<0",
        "step": 0,
        "bytes": 4096,
        "predicted_s": pytest.approx(0.5),
        "measured_s": pytest.approx(1.0),
        "error": pytest.approx(-0.5),
    }


def test_an_arrow_goes_from_a_send_to_its_receive_forward_in_time(events: list[Event]) -> None:
    tails = {event["id"]: event for event in events if event["ph"] == "s"}
    heads = {event["id"]: event for event in events if event["ph"] == "f"}
    assert len(tails) == len(heads) == 2 + 2 * 3
    for name, tail in tails.items():
        head = heads[name]
        assert (tail["cat"], tail["name"]) == (head["cat"], head["name"])
        assert head["bp"] == "e"
        assert head["ts"] >= tail["ts"]
        assert head["pid"] != tail["pid"]


def test_an_arrow_lies_within_its_spans(events: list[Event]) -> None:
    for event in events:
        if event["ph"] in "sf":
            enclosing = [
                other
                for other in events
                if other["ph"] == "X"
                and (other["pid"], other["tid"]) == (event["pid"], event["tid"])
                and other["ts"] <= event["ts"] <= other["ts"] + other["dur"]
            ]
            kind = "SEND" if event["ph"] == "s" else "RECV"
            assert any(kind in other["name"] for other in enclosing)


def test_memory_is_a_counter_of_bytes(events: list[Event]) -> None:
    number = process(events, "rank 1 predicted")
    counted = [(event["ts"], event["args"]) for event in events if event["ph"] == "C" and event["pid"] == number]
    assert counted == [
        (10_000_000.0, {"bytes": 200}),
        (13_500_000.0, {"bytes": 260}),
        (16_000_000.0, {"bytes": 200}),
    ]


def test_only_the_wanted_steps_are_drawn() -> None:
    document = trace_document(PROGRAM, None, measured(3), steps=[1])
    assert {event["args"]["step"] for event in document["traceEvents"] if event["ph"] == "X"} == {1}


def test_a_prediction_can_be_drawn_alone() -> None:
    document = trace_document(PROGRAM, predicted())
    (found,) = spans(document["traceEvents"], "rank 0 predicted", SEND_F.token)
    assert found["ts"] == 3_000_000.0
    assert "predicted_s" not in found["args"]


def test_the_file_holds_the_document(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    write_trace(path, PROGRAM, predicted())
    assert json.loads(path.read_text()) == trace_document(PROGRAM, predicted())
    assert re.fullmatch(r"trace\.json", next(tmp_path.iterdir()).name)
    assert RECV_F.token in path.read_text()
