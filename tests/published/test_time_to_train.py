"""Published times to train, each predicted from a smaller one. Thresholds are what is reached, a little rounded up.

Sources of the rows: src/trimaran_studies/published, times_*.csv and sources.toml.
"""

import functools
from collections.abc import Callable, Sequence

import pytest

from trimaran_studies.published.rows import published_rows
from trimaran_studies.validation.measurement import Row
from trimaran_studies.validation.scores import Score, Scored, score
from trimaran_studies.validation.validate import answer_rows, scored

pytestmark = pytest.mark.published


SOME_ROUNDS = ("v0.7", "v1.1")
SOME_TABLES = ("PyTorch",)
ALL = pytest.mark.sweep


def quiet(what: str, done: int, total: int) -> None:
    """Nobody watches."""


@functools.cache
def submissions(rounds: tuple[str, ...]) -> tuple[Scored, ...]:
    """Results of benchmark rounds; of all where none is named."""
    return _times("dev", lambda row: "benchmark" in row.fields and (not rounds or row.fields["round"] in rounds))


@functools.cache
def tables(use: str, frameworks: tuple[str, ...]) -> tuple[Scored, ...]:
    """Tables of trainings in some frameworks; of all where none is named."""
    return _times(
        use,
        lambda row: "benchmark" not in row.fields and (not frameworks or row.fields["framework"] in frameworks),
    )


def _times(use: str, chosen: Callable[[Row], bool]) -> tuple[Scored, ...]:
    rows = [row for row in published_rows("time_to_train") if row.fields["use"] == use and chosen(row)]
    return tuple(scored(found) for found in answer_rows(rows, "single", progress=quiet))


def checked(rows: Sequence[Scored]) -> Score:
    found = score(rows)
    assert found is not None
    assert [row.row_id for row in rows if "Trimaran failed" in row.skipped] == []
    return found


@pytest.mark.parametrize(("rounds", "answered"), [(SOME_ROUNDS, 120), pytest.param((), 400, marks=ALL)])
def test_larger_submissions_from_the_smallest(rounds: tuple[str, ...], answered: int) -> None:
    """Two rounds, or six; linear scaling has 18 %, linear scaling with the curve's epochs 13 %."""
    found = checked(submissions(rounds))
    assert found.answered >= answered
    assert found.median <= 0.10
    assert found.p90 <= 0.35
    assert found.coverage is not None
    assert 0.85 <= found.coverage <= 0.95
    assert found.median < min(found.baselines[name][0] for name in ("linear", "log2", "linear, curve"))


@pytest.mark.parametrize(("frameworks", "answered"), [(SOME_TABLES, 90), pytest.param((), 100, marks=ALL)])
def test_tables_from_their_smallest(frameworks: tuple[str, ...], answered: int) -> None:
    """One to 64 GPUs, rows that no constant was fitted on."""
    found = checked(
        [row for row in tables("dev", frameworks) if row.groups["setting"] == "from the smallest of its table"]
    )
    assert found.answered >= answered
    assert found.median <= 0.13
    assert found.coverage is not None
    assert found.coverage >= 0.80


@pytest.mark.parametrize("frameworks", [SOME_TABLES, pytest.param((), marks=ALL)])
def test_trainings_of_known_length(frameworks: tuple[str, ...]) -> None:
    """One device, no other training to go by."""
    found = checked(
        [row for row in tables("dev", frameworks) if row.groups["setting"] == "from epochs and data of its script"]
    )
    assert found.answered >= 40
    assert found.median <= 0.08
    assert found.p90 <= 0.27


@pytest.mark.parametrize(
    ("rounds", "frameworks"), [(SOME_ROUNDS, SOME_TABLES), pytest.param((), (), marks=ALL)], ids=["some", "all"]
)
def test_every_row_has_an_answer_or_a_reason(rounds: tuple[str, ...], frameworks: tuple[str, ...]) -> None:
    for rows in (submissions(rounds), tables("dev", frameworks), tables("calibrate", frameworks)):
        assert rows
        assert [row.row_id for row in rows if (row.predicted is None) == (not row.skipped)] == []
