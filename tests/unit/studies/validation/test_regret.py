"""Regret of choices among published plans, by hand."""

import pytest

from trimaran_studies.validation.regret import Job, JobPlan, regret_document, regret_lines, regret_table


def plan(name: str, measured: float, predicted: float, degrees: tuple[int, int, int]) -> JobPlan:
    """Degrees: devices of a replica, stages among them, sequences of a microbatch."""
    model_parallel, stages, microbatch = degrees
    return JobPlan(
        name=name,
        rows=(name,),
        measured=measured,
        predicted=predicted,
        model_parallel=model_parallel,
        stages=stages,
        microbatch=microbatch,
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


def test_of_equal_model_parallelism_the_rule_takes_layers_then_the_larger_microbatch() -> None:
    small = plan("tp of small microbatches", 9.0, 9.0, (2, 1, 1))
    assert job(STAGES, small, TENSOR).by_rule == TENSOR


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
