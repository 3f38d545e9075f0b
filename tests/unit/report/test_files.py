"""The report of a run as JSON."""

import json
from pathlib import Path

import pytest
from tests import builders
from tests.raising import raises
from tests.unit.report.runs import PROGRAM, measured, predicted

from trimaran.base.decoding import decode_typed
from trimaran.base.errors import EnvironmentProblem
from trimaran.base.files import check_writable
from trimaran.program.json_files import to_plain
from trimaran.report.comparison import compare
from trimaran.report.run_report import RunReport, run_report, write_report
from trimaran.report.svg import check_drawing

REPORT = run_report(
    job="digits",
    strategy=builders.strategy(pp=2, boundaries=("conv2",), schedule="1f1b", microbatches=4),
    prediction=builders.prediction(step_time_s=9.0, interval_s=(8.5, 9.5), peak_bytes=(150, 260)),
    comparison=compare(PROGRAM, predicted(), measured(6)),
    samples_per_s=6.4,
    final={"accuracy": 0.98, "loss": 0.05},
    run_dir="runs/digits",
    environment={"torch": "2.13.0"},
    notes=("the model is one operation",),
)


def test_the_report_has_what_scripts_ask_for() -> None:
    """9 s predicted, 10 s measured: the error is 9 / 10 - 1 = -0.1."""
    document = to_plain(REPORT)
    assert document["plan"]["strategy"] == "pp2 1f1b m4"
    assert document["plan"]["details"]["boundaries"] == ["conv2"]
    predicted = document["predicted"]
    assert isinstance(predicted, dict)
    assert (predicted["step_time_s"], predicted["interval_s"]) == (9.0, [8.5, 9.5])
    assert (predicted["peak_bytes"], predicted["peak_bytes_by_rank"], predicted["epoch_s"]) == (260, [150, 260], None)
    assert document["measured"] == {"step_time_s": pytest.approx(10.0), "steps": 5, "warmup": 1}
    assert document["error"] == pytest.approx(-0.1)
    assert document["samples_per_s"] == 6.4
    assert document["final"]["accuracy"] == 0.98
    assert document["run_dir"] == "runs/digits"
    assert document["notes"] == ["the model is one operation"]


def test_figures_of_ranks_are_lists() -> None:
    """Update of both ranks: 1 s predicted, 0.5 s and 1 s measured."""
    by_rank = to_plain(REPORT)["by_rank"]
    assert by_rank["rank"] == [0, 1]
    assert by_rank["update"] == {
        "predicted_s": [1.0, 1.0],
        "measured_s": [pytest.approx(0.5), pytest.approx(1.0)],
        "error": [pytest.approx(1.0), pytest.approx(0.0)],
    }


def test_every_instruction_is_kept() -> None:
    kept = to_plain(REPORT)["by_instruction"]
    assert kept["instruction"] == [instruction.id for instruction in PROGRAM]
    assert len(kept["predicted_s"]) == len(kept["measured_s"]) == len(kept["error"]) == len(kept["instruction"])


def test_every_kind_is_kept() -> None:
    kinds = {row["kind"]: row for row in to_plain(REPORT)["by_kind"]}
    assert kinds["RECV_F"] == {
        "kind": "RECV_F",
        "count": 1,
        "observed": 1,
        "predicted_s": 0.5,
        "measured_s": pytest.approx(1.0),
        "error": pytest.approx(-0.5),
    }


def test_a_run_without_a_record_has_no_measured_figures() -> None:
    document = to_plain(
        run_report(job="digits", strategy=builders.strategy(), prediction=builders.prediction(step_time_s=9.0))
    )
    assert document["measured"]["step_time_s"] is None
    assert document["error"] is None
    assert document["by_rank"] is None


def test_what_is_written_is_the_document(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write_report(path, REPORT)
    plain = json.loads(path.read_text())
    assert next(iter(plain)) == "schema_version"
    assert plain == {"schema_version": 1} | json.loads(json.dumps(to_plain(REPORT)))
    assert decode_typed(path.read_bytes(), RunReport, source="report.json") == REPORT
    assert [item.name for item in tmp_path.iterdir()] == ["report.json"]


def test_a_file_is_found_to_be_writable_and_nothing_is_changed(tmp_path: Path) -> None:
    there = tmp_path / "there.svg"
    there.write_text("as it was")
    for path in (there, tmp_path / "new.svg"):
        check_writable(path)
        check_drawing(path)
    assert there.read_text() == "as it was"
    assert list(tmp_path.iterdir()) == [there]


@pytest.mark.parametrize("name", ["absent/a.svg", ".", "folder.svg"])
def test_a_file_that_could_not_be_written_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.svg").mkdir()
    with raises("file.unwritable", EnvironmentProblem):
        check_writable(tmp_path / name)


@pytest.mark.parametrize("name", ["a.png", "a", ".svg", ""])
def test_a_drawing_is_not_written_under_the_name_of_another_format(name: str) -> None:
    with raises("drawing.not-svg"):
        check_drawing(Path(name))
