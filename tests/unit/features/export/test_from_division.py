"""From the division of a transformer to what other runtimes are told."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests import builders
from tests.raising import raises

from trimaran.features.export import export_plan
from trimaran.features.export.megatron import to_megatron
from trimaran.features.export.recipe import recipe_of_degrees
from trimaran.features.export.torchtitan import to_torchtitan
from trimaran.planning.plan import make_plan
from trimaran.planning.plan_files import write_planned
from trimaran.planning.results import ClosedForm, Planned
from trimaran.program import read_plan

FIGURES = {"job": "llama2:70b", "global_batch_size": 64, "sequence_length": 4096, "precision": "bf16"}


def test_uneven_parts_are_kept() -> None:
    division = builders.division(
        tensor=8, pipeline=2, chunks=2, data=4, microbatches=16, parts=(1, 3, 3, 1), sequence_parallel=True
    )
    recipe = recipe_of_degrees(division, layers=8, **FIGURES)
    assert recipe.devices == division.devices == 64
    model = to_megatron(recipe).sections["model"]
    assert model["pipeline_model_parallel_layout"] == "Et|t*3|t*3|tL"
    named = to_torchtitan(recipe).sections["parallelism"]["module_fqns_per_model_part"]
    assert named == [
        ["tok_embeddings", "layers.0"],
        ["layers.1", "layers.2", "layers.3"],
        ["layers.4", "layers.5", "layers.6"],
        ["layers.7", "norm", "lm_head"],
    ]


def test_layers_that_do_not_divide_go_to_the_first_parts() -> None:
    recipe = recipe_of_degrees(builders.division(pipeline=4), layers=10, **FIGURES)
    assert [stage.layers for stage in recipe.stages] == [3, 3, 2, 2]


def test_recompute_and_sharding_have_the_names_of_the_field() -> None:
    division = builders.division(data=8, sharding="parameters", recomputed=frozenset({"layers"}))
    recipe = recipe_of_degrees(division, layers=8, **FIGURES)
    assert (recipe.zero, recipe.recompute) == (3, "full")
    recipe = recipe_of_degrees(builders.division(recomputed=frozenset({"attention"})), layers=8, **FIGURES)
    assert recipe.recompute == "selective"
    assert to_megatron(recipe).sections["model"]["recompute_granularity"] == "selective"


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Planned, dict[str, Any]]:
    request = builders.cluster_request(
        cluster="hgx-h100:16", devices=128, batch=256, pins=builders.pins(tp=8, pp=4), precision="bf16"
    )
    found = make_plan("llama2:13b", request)
    assert isinstance(found.evidence, ClosedForm)
    path = tmp_path_factory.mktemp("divided") / "plan.json"
    write_planned(path, found)
    return found, json.loads(path.read_text())


def written(tmp_path: Path, plain: dict[str, Any]) -> Path:
    (tmp_path / "plan.json").write_text(json.dumps(plain))
    return tmp_path / "plan.json"


def test_the_file_of_a_division_is_exported(planned: tuple[Planned, dict[str, Any]], tmp_path: Path) -> None:
    found, plain = planned
    division = found.chosen.division
    exported = export_plan(written(tmp_path, plain), "megatron")
    model = exported.sections["model"]
    assert (model["tensor_model_parallel_size"], model["pipeline_model_parallel_size"]) == (8, 4)
    assert model["bf16"] is True
    assert exported.sections["batch"]["micro_batch_size"] == division.microbatch
    assert exported.sections["batch"]["global_batch_size"] == 256
    assert "llama2:13b on 128 devices" in exported.text
    named = export_plan(written(tmp_path, plain), "torchtitan").sections["parallelism"]["module_fqns_per_model_part"]
    layers = [name for part in named for name in part if name.startswith("layers.")]  # type: ignore[attr-defined]
    assert layers == [f"layers.{number}" for number in range(40)]


def test_a_file_of_version_1_is_read_under_the_names_of_today() -> None:
    exported = export_plan(Path(__file__).parent / "files" / "degrees_version_1.json", "megatron")
    model = exported.sections["model"]
    assert (model["tensor_model_parallel_size"], model["pipeline_model_parallel_size"]) == (8, 2)
    assert model["pipeline_model_parallel_layout"] == "Et*9|t*11|t*11|t*9L"
    assert "llama2:13b on 128 devices" in exported.text


def test_what_the_file_of_a_division_does_not_say_is_named(
    planned: tuple[Planned, dict[str, Any]], tmp_path: Path
) -> None:
    lost = {name: value for name, value in planned[1].items() if name != "layers"}
    with raises("file.wrong-value", match="layers"):
        export_plan(written(tmp_path, lost), "megatron")
    odd = planned[1] | {"division": planned[1]["division"] | {"chunks": 1, "parts": [20, 21, 0, 0]}}
    with raises("export.wrong-layer-count", match=r"\b4\b.*\b41\b.*\b4\b.*\b1\b.*\b4\b.*\b40\b"):
        export_plan(written(tmp_path, odd), "megatron")
    with raises("precision.unknown", precision="int4"):
        export_plan(written(tmp_path, planned[1] | {"precision": "int4"}), "megatron")
    with raises("file.unknown-key"):
        export_plan(written(tmp_path, planned[1] | {"division": {"tensors": 8}}), "megatron")


def test_products_in_float8_are_said_in_other_words(planned: tuple[Planned, dict[str, Any]], tmp_path: Path) -> None:
    exported = export_plan(written(tmp_path, planned[1] | {"precision": "fp8"}), "megatron")
    assert any("fp8" in line for line in exported.lost)


def test_degrees_without_a_program_are_not_read_as_a_plan(
    planned: tuple[Planned, dict[str, Any]], tmp_path: Path
) -> None:
    with raises("plan-file.degrees-only", match="llama2:13b.*hgx-h100:16"):
        read_plan(written(tmp_path, planned[1]))
