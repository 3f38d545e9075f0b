from typing import Any

import pytest
from tests.raising import raises
from tests.unit.measure.observe.observed import make_record

from trimaran.base.errors import CorruptDataError, TrimaranError
from trimaran.measure.observe.analysis import analyse
from trimaran.measure.observe.records import parse_record

STEP = {"load": 1, "forward": 2, "loss": 1, "backward": 4, "update": 1, "other": 1}


def test_parts_sum_to_the_step() -> None:
    """1 + (2 + 1) + 4 + 1 + 1 = 10 ms."""
    found = analyse([make_record([STEP] * 40)])
    assert found.mean.forward == pytest.approx(0.003)
    assert found.mean.step_s == pytest.approx(0.010)
    assert found.steps == 35


def test_the_shortest_block_is_the_exchange_and_the_rest_is_waiting() -> None:
    """Rank 0 is blocked for 6 ms and rank 1, which works 4 ms longer, for 2 ms: the exchange takes 2 ms."""
    fast = make_record([STEP | {"exposed": 6}] * 40, rank=0, world=2)
    slow = make_record([STEP | {"exposed": 2, "backward": 8}] * 40, rank=1, world=2)
    found = analyse([fast, slow])
    assert found.mean.exchange == pytest.approx(0.002)
    assert [rank.parts.wait for rank in found.ranks] == pytest.approx([0.004, 0])
    assert found.slower_s == pytest.approx(0.002)


def test_uneven_shares_cost_what_the_largest_works_more_than_an_even_one() -> None:
    """9 ms for 30 samples, 17 ms for 90: an even share of 60 would take 9 × 60/30 = 18 ms without a fixed part.

    With half of the work fixed it takes 9 + 4.5 × 30/30 = 13.5 ms, 3.5 ms less than the larger share.
    """
    again = {"factors": [1, 2], "durations_s": [[1.0], [1.5]]}
    few = make_record([{"forward": 9, "exposed": 8, "samples": 30}] * 40, rank=0, world=2, again=again)
    many = make_record([{"forward": 17, "samples": 90}] * 40, rank=1, world=2, again=again)
    found = analyse([few, many])
    assert found.uneven_s == pytest.approx(0.0035)
    assert found.uneven_samples == pytest.approx(0.5)
    assert found.slower_s == 0


def test_steps_with_an_evaluation_and_far_longer_ones_do_not_count() -> None:
    steps = [STEP] * 40
    steps[20] = STEP | {"evaluation": 50}
    steps[30] = STEP | {"other": 500}
    found = analyse([make_record(steps)])
    assert found.mean.step_s == pytest.approx(0.010)
    assert found.left_out == {"at the start": 5, "with an evaluation": 1, "far longer than the others": 1}


def test_a_teacher_in_every_step_is_a_part_of_the_step() -> None:
    """2 + 1 ms of forward and loss, and 3 ms of a forward without gradients."""
    found = analyse([make_record([STEP | {"evaluation": 3}] * 40)])
    assert found.mean.forward == pytest.approx(0.006)
    assert found.left_out["with an evaluation"] == 0


def test_a_script_whose_forwards_cannot_be_counted_is_judged() -> None:
    assert analyse([make_record([STEP | {"forwards": 0}] * 40)]).steps == 35


def test_steps_without_a_forward_that_trains_do_not_count() -> None:
    steps = [STEP] * 40
    steps[20] = STEP | {"forwards": 0}
    assert analyse([make_record(steps)]).left_out["with an evaluation"] == 1


def test_processes_of_another_job_are_counted_and_left_out() -> None:
    found = analyse([make_record([STEP] * 40), make_record([STEP] * 20), make_record([])])
    assert (found.taken, found.elsewhere) == (40, 1)


@pytest.mark.parametrize(
    ("records", "code", "figures"),
    [
        ([], "observe.no-process", {}),
        ([make_record([])], "observe.no-optimizer-step", {"match": "torch.optim"}),
        ([make_record([STEP] * 6)], "observe.too-few-steps", {"match": r"\b6\b", "steps": 1}),
        (
            [make_record([STEP | {"forwards": number % 9 == 0} for number in range(60)])],
            "observe.too-few-steps",
            {"match": r"\b60\b.*\b53\b", "steps": 6},
        ),
        (
            [make_record([STEP] * 60), make_record([STEP] * 12, rank=1)],
            "observe.too-few-steps",
            {"match": r"\b60\b.*\b48\b", "steps": 7},
        ),
    ],
)
def test_nothing_seen_says_why(records: list[object], code: str, figures: dict[str, Any]) -> None:
    with raises(code, TrimaranError, **figures):
        analyse(records)  # type: ignore[arg-type]


def test_a_record_of_another_version_is_refused() -> None:
    with raises("observe.record-version", CorruptDataError, match=r"\b9\b"):
        parse_record({"schema_version": 9}, source="x.json")
