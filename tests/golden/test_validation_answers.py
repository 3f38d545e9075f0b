"""Published rows are predicted as they were: what the validation says of each, and each family's scores.

A file a family, a line a row: `[row, predicted]`, or why there is no prediction. What plans by these predictions lose
to the best measured ones is in `regret.json`.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.commands.running import trimaran
from tests.golden.comparison import check, kept

FOLDER = Path(__file__).parent / "answers" / "validate"
FAMILIES = (
    "single_gpu_time",
    "dp_throughput",
    "dp_step_time",
    "mp_throughput",
    "mp_step_time",
    "collectives",
    "peak_memory",
    "activation_memory",
    "time_to_train",
    "feeding",
    "feeding_measured",
)
SCORES = ("all", "nodes", "use", "setting")
"""Of a family; those of machines, networks and sources follow from its rows."""

DIGITS = 10
"""Of a prediction that are kept."""

pytestmark = [pytest.mark.published, pytest.mark.sweep, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """All rows; those that differ in what feeds them, which are told apart only when they are asked for."""
    folder = tmp_path_factory.mktemp("validate")
    found = []
    for options in ((), ("--family", "feeding")):
        done = trimaran("validate", *options, "--json", cwd=folder, timeout_s=900)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout))
    return found


def _family(documents: list[Any], name: str) -> dict[str, Any]:
    document = documents[name.startswith("feeding")]
    rows = [
        [row["row_id"], row["skipped"] if row["predicted"] is None else float(f"{row['predicted']:.{DIGITS}g}")]
        for row in document["rows"]
        if row["family"] == name
    ]
    return {"summary": kept({key: document["summary"][name][key] for key in SCORES}), "rows": rows}


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_predicted_as_it_was(name: str, documents: list[Any]) -> None:
    check(FOLDER / f"{name}.json", _family(documents, name))


def test_plans_lose_what_they_lost(documents: list[Any]) -> None:
    check(FOLDER / "regret.json", kept(documents[0]["regret"]))


def test_no_family_is_left_out(documents: list[Any]) -> None:
    assert {name for document in documents for name in document["summary"]} == set(FAMILIES)
    assert {path.stem for path in FOLDER.glob("*.json")} == {*FAMILIES, "regret"}
