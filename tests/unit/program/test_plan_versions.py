"""Plans of degrees are read, and files of other versions are refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.raising import raises

from trimaran.program.plan_file import check_plan, plan_program, read_plan, write_plan

DEGREES = Path(__file__).parent / "files" / "degrees_2.json"


def changed(tmp_path: Path, **values: Any) -> Path:
    """The plan of degrees with other values, as a person would write it."""
    plain = json.loads(DEGREES.read_text()) | values
    del plain["digest"]
    (tmp_path / "plan.json").write_text(json.dumps(plain))
    return tmp_path / "plan.json"


@pytest.mark.parametrize("version", [1, 3, "2", None])
def test_another_version_is_refused(version: object, tmp_path: Path) -> None:
    with raises("file.schema-version"):
        read_plan(changed(tmp_path, schema_version=version))


def test_degrees_are_written_as_they_were_read(tmp_path: Path) -> None:
    plan = read_plan(DEGREES)
    write_plan(tmp_path / "plan.json", plan)
    assert (tmp_path / "plan.json").read_text() == DEGREES.read_text()
    # What only the analytical model chooses is not written where it chose nothing.
    assert "microbatch_group" not in json.loads(DEGREES.read_text())["strategy"]
    assert (plan.strategy.microbatch, plan.has_program) == (8, False)


@pytest.mark.parametrize("use", [plan_program, check_plan])
def test_degrees_are_refused_where_a_program_is_needed_and_told_what_takes_them(use: Any) -> None:
    with raises("plan-file.degrees-only", match=r"llama2:13b on hgx-h100:16.*trimaran export.*trimaran explain"):
        use(read_plan(DEGREES))


def test_wrong_degrees_are_refused(tmp_path: Path) -> None:
    strategy = json.loads(DEGREES.read_text())["strategy"]
    odd = strategy | {"chunks": 1, "segment_layers": [20, 21, 0, 0]}
    with raises("plan-file.wrong-layer-count", match=r"\b4\b.*\b41\b.*\b4\b.*\b1\b.*\b4\b.*\b40\b"):
        read_plan(changed(tmp_path, strategy=odd))
    with raises("file.unknown-key"):
        read_plan(changed(tmp_path, strategy={"tensors": 8}))
    with raises("plan-file.too-many-ranks"):
        read_plan(changed(tmp_path, strategy=strategy | {"dp": 10_000, "pp": 1000}))
