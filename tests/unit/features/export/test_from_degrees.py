"""From parallel degrees without a program to what other runtimes are told."""

import dataclasses
import shlex
from pathlib import Path
from typing import Any

import pytest
from tests import builders
from tests.raising import raises

from trimaran.features.export import export_plan, request_for, write_export
from trimaran.features.export.accelerate import to_accelerate
from trimaran.features.export.megatron import to_megatron
from trimaran.features.export.pytorch import to_pytorch
from trimaran.features.export.recipe import ExportRecipe, recipe_of_degrees, torchrun_ranks
from trimaran.features.export.torchtitan import to_torchtitan
from trimaran.planning.answer.results import Planned
from trimaran.planning.plan import make_plan
from trimaran.program.plan_file import Plan, Prediction, Premises, write_plan
from trimaran.program.strategy import Strategy

FILES = Path(__file__).parents[2] / "program/files"


def plan_of(layers: int | None, precision: str = "bf16", **degrees: Any) -> Plan:
    found = builders.degrees(**degrees)
    strategy = Strategy(**{field.name: getattr(found, field.name) for field in dataclasses.fields(found)})
    premises = Premises(
        graph_digest="",
        global_batch_size=64,
        devices=("H100",) * strategy.devices,
        memory_bytes=(),
        precision=precision,
        layers=layers,
        sequence_length=4096,
    )
    prediction = Prediction(step_time_s=1.0, interval_s=(1.0, 1.0))
    return Plan(job="llama2:70b", strategy=strategy, premises=premises, prediction=prediction)


def recipe(layers: int, **degrees: Any) -> ExportRecipe:
    return recipe_of_degrees(plan_of(layers, **degrees))


def test_uneven_parts_are_kept() -> None:
    found = recipe(
        8, tensor=8, pipeline=2, chunks=2, data=4, microbatches=16, parts=(1, 3, 3, 1), sequence_parallel=True
    )
    assert found.devices == 64
    model = to_megatron(found).sections["model"]
    assert model["pipeline_model_parallel_layout"] == "Et|t*3|t*3|tL"
    named = to_torchtitan(found).sections["parallelism"]["module_fqns_per_model_part"]
    assert named == [
        ["tok_embeddings", "layers.0"],
        ["layers.1", "layers.2", "layers.3"],
        ["layers.4", "layers.5", "layers.6"],
        ["layers.7", "norm", "lm_head"],
    ]


@pytest.mark.parametrize("schedule", ["zero-bubble", "dualpipe", "dualpipev"])
def test_a_schedule_that_is_neither_1f1b_nor_interleaved_is_said(schedule: Any) -> None:
    plan = plan_of(8, pipeline=2, microbatches=8)
    found = recipe_of_degrees(dataclasses.replace(plan, strategy=dataclasses.replace(plan.strategy, schedule=schedule)))
    assert found.schedule == schedule
    assert any(f"schedule {schedule}" in line for line in to_megatron(found).lost)
    with raises("export.not-expressible"):
        to_pytorch(found)


@pytest.mark.parametrize(
    ("cluster", "ranks", "machines", "each"),
    [
        ("dgx-h100:128", 1024, 128, 8),
        ("nc96ads-a100-v4:16", 64, 16, 4),
        ("dgx2:4", 64, 4, 16),
        ("gb200-nvl72:2", 144, 36, 4),  # 18 trays a rack, each an operating system
        ("dgx-h100:2", 12, 2, 6),
        ("", 1024, 128, 8),
        ("missing.toml", 16, 2, 8),
    ],
)
def test_ranks_are_started_on_the_nodes_of_the_cluster(cluster: str, ranks: int, machines: int, each: int) -> None:
    plan = plan_of(8, data=ranks)
    plan = dataclasses.replace(plan, premises=dataclasses.replace(plan.premises, cluster=cluster))
    found = recipe_of_degrees(plan)
    section = to_accelerate(found).sections["cluster"]
    assert (section["num_machines"], section["num_processes"]) == (machines, ranks)
    assert any(f"machines of {each} ranks" in line for line in to_accelerate(found).lost)
    assert torchrun_ranks(found).startswith(f"--nnodes {machines} --nproc-per-node {each} ")


def test_layers_that_do_not_divide_go_to_the_first_parts() -> None:
    assert [stage.layers for stage in recipe(10, pipeline=4).stages] == [3, 3, 2, 2]


def test_recompute_and_sharding_have_the_names_of_the_field() -> None:
    found = recipe(8, data=8, sharding="parameters", recomputed=frozenset({"layers"}))
    assert (found.zero, found.recompute) == (3, "full")
    found = recipe(8, recomputed=frozenset({"attention"}))
    assert found.recompute == "selective"
    assert to_megatron(found).sections["model"]["recompute_granularity"] == "selective"
    assert "recompute_modules" not in to_megatron(found).sections["model"]
    found = recipe(8, recomputed=frozenset({"norms", "activations", "feed_forward"}))
    assert "--recompute-modules mlp layernorm\n" in to_megatron(found).text
    assert [one for one in to_megatron(found).lost if "recompute:activations" in one]
    experts = to_megatron(dataclasses.replace(found, ep=2))
    assert "--recompute-modules moe_act mlp moe layernorm\n" in experts.text
    assert not [one for one in experts.lost if "recompute" in one]
    alone = to_megatron(recipe(8, recomputed=frozenset({"activations"})))
    assert "recompute_granularity" not in alone.sections["model"]


@pytest.mark.parametrize(("packing", "said"), [("packed", "within each"), ("causal", "across"), ("padded", "pad data")])
def test_documents_of_a_plan_are_named(packing: str, said: str) -> None:
    plan = plan_of(8, data=4)
    options = ("--lengths 512:0.4,2048:0.6", f"--packing {packing}", "--sequence 4096")
    found = recipe_of_degrees(dataclasses.replace(plan, premises=dataclasses.replace(plan.premises, options=options)))
    assert any("512:0.4" in line and said in line for line in to_megatron(found).lost)
    assert not any("documents" in line for line in to_megatron(recipe_of_degrees(plan)).lost)


def test_copies_of_sharded_state_are_not_denied_by_the_script_that_has_them() -> None:
    script = to_pytorch(dataclasses.replace(recipe(80, data=8, sharding="parameters"), shard_ranks=4, microbatches=8))
    assert (script.sections["plan"]["replicate"], script.sections["plan"]["shard"]) == (2, 4)
    assert script.sections["plan"]["segments"] == [80]
    assert not any("HSDP" in line for line in script.lost)


def test_another_order_of_ranks_is_exported_or_named() -> None:
    found = dataclasses.replace(recipe(8, tensor=2, pipeline=2, data=4), rank_order=("tp", "pp", "dp"))
    assert to_megatron(found).sections["model"]["use_tp_pp_dp_mapping"] is True
    assert "--use-tp-pp-dp-mapping" in to_megatron(found).text
    assert not any("ranks by" in line for line in to_megatron(found).lost)
    assert any("ranks by tp,pp,dp" in line for line in to_torchtitan(found).lost)
    found = dataclasses.replace(found, rank_order=("pp", "tp", "dp"))
    assert "use_tp_pp_dp_mapping" not in to_megatron(found).sections["model"]
    assert any("ranks by pp,tp,dp" in line for line in to_megatron(found).lost)
    # An order that differs in degrees of 1 alone is the usual one.
    same = dataclasses.replace(recipe(8, tensor=2, data=4), rank_order=("tp", "pp", "cp", "dp"))
    assert same.has_order()
    assert "use_tp_pp_dp_mapping" not in to_megatron(same).sections["model"]


@pytest.fixture(scope="module")
def planned() -> Planned:
    request = builders.cluster_request(
        cluster="hgx-h100:16", devices=128, batch=256, pins=builders.pins(tp=8, pp=4), precision="bf16"
    )
    return make_plan("llama2:13b", request)


def test_a_plan_of_degrees_is_exported(planned: Planned, tmp_path: Path) -> None:
    write_plan(tmp_path / "plan.json", planned.evidence.whole_plan)
    exported = export_plan(tmp_path / "plan.json", "megatron")
    model = exported.sections["model"]
    assert (model["tensor_model_parallel_size"], model["pipeline_model_parallel_size"]) == (8, 4)
    assert model["bf16"] is True
    assert exported.sections["batch"]["micro_batch_size"] == planned.chosen.strategy.microbatch
    assert exported.sections["batch"]["global_batch_size"] == 256
    assert "llama2:13b on 128 devices" in exported.text
    named = export_plan(tmp_path / "plan.json", "torchtitan").sections["parallelism"]["module_fqns_per_model_part"]
    layers = [name for part in named for name in part if name.startswith("layers.")]  # type: ignore[attr-defined]
    assert layers == [f"layers.{number}" for number in range(40)]


@pytest.mark.parametrize("target", ["torchtitan", "pytorch", "accelerate"])
def test_commands_name_the_file_that_is_written(target: str, tmp_path: Path) -> None:
    """torchtitan takes a module's name: the command after `-o other.py` asked for one that was not there."""
    request = request_for("llama3:8b", builders.cluster_request(cluster="dgx-h100:8", devices=64), target)
    planned = make_plan("llama3:8b", request)
    write_plan(tmp_path / "plan.json", planned.evidence.whole_plan)
    exported = export_plan(tmp_path / "plan.json", target)
    written = write_export(exported, tmp_path / "my other.py")
    usual = Path(exported.file_name).stem
    assert usual in exported.next
    assert usual not in written.next + written.text
    words = shlex.split(written.next)
    if target == "torchtitan":
        assert words[0] == f"PYTHONPATH={tmp_path}"
        assert words[words.index("--module") + 1] == "my other"
        assert "PYTHONPATH" not in exported.written_to(Path("other.py")).next
    else:
        assert str(tmp_path / "my other.py") in words


@pytest.mark.parametrize(
    ("number", "stages", "layout"),
    [(1, 2, "Et*9|t*11|t*11|t*9L"), (2, 4, "Et*2|" + "t*2|" * 18 + "t*2L")],
)
def test_files_of_degrees_are_exported(number: int, stages: int, layout: str) -> None:
    exported = export_plan(FILES / f"degrees_{number}.json", "megatron")
    model = exported.sections["model"]
    assert (model["tensor_model_parallel_size"], model["pipeline_model_parallel_size"]) == (8, stages)
    assert model.get("pipeline_model_parallel_layout", layout) == layout
    assert "llama2:13b on 128 devices" in exported.text


def test_what_a_plan_does_not_say_is_named() -> None:
    with raises("export.no-layers"):
        recipe_of_degrees(plan_of(None))
    with raises("precision.unknown", precision="int4"):
        recipe_of_degrees(plan_of(8, "int4"))


def test_products_in_float8_are_said_in_other_words() -> None:
    assert any("fp8" in line for line in recipe_of_degrees(plan_of(8, "float8")).beyond)


def test_what_makes_a_plan_fit_is_exported_with_it() -> None:
    """Types that nobody asked for, by which alone it fits, and whose memory and time it has."""
    plain = plan_of(8, data=8, sharding="optimizer")
    plan = dataclasses.replace(
        plain, premises=dataclasses.replace(plain.premises, framework="megatron", gradients="bf16")
    )
    found = recipe_of_degrees(plan)
    assert found.gradients == "bf16"
    megatron = to_megatron(found)
    assert megatron.sections["data_parallel"]["grad_reduce_in_fp32"] is False
    assert "--grad-reduce-in-bf16" in megatron.text.splitlines()
    assert not any("time:" in line for line in megatron.lost)
    for exported in (to_torchtitan(found), to_accelerate(found)):
        assert any("gradients in bf16" in line for line in exported.lost)
        assert any("time: the plan's is that of megatron" in line for line in exported.lost)
    own = dataclasses.replace(plan, premises=dataclasses.replace(plan.premises, framework="fsdp"))
    assert not any("time:" in line for line in to_torchtitan(recipe_of_degrees(own)).lost)


@pytest.mark.parametrize(("gradients", "exchanged"), [("bf16", "bfloat16"), ("", "float32")])
def test_a_script_exchanges_gradients_in_the_type_of_the_plan(gradients: Any, exchanged: str) -> None:
    plain = plan_of(80, data=8, sharding="gradients")
    plan = dataclasses.replace(plain, premises=dataclasses.replace(plain.premises, gradients=gradients))
    batch = dataclasses.replace(recipe_of_degrees(plan), microbatch=8, microbatches=1)
    assert f"reduce_dtype=torch.{exchanged})" in to_pytorch(batch).text


def test_a_pipeline_of_torchtitan_asks_for_a_later_torch() -> None:
    assert any("Expecting ... arg_mbs" in line for line in to_torchtitan(recipe(8, pipeline=2, microbatches=4)).lost)
    assert not any("arg_mbs" in line for line in to_torchtitan(recipe(8, data=2)).lost)
