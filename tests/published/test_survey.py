"""The survey says what its command finds: some works at once, all of them in the sweep."""

from pathlib import Path

import pytest

from trimaran_studies.survey import COMMAND, JOBS, WORKS, job_line, survey, survey_page, work_line

pytestmark = pytest.mark.published

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "survey.md"
QUICK = (
    "host-side splitting",
    "pre-loading",
    "DALI",
    "parameter server",
    "BytePS",
    "overlapped buckets",
    "PowerSGD",
    "ZeRO",
)


@pytest.mark.sweep
def test_the_remedies_of_the_study_and_of_others_are_as_the_page_says() -> None:
    """On the first job; the other one, whose network is larger, in the sweep."""
    page = PAGE.read_text("utf-8").split("\n")
    (job,) = jobs = JOBS[:1]
    assert job_line(job) in page
    for each in survey(works=[work for work in WORKS if work.name in QUICK], jobs=jobs):
        start = work_line(each).removesuffix("|")
        assert [line for line in page if line.startswith(start)], start


@pytest.mark.sweep
@pytest.mark.timeout(900)
def test_the_whole_page_is_what_the_command_writes() -> None:
    assert survey_page(survey()) == PAGE.read_text("utf-8")


@pytest.mark.sweep
def test_gains_have_the_sign_of_their_answers() -> None:
    for each in survey(works=[work for work in WORKS if work.name in QUICK], jobs=JOBS[:1]):
        for outcome in each.outcomes:
            if outcome.answer == "worth it":
                assert outcome.gain is not None
                assert outcome.gain > 0.0
            elif outcome.answer == "not worth it":
                assert outcome.gain is not None
                assert outcome.gain <= 0.01
            else:
                assert outcome.said


@pytest.mark.sweep
def test_slow_links_are_what_makes_compression_worth_it() -> None:
    """10 Gb/s between nodes against InfiniBand: the same question has two answers."""
    (found,) = survey(works=[work for work in WORKS if work.name == "16-bit gradients with error feedback"])
    assert found.outcomes[0].answer == "worth it"
    assert found.outcomes[1].answer != "worth it"


def test_each_work_is_asked_or_says_why_not() -> None:
    assert [work.name for work in WORKS if (work.question is None) != bool(work.reason)] == []
    assert len({work.name for work in WORKS}) == len(WORKS) >= 12


def test_the_page_names_its_command_and_is_found() -> None:
    assert COMMAND in PAGE.read_text("utf-8")
    for index in ("README.md", "docs/index.md"):
        assert "survey.md" in (ROOT / index).read_text("utf-8")
