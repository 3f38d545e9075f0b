"""Regret of choices among published plans, by hand."""

import pytest

from trimaran.program.strategy import Degrees
from trimaran_studies.validation.regret import (
    GapClosed,
    Job,
    JobPlan,
    gap_closed,
    noise_of,
    regret_document,
    regret_lines,
    regret_table,
)


def plan(
    name: str, measured: float, predicted: float, degrees: tuple[int, int, int], *, deviation: float = 0.0
) -> JobPlan:
    """Degrees: devices of a replica, stages among them, sequences of a microbatch. With a deviation, of two rows."""
    model_parallel, stages, microbatch = degrees
    return JobPlan(
        name=name,
        rows=(name, name) if deviation else (name,),
        measured=measured,
        predicted=predicted,
        degrees=Degrees(tp=model_parallel // stages, pp=stages, microbatch=microbatch, dp=8 // model_parallel),
        deviation=deviation,
    )


def job(*plans: JobPlan) -> Job:
    return Job(family="mp_step_time", network="GPT", devices="8", batch="16", source="a", plans=plans)


REPLICAS = plan("dp", 12.0, 9.0, (1, 1, 1))
TENSOR = plan("tp", 10.0, 10.0, (2, 1, 2))
STAGES = plan("pp", 15.0, 8.0, (2, 2, 4))


def test_regret_is_the_time_of_the_chosen_plan_over_the_shortest() -> None:
    """We take the stages (8 predicted), which took 15 where 10 was possible; the rule takes replicas, 12."""
    found = job(REPLICAS, TENSOR, STAGES)
    assert (found.best, found.chosen, found.by_rule) == (TENSOR, STAGES, REPLICAS)
    assert found.regret(found.chosen) == pytest.approx(1.5)
    assert found.regret(found.by_rule) == pytest.approx(1.2)


def test_of_equal_model_parallelism_the_rule_takes_layers_and_tries_microbatches() -> None:
    small = plan("tp of small microbatches", 9.0, 9.0, (2, 1, 1))
    assert job(STAGES, small, TENSOR).by_rule == small


def test_the_gap_is_that_of_jobs_that_differ_by_more_than_noise() -> None:
    """The rule takes 12 and 10.2, we take 15 and 10, where 10 is the best: -0.3 of 0.2, and 0.02 that is all closed.

    Repeated measurements deviate by 3 %, so only the first counts: (0.2 - 0.5) / 0.2.
    """
    close = job(plan("dp", 10.2, 12.0, (1, 1, 1)), plan("tp", 10.0, 9.0, (2, 1, 1), deviation=0.03))
    jobs = [job(REPLICAS, TENSOR, STAGES), close]
    assert noise_of(jobs) == {"a": 0.03}
    found = gap_closed(jobs)
    assert (found.jobs, found.of, found.share) == (1, 2, pytest.approx(-1.5))
    assert found.low == found.high == pytest.approx(-1.5)
    assert gap_closed([close]) == GapClosed(jobs=0, of=1)


def test_a_source_that_repeats_nothing_has_the_noise_of_others() -> None:
    other = Job(family="mp_step_time", network="GPT", devices="8", batch="16", source="b", plans=(REPLICAS, TENSOR))
    assert noise_of([other, job(plan("dp", 1.0, 1.0, (1, 1, 1), deviation=0.05))]) == {"a": 0.05, "b": 0.05}


def test_the_interval_holds_the_share() -> None:
    jobs = [job(REPLICAS, TENSOR, STAGES), job(plan("dp", 20.0, 20.0, (1, 1, 1)), TENSOR)]
    found = gap_closed(jobs)
    assert found.share is not None
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.share <= found.high
    assert found.low < found.high


def test_the_summary_counts_jobs_of_one_plan_apart() -> None:
    """Regrets 1.5 and 1.0: median 1.25, 1.45 at p90; the rule's 1.2 and 1.0."""
    jobs = [job(REPLICAS, TENSOR, STAGES), job(REPLICAS), job(TENSOR, plan("worse", 20.0, 20.0, (4, 1, 1)))]
    document = regret_document(jobs)
    assert document["jobs"] == 2
    assert document["jobs_of_one_plan"] == 1
    assert document["median"] == pytest.approx(1.25)
    assert document["p90"] == pytest.approx(1.45)
    assert document["rule_of_thumb"]["median"] == pytest.approx(1.1)  # type: ignore[index]
    first = document["by_job"][0]  # type: ignore[index]
    assert (first["regret"], first["rule_of_thumb_regret"]) == (1.5, 1.2)
    assert first["chosen"]["plan"] == "pp"
    assert first["best"]["measured"] == 10.0


def test_nothing_to_choose_has_no_regret() -> None:
    document = regret_document([job(REPLICAS)])
    assert (document["jobs"], document["median"], document["jobs_of_one_plan"]) == (0, None, 1)
    assert regret_lines([job(REPLICAS)]) == []


def test_the_table_shows_the_largest_regret_first() -> None:
    jobs = [job(TENSOR, plan("worse", 20.0, 20.0, (4, 1, 1))), job(REPLICAS, TENSOR, STAGES)]
    table = regret_table(jobs)
    assert list(table.columns[6].cells) == ["1.500", "1.000"]
    assert "1.250 median" in regret_lines(jobs)[0]
