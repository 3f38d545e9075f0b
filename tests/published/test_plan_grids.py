"""Published plans of transformers: what our choice among them costs, and how long their steps take."""

import pytest

from trimaran_studies.published.rows import published_rows
from trimaran_studies.validation.measurement import Row
from trimaran_studies.validation.model_parallel import answer_model_parallel
from trimaran_studies.validation.regret import gap_closed, noise_of, regret_document, regret_jobs
from trimaran_studies.validation.scores import score
from trimaran_studies.validation.validate import scored

pytestmark = pytest.mark.published


def plans(use: str, family: str, source: str) -> list[Row]:
    return [
        row
        for row in published_rows(family)
        if row.fields["use"] == use and source in row.fields["source_repo"] and not row.flag
    ]


def test_a_grid_of_plans_on_eight_devices() -> None:
    """GPT with 20 layers of 2,048 on 2, 4 and 8 A100, 180 plans of 18 jobs (VIA-Research/vTrain).

    The rule of thumb has 1.00 median and 2.03 worst, where layers are divided over eight devices for two sequences; of
    the gap in five jobs our choices close more than half.
    """
    answers = [answer_model_parallel(row) for row in plans("calibrate", "mp_step_time", "vTrain")]
    found = score(scored(answer) for answer in answers)
    assert found is not None
    assert found.answered == 180
    assert found.median <= 0.035
    assert found.p90 <= 0.12
    regrets = regret_document(regret_jobs(answers))
    assert regrets["jobs"] == 18
    assert regrets["median"] == 1.0
    assert regrets["p90"] <= 1.10  # type: ignore[operator]
    assert regrets["worst"] <= 1.20  # type: ignore[operator]
    assert regrets["rule_of_thumb"]["p90"] >= 1.29  # type: ignore[index]
    closed = gap_closed(regret_jobs(answers))
    assert (closed.jobs, closed.of) == (5, 18)
    assert closed.low is not None
    assert closed.low >= 0.5


def test_plans_that_nothing_was_fitted_on() -> None:
    """Plans of GPT on V100 and L4, where the guides' plan, which is tried, is as good as the best one but for noise.

    An identical test at another time of the day was up to 40 % faster or slower on the V100 (Jean Zay), and its rows
    deviate by 14 % where they repeat, so there is no gap to close. Our choice, without a measurement, costs as much.
    """
    answers = [answer_model_parallel(row) for row in plans("dev", "mp_step_time", "")]
    jobs = regret_jobs(answers)
    regrets = regret_document(jobs)
    assert regrets["jobs"] == 14
    assert gap_closed(jobs).jobs == 0
    noise = noise_of(jobs)["bigscience-workshop/bigscience"]
    assert 0.10 < noise < 0.20
    assert regrets["median"] <= regrets["rule_of_thumb"]["median"] + noise  # type: ignore[operator, index]
    mist = regret_document([job for job in jobs if "Mist" in job.source])
    assert mist["worst"] < mist["rule_of_thumb"]["worst"]  # type: ignore[operator, index]


def test_large_runs_that_nothing_was_fitted_on() -> None:
    """Tokens a second of networks that were kept out of the fit: up to 405 billion parameters on 1,024 H100."""
    rows = plans("dev", "mp_throughput", "")
    found = score(scored(answer_model_parallel(row)) for row in rows)
    assert found is not None
    assert found.median <= 0.06
    large = [row for row in rows if "405B" in row.fields.get("model", "") or "175B" in row.fields.get("model", "")]
    for row in large:
        assert answer_model_parallel(row).predicted == pytest.approx(row.measured, rel=0.15)
    assert len(large) >= 5
