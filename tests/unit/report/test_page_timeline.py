"""The timelines of a page: every rank, what is alike once, and what is left out is said."""

import json
from typing import Any

from tests.unit.report.runs import PROGRAM, measured, predicted

from trimaran.base.timeline import Span, Timeline
from trimaran.report.page.layout import MOST_BYTES
from trimaran.report.page.timeline import step_timelines, typical_steps


def replicas(ranks: int, spans: int, *, differ: bool) -> Timeline:
    """Ranks of one kind; each a little later than the one before where they differ."""
    return Timeline(
        Span(
            rank=rank,
            stream="compute" if number % 3 else "communication",
            start_s=number + (1e-4 * rank * (number % 7) if differ else 0.0),
            end_s=number + 0.9,
            instruction=f"r{rank}/{number}F0",
            nbytes=rank * number if differ else 0,
        )
        for rank in range(ranks)
        for number in range(spans)
    )


def size(found: Any) -> int:
    return len(json.dumps(found.document, separators=(",", ":")))


def test_ranks_that_do_the_same_take_the_room_of_one() -> None:
    found = step_timelines(replicas(256, 100, differ=False))
    assert found is not None
    views = found.document["views"]
    assert [row[0] for row in views[0]["rows"]] == list(range(256))
    assert len(found.document["lanes"]) == 2
    assert size(found) < 40_000
    assert found.note == "256 ranks, each with its predicted step."


def test_a_page_of_ranks_that_all_differ_stays_small_and_says_what_is_joined() -> None:
    found = step_timelines(replicas(256, 300, differ=True))
    assert found is not None
    assert size(found) <= 1_200_000 < MOST_BYTES
    assert "are drawn as one" in found.note or "ranks are drawn" in found.note
    rows = found.document["views"][0]["rows"]
    assert (rows[0][0], rows[-1][0]) == (0, 255)


def test_more_ranks_than_rows_are_sampled_with_the_first_and_the_last() -> None:
    found = step_timelines(replicas(5000, 2, differ=False))
    assert found is not None
    ranks = [row[0] for row in found.document["views"][0]["rows"]]
    assert len(ranks) <= 4096
    assert (ranks[0], ranks[-1]) == (0, 4999)
    assert f"{len(ranks)} ranks are drawn" in found.note


def test_the_prediction_of_a_rank_lies_above_its_measurement() -> None:
    found = step_timelines(predicted(), measured(4), program=PROGRAM, warmup=1)
    assert found is not None
    for view in found.document["views"]:
        assert [(rank, source) for rank, source, _ in view["rows"]] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    parts = {name: found.document["parts"][part][0] for name, part, _ in found.document["events"]}
    assert (parts["IN0"], parts["0F0"], parts["1B0"], parts["U"]) == ("loading", "forward", "backward", "update")


def test_nothing_to_draw_is_no_timeline() -> None:
    assert step_timelines(None) is None
    assert step_timelines(Timeline([]), Timeline([])) is None


def test_the_steps_that_can_be_chosen() -> None:
    """Steps of 1, 5, 2, 3 s and a last one without a next; the first is left out: 5 is the slowest, 2 the fastest."""
    starts = [0.0, 1.0, 6.0, 8.0, 11.0]
    timeline = Timeline(
        Span(rank=0, stream="compute", start_s=start, end_s=start + 0.5, instruction="r0/0F0", step=step)
        for step, start in enumerate(starts)
    )
    assert typical_steps(timeline, 1) == [("of median time", 3), ("fastest", 2), ("slowest", 1)]
    assert typical_steps(Timeline([]), 0) == []
