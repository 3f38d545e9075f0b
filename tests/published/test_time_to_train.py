"""Published times to train, each predicted from a smaller one. Thresholds are what is reached, a little rounded up.

Sources of the rows: src/trimaran_studies/published/rows.csv, with their places in its columns source_*.
"""

import functools
from collections.abc import Callable, Sequence

import pytest

from trimaran_studies.published.rows import SUBMITTED, published_rows
from trimaran_studies.validation.measurement import Row
from trimaran_studies.validation.scores import Score, Scored, score
from trimaran_studies.validation.validate import answer_rows, scored

pytestmark = [pytest.mark.published, pytest.mark.sweep]


def quiet(what: str, done: int, total: int) -> None:
    """Nobody watches."""


@functools.cache
def submissions() -> tuple[Scored, ...]:
    """Results of six benchmark rounds."""
    return _times("dev", lambda row: row.fields["metric"] == SUBMITTED)


@functools.cache
def tables(use: str) -> tuple[Scored, ...]:
    """Trainings of tables."""
    return _times(use, lambda row: row.fields["metric"] != SUBMITTED)


def _times(use: str, chosen: Callable[[Row], bool]) -> tuple[Scored, ...]:
    rows = [row for row in published_rows("time_to_train") if row.fields["use"] == use and chosen(row)]
    return tuple(scored(found) for found in answer_rows(rows, "single", progress=quiet))


def checked(rows: Sequence[Scored]) -> Score:
    found = score(rows)
    assert found is not None
    assert [row.row_id for row in rows if "Trimaran failed" in row.skipped] == []
    return found


def test_larger_submissions_from_the_smallest() -> None:
    """Six benchmarks; linear scaling has 18 %, linear scaling with the curve's epochs 13 %."""
    found = checked(submissions())
    assert found.answered >= 400
    assert found.median <= 0.10
    assert found.p90 <= 0.35
    assert found.coverage is not None
    assert 0.85 <= found.coverage <= 0.95
    assert found.median < min(found.baselines[name][0] for name in ("linear", "log2", "linear, curve"))


def test_tables_from_their_smallest() -> None:
    """One to 64 GPUs, rows that no constant was fitted on."""
    found = checked([row for row in tables("dev") if row.groups["setting"] == "from the smallest of its table"])
    assert found.answered >= 100
    assert found.median <= 0.13
    assert found.coverage is not None
    assert found.coverage >= 0.80


def test_trainings_of_known_length() -> None:
    """One device, no other training to go by."""
    found = checked([row for row in tables("dev") if row.groups["setting"] == "from epochs and data of its script"])
    assert found.answered >= 40
    assert found.median <= 0.08
    assert found.p90 <= 0.27


def test_every_row_has_an_answer_or_a_reason() -> None:
    for rows in (submissions(), tables("dev"), tables("calibrate")):
        assert rows
        assert [row.row_id for row in rows if (row.predicted is None) == (not row.skipped)] == []
