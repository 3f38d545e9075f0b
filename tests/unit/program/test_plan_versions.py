"""Plan files of all versions are read: plans with a program, and files of degrees, once a kind of their own."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.raising import raises

from trimaran.program.plan_file import Plan, check_plan, plan_program, read_plan, write_plan

FILES = Path(__file__).parent / "files"


def changed(tmp_path: Path, **values: Any) -> Path:
    """The file of degrees of version 2 with other values."""
    plain = json.loads((FILES / "degrees_version_2.json").read_text()) | values
    (tmp_path / "plan.json").write_text(json.dumps(plain))
    return tmp_path / "plan.json"


def test_a_plan_of_version_1_is_read_as_it_was() -> None:
    plan = read_plan(FILES / "plan_version_1.json")
    plain = json.loads((FILES / "plan_version_1.json").read_text())
    assert (plan.job, plan.strategy.name, plan.has_program) == ("lenet", "dp2 b32KiB", True)
    assert len(plan_program(plan).ranks) == plan.strategy.devices == 2
    assert plan.prediction.step_time_s == plain["prediction"]["step_time_s"]
    assert len(plan.candidates) == len(plain["candidates"])


@pytest.mark.parametrize(("version", "degrees", "layers"), [(1, (8, 2, 2), (9, 11, 11, 9)), (2, (8, 4, 5), (2,) * 20)])
def test_degrees_of_both_versions_are_read_under_the_names_of_today(
    version: int, degrees: tuple[int, ...], layers: tuple[int, ...]
) -> None:
    plan = read_plan(FILES / f"degrees_version_{version}.json")
    strategy, premises = plan.strategy, plan.premises
    assert (strategy.tp, strategy.pp, strategy.chunks) == degrees
    assert (strategy.segment_layers or layers) == layers
    assert (plan.job, premises.layers, premises.sequence_length, len(premises.devices)) == ("llama2:13b", 40, 4096, 128)
    assert not plan.has_program


def test_degrees_keep_what_was_predicted_and_for_which_machine() -> None:
    plan = read_plan(FILES / "degrees_version_2.json")
    plain = json.loads((FILES / "degrees_version_2.json").read_text())
    assert plan.premises.cluster == plain["cluster"]
    assert plan.prediction.step_time_s == plain["chosen"]["step_time_s"]
    assert list(plan.prediction.interval_s) == plain["chosen"]["interval_s"]
    assert list(plan.prediction.peak_bytes) == plain["chosen"]["peak_bytes"]


@pytest.mark.parametrize("name", ["plan_version_1", "degrees_version_1", "degrees_version_2"])
def test_what_was_read_is_written_as_version_2(name: str, tmp_path: Path) -> None:
    plan = read_plan(FILES / f"{name}.json")
    write_plan(tmp_path / "plan.json", plan)
    plain = json.loads((tmp_path / "plan.json").read_text())
    assert plain["schema_version"] == 2
    assert read_plan(tmp_path / "plan.json") == plan
    # What only the analytical model chooses is not written of a program.
    assert ("microbatch_group" in plain["strategy"]) is False
    assert ("microbatch" in plain["strategy"]) == (plan.strategy.microbatch != 1)


@pytest.mark.parametrize("use", [plan_program, check_plan])
def test_degrees_are_refused_where_a_program_is_needed_and_told_what_takes_them(use: Any) -> None:
    plan: Plan = read_plan(FILES / "degrees_version_2.json")
    with raises("plan-file.degrees-only", match=r"llama2:13b on hgx-h100:16.*trimaran export.*trimaran explain"):
        use(plan)


def test_wrong_degrees_are_refused(tmp_path: Path) -> None:
    degrees = json.loads((FILES / "degrees_version_2.json").read_text())["division"]
    odd = degrees | {"chunks": 1, "parts": [20, 21, 0, 0]}
    with raises("plan-file.wrong-layer-count", match=r"\b4\b.*\b41\b.*\b4\b.*\b1\b.*\b4\b.*\b40\b"):
        read_plan(changed(tmp_path, division=odd))
    with raises("file.unknown-key"):
        read_plan(changed(tmp_path, division={"tensors": 8}))
    with raises("file.wrong-value", match="layers"):
        read_plan(changed(tmp_path, layers="many"))
    with raises("file.schema-version"):
        read_plan(changed(tmp_path, schema_version=3))
