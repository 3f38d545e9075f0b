"""A user's table of runs: what it may look like, and what is refused with its place."""

from pathlib import Path
from typing import Any

import pytest
from tests.raising import raises

from trimaran.base.errors import CorruptDataError
from trimaran.convergence.run_tables import parse_table, read_table
from trimaran.convergence.types import CurveTable


def _parse(text: str) -> CurveTable:
    return parse_table(text, file="runs.csv")


def test_runs_of_a_batch_become_one_point() -> None:
    """Mean of 4 and 5 is 4.5; their deviation is 0.5 * sqrt(2) = 0.7071."""
    table = _parse("global_batch,epochs,run\n64,4,a\n64,5,b\n128,6,a\n")
    first, second = table.points
    assert (first.amount, first.runs, first.values) == (4.5, 2, (4.0, 5.0))
    assert first.deviation == pytest.approx(0.70711, abs=1e-5)
    assert (second.amount, second.runs, second.deviation) == (6.0, 1, None)


def test_order_spaces_separators_comments_and_a_byte_order_mark_do_not_matter(tmp_path: Path) -> None:
    plain = _parse("global_batch,epochs\n64,4\n128,6\n")
    (tmp_path / "runs.csv").write_bytes(
        "\ufeff# measured in May\nGlobal Batch ; Epochs\n\n 128 ; 6,0 ;\n64;4.0\n".encode()
    )
    assert read_table(tmp_path / "runs.csv").points == plain.points


def test_steps_become_samples() -> None:
    """100 updates of 64 are 6400 samples; a deviation of 2 updates is one of 128."""
    table = _parse("batch_size,steps,runs,stdev\n64,100,5,2\n")
    assert (table.unit, table.points[0].amount, table.points[0].deviation) == ("samples", 6400.0, 128.0)


def test_epochs_beside_samples_say_what_an_epoch_holds() -> None:
    """12800 samples in 4 epochs are 3200 an epoch; so are 60 updates of 320 in 6."""
    table = _parse("global_batch,epochs,samples\n64,4,12800\n128,6,19200\n")
    assert (table.unit, table.samples_per_epoch) == ("epochs", 3200)
    assert _parse("global_batch,epochs,steps\n64,4,200\n320,6,60\n").samples_per_epoch == 3200


def test_epochs_in_one_row_and_updates_in_another_are_samples_where_an_epoch_is_known() -> None:
    """4 epochs of 12800 are 51200 samples, 440 updates of 128 are 56320; without the 12800 nobody can compare them."""
    table = _parse("global_batch,epochs,steps,samples_per_epoch\n64,4,,12800\n128,,440,12800\n")
    assert (table.unit, [point.amount for point in table.points]) == ("samples", [51200.0, 56320.0])
    assert table.samples_per_epoch == 12800
    with raises("curve-table.unit-missing", match=r"\b2\b.*samples_per_epoch", line=3):
        _parse("global_batch,epochs,steps\n64,4,\n128,,440\n")


def test_updates_of_which_an_epoch_has_few_are_not_compared_with_epochs() -> None:
    """90 epochs of 50000 are 4.50 M samples; as 180 updates of 32768, the last of an epoch smaller, they are 5.90 M."""
    columns = "global_batch,epochs,steps,samples_per_epoch\n"
    with raises("curve-table.epoch-too-short", match=r"\b50000\b.*1\.53", line=3):
        _parse(f"{columns}256,90,,50000\n32768,,180,50000\n")
    told = _parse(f"{columns}256,90,,50000\n1000,,4500,50000\n32768,90,180,50000\n")
    assert [point.amount for point in told.points] == [4.5e6] * 3
    alone = _parse(f"{columns}256,,17550,50000\n32768,,180,50000\n")
    assert (alone.unit, alone.points[1].amount) == ("samples", 180 * 32768.0)


@pytest.mark.parametrize(
    "rows", ["epochs,tokens,samples_per_epoch\n64,4,,3200\n128,,1e6,3200\n", "epochs,tokens\n64,4,\n128,,1e6\n"]
)
def test_the_samples_of_an_epoch_are_asked_for_only_where_they_help(rows: str) -> None:
    with raises("curve-table.unit-missing") as caught:
        _parse(f"global_batch,{rows}")
    assert "samples_per_epoch" not in caught.value.message


def test_an_update_more_or_less_is_no_contradiction() -> None:
    """3199 samples are 49.98 updates of 64: 50 with the smaller last one."""
    assert _parse("global_batch,samples,steps\n64,3199,50\n").points[0].amount == 3199.0


def test_a_smaller_last_update_in_every_epoch_is_no_contradiction() -> None:
    """1437 samples are 23 updates of 64, the last of 29, and 3 of 512: 20 epochs are 460 and 60 of them.

    By whole updates an epoch would have 1472 samples and 1536, 4 % apart; the smaller batch knows it better.
    """
    table = _parse("global_batch,epochs,steps\n64,20,460\n512,20,60\n")
    assert table.samples_per_epoch == 1472
    told = _parse("global_batch,epochs,steps,samples_per_epoch\n64,20,460,1437\n512,20,60,1437\n")
    assert told.samples_per_epoch == 1437
    counted = _parse("global_batch,samples,steps,samples_per_epoch\n512,28740,60,1437\n")
    assert counted.points[0].amount == 28740.0


def test_a_deviation_is_one_of_the_first_amount_of_its_row() -> None:
    """5 of 100 updates are 5 %, which of 4 epochs are 0.2."""
    table = _parse("global_batch,steps,epochs,runs,deviation\n64,100,4,5,5\n")
    assert (table.unit, table.points[0].deviation) == ("epochs", pytest.approx(0.2))
    assert any("taken as one of steps" in note for note in table.notes)


def test_a_deviation_without_runs_is_one_of_two() -> None:
    table = _parse("global_batch,epochs,deviation\n64,4,0.4\n")
    assert (table.points[0].runs, table.points[0].deviation) == (2, pytest.approx(0.4))
    assert any("taken as two" in note for note in table.notes)


def test_a_single_run_has_no_deviation() -> None:
    table = _parse("global_batch,epochs,runs,deviation\n64,4,1,0.4\n")
    assert (table.points[0].runs, table.points[0].deviation) == (1, None)
    assert any("a single run has no deviation" in note for note in table.notes)


def test_runs_that_failed_are_counted_and_left_out() -> None:
    table = _parse("global_batch,epochs,run,reached\n64,4,a,yes\n64,,b,no\n128,20,a,no\n")
    assert [(point.global_batch, point.amount, point.failed) for point in table.points] == [(64, 4.0, 1)]
    assert table.notes == ("batch 128: left out, none of 1 runs reached the target",)


def test_equal_batches_without_names_are_runs_and_it_says_so() -> None:
    table = _parse("global_batch,epochs\n64,4\n64,5\n")
    assert table.points[0].values == (4.0, 5.0)
    assert "batch 64 is there 2 times" in table.notes[0]


def test_a_target_is_kept() -> None:
    assert _parse("global_batch,epochs,target\n64,4,0.97\n128,5,0.97\n").target == 0.97


@pytest.mark.parametrize(
    ("text", "code", "figures"),
    [
        ("", "curve-table.empty", {}),
        ("\n\n# only words\n", "curve-table.empty", {}),
        ("global_batch,epochs\n", "curve-table.no-rows", {}),
        ("batches,epochs\n64,4\n", "curve-table.no-batch-column", {"match": "global_batch", "line": 1}),
        ("global_batch,loss\n64,4\n", "curve-table.no-amount-column", {"line": 1}),
        ("global_batch,epochs,epochs\n64,4,4\n", "curve-table.column-twice", {"match": '"epochs"', "line": 1}),
        (
            "global_batch,epochs\n64,four\n",
            "curve-table.wrong-cell",
            {"match": '"four"', "line": 2, "column": "epochs"},
        ),
        ("global_batch,epochs\n64,4\n128,nan\n", "curve-table.wrong-cell", {"line": 3, "column": "epochs"}),
        ("global_batch,epochs\n64,inf\n", "curve-table.wrong-cell", {"line": 2, "column": "epochs"}),
        ("global_batch,epochs\n64,-4\n", "curve-table.wrong-cell", {"line": 2, "column": "epochs"}),
        ("global_batch,epochs\n64,0\n", "curve-table.wrong-cell", {"line": 2, "column": "epochs"}),
        ("global_batch,epochs\n64,\n", "curve-table.wrong-cell", {"line": 2, "column": "epochs"}),
        (
            "global_batch,epochs\n0,4\n",
            "curve-table.wrong-cell",
            {"match": r"\b1\b", "line": 2, "column": "global_batch"},
        ),
        ("global_batch,epochs\n12.5,4\n", "curve-table.wrong-cell", {"line": 2, "column": "global_batch"}),
        ("global_batch,epochs\n1e300,4\n", "curve-table.wrong-cell", {"line": 2, "column": "global_batch"}),
        ("global_batch,epochs\n,4\n", "curve-table.wrong-cell", {"line": 2, "column": "global_batch"}),
        ("global_batch,epochs\n64,4,7\n", "curve-table.wrong-cell-count", {"match": r"\b3\b", "line": 2}),
        ("global_batch,epochs,reached\n64,4,perhaps\n", "curve-table.wrong-cell", {"line": 2, "column": "reached"}),
        ("global_batch,epochs,reached\n64,,no\n", "curve-table.no-run-reached-target", {"runs": 1}),
        ("global_batch,epochs,run\n64,4,a\n64,5,a\n", "curve-table.run-twice", {"match": r"\b2\b.*\b64\b", "line": 3}),
        (
            "global_batch,epochs,target\n64,4,0.9\n128,5,0.8\n",
            "curve-table.several-tasks",
            {"match": r"\b2\b", "line": 3},
        ),
        (
            "global_batch,epochs,steps\n64,4,200\n128,6,900\n",
            "curve-table.epochs-contradict",
            {"match": r"\b2\b", "line": 3},
        ),
        (
            "global_batch,samples,steps\n64,9999,100\n",
            "curve-table.steps-contradict-samples",
            {"match": r"\b100\b.*\b64\b.*\b6400\b.*\b9999\b", "line": 2},
        ),
        ("global_batch,epochs,samples\n64,4,\n128,,9000\n", "curve-table.unit-missing", {"match": r"\b2\b", "line": 3}),
        ("global_batch,epochs,runs\n64,4,10\n64,5,10\n", "curve-table.means-and-runs", {}),
        (
            "global_batch,epochs,steps\n64,20,460\n512,20,100\n",
            "curve-table.epochs-contradict",
            {"match": r"\b2\b", "line": 3},
        ),
        (
            "global_batch,epochs,runs,deviation\n64,4,5,4.5\n",
            "curve-table.wrong-cell",
            {"column": "deviation"},
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text: str, code: str, figures: dict[str, Any]) -> None:
    with raises(code, **figures):
        _parse(text)


def test_files_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "runs.csv").write_bytes(b"global_batch,epochs\n\xff\xfe64,4\n")
    with raises("file.not-utf8", CorruptDataError):
        read_table(tmp_path / "runs.csv")
    with raises("file.unreadable"):
        read_table(tmp_path / "missing.csv")
    with raises("file.not-regular"):
        read_table(tmp_path)
