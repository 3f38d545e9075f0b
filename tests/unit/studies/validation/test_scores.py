"""Scores of predictions, by hand."""

import pytest

from trimaran_studies.validation.scores import (
    Scored,
    by_group,
    family_table,
    quantile,
    rank_correlation,
    rows_table,
    score,
    skipped,
    validation_document,
    worst_table,
)


def row(measured: float, predicted: float | None, **given: object) -> Scored:
    groups = {"machine": "dgx1", "network": "vgg16", "source": "a"}
    fields = {"row_id": "r", "family": "f", "groups": groups, "several_nodes": False, **given}
    return Scored(measured=measured, predicted=predicted, **fields)  # type: ignore[arg-type]


def test_errors_are_shares_of_the_measured_figure() -> None:
    """Errors of +10 %, -20 %, 0 % and +40 %: sizes 0, 10, 20, 40 %."""
    found = score([row(100, 110), row(100, 80), row(100, 100), row(100, 140)])
    assert found is not None
    assert found.median == pytest.approx(0.15)
    assert found.p80 == pytest.approx(0.2 + 0.4 * 0.2), "at place 2.4 of 0 to 3"
    assert (found.within_10, found.within_20) == (0.5, 0.75)
    assert found.bias == pytest.approx(0.05)


def test_an_interval_pays_for_its_width_and_for_what_it_misses() -> None:
    """Inside: 40 / 100. Outside by 10: (40 + 20 x 10) / 100 = 2.4. Together 1.4; half of them inside."""
    found = score([row(100, 100, low=80.0, high=120.0), row(100, 130, low=110.0, high=150.0)])
    assert found is not None
    assert found.interval_score == pytest.approx((0.4 + 2.4) / 2)
    assert found.coverage == 0.5


def test_the_constant_interval_is_a_quarter_to_each_side() -> None:
    """Of 100 it is 75 to 125: 0.5. Of 200 it is 150 to 250, missed by 50: (100 + 20 x 50) / 100 = 11."""
    found = score([row(100, 100), row(100, 200)])
    assert found is not None
    assert found.constant_score == pytest.approx((0.5 + 11) / 2)


def test_known_slips_are_left_out_and_skipped_rows_are_counted() -> None:
    rows = [row(100, 100), row(100, 900, flag="super-linear"), row(100, None, skipped="row r: no such network")]
    found = score(rows)
    assert found is not None
    assert (found.rows, found.answered, found.median) == (2, 1, 0.0)
    assert skipped(rows) == {"no such network": 1}


def test_baselines_are_scored_on_the_rows_that_they_answer() -> None:
    found = score([row(100, 100, baselines={"linear": 130.0}), row(100, 100)])
    assert found is not None
    assert found.baselines["linear"] == pytest.approx((0.3, 0.3))


def test_ranks_with_ties() -> None:
    """Ranks 1, 2.5, 2.5, 4 against 1, 2, 3, 4: covariance 4.5, spreads sqrt(4.5) and sqrt(5)."""
    pairs = [(1.0, 1.0), (2.0, 2.0), (2.0, 3.0), (4.0, 4.0)]
    assert rank_correlation(pairs) == pytest.approx(4.5 / (4.5 * 5) ** 0.5)
    assert rank_correlation(pairs[:2]) is None
    assert rank_correlation([(1.0, 1.0)] * 4) is None


def test_nothing_answered_has_no_score() -> None:
    assert score([row(1, None)]) is None


def test_quantiles_of_one_value() -> None:
    assert quantile([3.0], 0.8) == 3.0


def test_the_largest_group_comes_first() -> None:
    rows = [row(1, 1), row(1, 1), row(1, 1, groups={"machine": "other"})]
    assert [(name, len(found)) for name, found in by_group(rows, "machine").items()] == [("dgx1", 2), ("other", 1)]


def test_the_document_has_every_row() -> None:
    rows = [row(100, 110, low=90.0, high=130.0), row(100, None, skipped="row r: unknown")]
    document = validation_document(rows, anchor="none")
    first, second = document["rows"]  # type: ignore[misc]
    assert (first["predicted"], first["interval"], first["measured"]) == (110, [90.0, 130.0], 100)
    assert first["error"] == pytest.approx(0.1)
    assert second == {
        "row_id": "r", "family": "f", "measured": 100,
        "predicted": None, "interval": None, "error": None, "skipped": "row r: unknown",
    }  # fmt: skip
    assert document["summary"]["f"]["all"]["answered"] == 1  # type: ignore[index]


def test_tables_can_be_made_of_any_rows() -> None:
    rows = [
        row(100, 110, low=90.0, high=130.0),
        row(100, None, skipped="row r: unknown"),
        row(5, 5, several_nodes=True),
    ]
    assert family_table("f", rows).row_count >= 3
    assert rows_table(rows).row_count == 3
    assert worst_table(rows).row_count == 2
