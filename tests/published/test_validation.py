"""Published rows that come with Trimaran, through the predictor. Thresholds are what it reaches, a little rounded up.

Sources of the rows: src/trimaran_studies/published/rows.csv, with their places in its columns source_*.
"""

from collections.abc import Sequence

import pytest

from trimaran.base.errors import TrimaranError
from trimaran_studies.published.rows import published_rows
from trimaran_studies.validation.measurement import Anchor, Row
from trimaran_studies.validation.scores import Score, Scored, score
from trimaran_studies.validation.setups import understand
from trimaran_studies.validation.validate import answer_rows, scored

pytestmark = pytest.mark.published

STEPS = ("single_gpu_time", "dp_throughput", "dp_step_time")


def quiet(what: str, done: int, total: int) -> None:
    """Nobody watches."""


def scores(rows: Sequence[Row], *, anchor: Anchor = "single") -> list[Scored]:
    return [scored(found) for found in answer_rows(rows, anchor, progress=quiet, processes=1)]


def checked(rows: Sequence[Scored]) -> Score:
    found = score(rows)
    assert found is not None
    assert [row.row_id for row in rows if "Trimaran failed" in row.skipped] == []
    return found


def held_out(family: str, source: str = "") -> list[Row]:
    """Rows that nothing was fitted on."""
    rows = published_rows(family)
    return [
        row
        for row in rows
        if row.fields["use"] == "dev" and source in row.fields.get("source_repo", "") and not row.flag
    ]


def test_every_row_names_its_source() -> None:
    for row in published_rows():
        assert row.fields.get("source_repo"), row.row_id
        assert row.fields["use"] in ("calibrate", "dev")


def test_every_row_of_a_step_is_understood() -> None:
    refused = []
    for row in published_rows():
        if row.family in STEPS:
            try:
                understand(row)
            except TrimaranError as error:
                refused.append(error.message)
    assert refused == []


def test_scaling_of_tensorflow_in_2017() -> None:
    """ResNet-50 on three machines with K80 and P100, from one device's figure.

    Linear scaling has 6.1 %, the discount of 2.5 % for every doubling 1.8 %: this is one of few sources where it is
    better than ours.
    """
    rows = [row for row in held_out("dp_throughput", "tensorflow/docs") if row.fields["model"] == "ResNet-50"]
    found = checked(scores(rows))
    assert found.answered == found.rows == 32
    linear, _ = found.baselines["linear"]
    assert found.median <= 0.05
    assert found.median < linear
    assert found.p80 <= 0.08


def test_scaling_of_eight_frameworks_on_one_machine() -> None:
    """DLPerf's ResNet-50, on 2 to 8 V100: loaders that cannot keep up among them."""
    rows = [row for row in held_out("dp_throughput", "DLPerf") if row.anchor and "ResNet" in row.fields["model"]]
    found = checked(scores(rows))
    assert found.answered == found.rows >= 50
    assert found.median <= 0.03
    assert found.p80 <= 0.13
    linear, _ = found.baselines["linear"]
    assert found.median < linear


def test_collectives() -> None:
    found = checked(scores(held_out("collectives")))
    assert found.answered == found.rows
    assert found.median <= 0.08
    assert found.coverage is not None
    assert 0.85 <= found.coverage <= 0.99


def test_memory() -> None:
    found = checked(scores(held_out("memory")))
    assert found.median <= 0.05
    assert found.answered >= 0.98 * found.rows
