"""PlanBench's table on a part of the rows, and peers that are not there or are others."""

import csv
import subprocess
import tomllib
from dataclasses import replace
from importlib import resources
from pathlib import Path

import pytest
from tests.raising import raises

from trimaran.base.errors import EnvironmentProblem
from trimaran.base.progress import ignore_progress
from trimaran_studies.published.rows import published_rows
from trimaran_studies.validation.peers import COMMITS, _asked, _cases_of, compare_peers
from trimaran_studies.validation.planbench import planbench, planbench_document, planbench_tables
from trimaran_studies.validation.regret import GapClosed


@pytest.fixture
def grid(tmp_path: Path) -> Path:
    """The plans of one job: 20 layers of 2,048 on eight A100, two sequences."""
    text = (resources.files("trimaran_studies.published") / "rows.csv").read_text()
    rows = csv.DictReader(text.splitlines())
    kept = [
        row for row in rows if "vTrain" in row["source_repo"] and (row["n_gpus"], row["global_batch"]) == ("8", "2")
    ]
    assert kept
    path = tmp_path / "grid.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows.fieldnames or ())
        writer.writeheader()
        writer.writerows(kept)
    return path


def test_a_grid_has_one_line_and_the_gap_that_is_closed(grid: Path) -> None:
    bench = planbench([grid], progress=ignore_progress)
    assert [(line.part, line.name) for line in bench.lines] == [("grids", "VIA-Research/vTrain"), ("grids", "all")]
    line = planbench_document(bench)["lines"][0]  # type: ignore[index]
    assert (line["jobs"], line["jobs_apart"]) == (1, 1)
    assert line["rule_of_thumb_regret"] > line["regret"] >= 1.0
    assert line["gap_closed"] == pytest.approx(
        (line["rule_of_thumb_regret"] - line["regret"]) / (line["rule_of_thumb_regret"] - 1.0)
    )
    assert next(table.row_count for table in planbench_tables(bench)) == 2


def test_where_the_guides_plan_is_the_best_one_nothing_is_closed(grid: Path) -> None:
    """Without the plan that is faster than the guides' by more than noise there is a job, and no gap."""
    bench = planbench([grid], progress=ignore_progress)
    lines = tuple(replace(line, gap=GapClosed(jobs=0, of=1)) for line in bench.lines)
    _, choices = planbench_tables(replace(bench, lines=lines))
    assert [list(column.cells) for column in choices.columns][5] == ["–", "–"]


def test_a_folder_without_peers_is_refused(tmp_path: Path) -> None:
    with raises("planbench.no-peers"):
        compare_peers(tmp_path, {})


def test_a_peer_of_another_commit_is_refused(tmp_path: Path) -> None:
    checkout = tmp_path / "calculon"
    checkout.mkdir()
    subprocess.run(["git", "init", "--quiet", str(checkout)], check=True)
    with raises("planbench.other-commit", expected=COMMITS["calculon"]):
        compare_peers(tmp_path, {})


def test_a_peer_that_cannot_be_run_says_so(tmp_path: Path) -> None:
    cases = list(_cases_of(published_rows("mp_step_time")[:5]))
    assert cases
    (tmp_path / "calculon").mkdir()
    with raises("planbench.peer-fails", EnvironmentProblem, peer="calculon"):
        _asked("calculon", tmp_path, cases)


def test_the_command_is_declared() -> None:
    declared = tomllib.loads((Path(__file__).parents[4] / "pyproject.toml").read_text())
    assert "planbench" in declared["project"]["entry-points"]["trimaran.commands"]
