"""Public training runs of transformers, on which nothing is fitted, against their published steps."""

import math
import statistics

import pytest

from trimaran.planner.analytical.candidates import AnalyticalModel
from trimaran.planner.analytical.search import fastest, transformer_problem
from trimaran.program.strategy import read_strategy
from trimaran_studies.validation.field import answer_field, field_rows, field_run
from trimaran_studies.validation.measurement import Answer
from trimaran_studies.validation.scores import interval_score

pytestmark = pytest.mark.published

WIDTH = math.exp(0.42)
"""Of all steps, as `benchmarks/fits/transformers.py` learns it on sources that its fit left out."""


@pytest.fixture(scope="module")
def answers() -> list[Answer]:
    return [answer_field(row) for row in field_rows()]


def test_every_run_is_priced(answers: list[Answer]) -> None:
    assert [answer.skipped for answer in answers] == [""] * 17


def test_steps_are_as_long_as_published(answers: list[Answer]) -> None:
    errors = [answer.error or 0.0 for answer in answers]
    assert statistics.median(map(abs, errors)) <= 0.06
    # Three runs of FSDP are 5 to 10 % too long (-2 to 6 until elementwise work was counted), and the middle is there.
    assert abs(statistics.median(errors)) <= 0.06
    assert abs(statistics.mean(errors)) <= 0.05
    # The worst is OPT-175B's, a figure that was recalled and not looked up.
    assert max(map(abs, errors)) <= 0.16


def test_intervals_are_better_than_one_constant_width(answers: list[Answer]) -> None:
    known = [(each.row.measured, each.predicted or 0.0, each.low or 0.0, each.high or 0.0) for each in answers]
    ours = statistics.mean(interval_score(measured, low, high) for measured, _, low, high in known)
    constant = statistics.mean(interval_score(told, middle / WIDTH, middle * WIDTH) for told, middle, _, _ in known)
    inside = sum((each.low or 0) <= each.row.measured <= (each.high or 0) for each in answers)
    assert ours < constant
    assert inside >= 0.8 * len(answers)


def test_steps_grow_by_some_hundredths_from_tens_to_thousands_of_devices(answers: list[Answer]) -> None:
    """Measured: 2.83 to 2.96 s from 16 to 2,048 devices, 12.91 to 13.1 s from 8 to 128."""
    steps = {answer.row.row_id: answer.predicted or 0.0 for answer in answers}
    assert 1.01 < steps["Nemotron4 15B 2048 H100"] / steps["Nemotron4 15B 16 H100"] < 1.06
    assert 1.005 < steps["Llama3.1 8B 128 H100"] / steps["Llama3.1 8B 8 H100"] < 1.03


def test_a_plan_is_as_fast_as_degrees_that_fit_only_with_norms_recomputed(answers: list[Answer]) -> None:
    """340 billion parameters on 128 H100 ran without recomputed layers, which take a seventh of the step."""
    row = next(answer.row for answer in answers if answer.row.row_id == "Nemotron4 340B 128 H100")
    run, machine = field_run(row)
    problem = transformer_problem(run.shape, machine, batch=32)
    ran = read_strategy("dp2 pp8 interleaved x12 tp8 zero1 m16")
    assert fastest(problem).step_time_s <= 1.05 * AnalyticalModel(problem=problem).price(ran).step_time_s
