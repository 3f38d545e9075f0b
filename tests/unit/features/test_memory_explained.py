"""What filled the memory, and which plan would fit, by the planner's figures."""

import dataclasses

import pytest
from tests import builders
from tests.unit.cli.test_views import epochs, planned

from trimaran.base.errors import ExecutionError
from trimaran.features.training.memory import with_memory_plan
from trimaran.planning.answer.results import Planned
from trimaran.program.plan_file import CandidateRow

MIB = 2**20


def made() -> Planned:
    """A plan that needs 3 MiB on its worst rank by the table of candidates; two others need 2 and 1 MiB."""
    given = planned(epochs())
    simulated = given.simulated
    chosen = dataclasses.replace(simulated.chosen, peak_bytes=tuple(3 * MIB for _ in simulated.chosen.peak_bytes))
    rows = tuple(
        CandidateRow(
            strategy=builders.strategy(dp=2, zero=zero),
            verdict="considered",
            prediction=builders.prediction(step_time_s=step_s, peak_bytes=(peak, peak)),
        )
        for zero, step_s, peak in ((0, 1.0, 3 * MIB), (1, 1.5, 2 * MIB), (3, 2.0, 1 * MIB))
    )
    evidence = dataclasses.replace(simulated, chosen=chosen, plan=dataclasses.replace(simulated.plan, candidates=rows))
    return dataclasses.replace(given, evidence=evidence)


def ran_out(room_bytes: int) -> ExecutionError:
    return ExecutionError("rank 0 ran out of memory", code="memory.exhausted", rank=0, room_bytes=room_bytes)


@pytest.mark.parametrize(
    ("room_bytes", "fits"),
    [
        (5 * MIB // 2, "dp2 zero1"),  # the fastest of those that fit
        (2 * MIB - 1, "dp2 zero3"),
        (9 * MIB, "dp2 zero3"),  # by the prediction it fits: the one that needs least
        (MIB - 1, ""),
    ],
)
def test_the_fastest_plan_that_fits_is_named_or_the_smallest_where_a_prediction_was_too_low(
    room_bytes: int, fits: str
) -> None:
    found = with_memory_plan(ran_out(room_bytes), made())
    assert found.code == "memory.exhausted"
    assert found.figures["fits"] == fits
    if fits:
        assert f'trimaran train file.py:make --strategy "{fits}"' in found.message
    else:
        assert "No plan is known that needs less than 1 MiB" in found.message
        assert "--memory" not in found.message


def test_where_no_plan_fits_another_search_with_that_limit_is_named() -> None:
    given = made()
    none = dataclasses.replace(given.simulated.plan, candidates=())
    given = dataclasses.replace(given, evidence=dataclasses.replace(given.simulated, plan=none, search=None))
    found = with_memory_plan(ran_out(2 * MIB), given)
    assert "trimaran plan file.py:make --memory 2MiB" in found.message


def test_the_parts_are_those_of_the_plan_and_add_up() -> None:
    found = with_memory_plan(ran_out(MIB), made())
    parts = found.figures["parts_bytes"]
    assert isinstance(parts, dict)
    assert found.figures["predicted_bytes"] == 3 * MIB == sum(parts.values())
    assert parts["parameters"] > 0
    assert "on rank 0: parameters" in found.message


def test_notes_of_the_error_are_kept() -> None:
    error = ran_out(MIB)
    error.add_note("raised on rank 0")
    assert with_memory_plan(error, made()).__notes__ == ["raised on rank 0"]
