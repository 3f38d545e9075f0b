"""Plans for a target, and whether what is written for it fits and is whole."""

import dataclasses
import runpy
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.raising import raises

from trimaran.base.errors import InfeasibleError
from trimaran.features.export import export_plan, request_for
from trimaran.features.export.accelerate import to_accelerate
from trimaran.features.export.fitting import TARGETS, check_fits, command_for
from trimaran.features.export.launching import transformers_config
from trimaran.features.export.megatron import to_megatron
from trimaran.features.export.pytorch import to_pytorch
from trimaran.features.export.recipe import Exported, ExportRecipe, recipe_of_degrees
from trimaran.features.export.torchtitan import to_torchtitan
from trimaran.features.price import Pricing, Setting
from trimaran.jobs.resolve import JobSource
from trimaran.planner.pins import Pins
from trimaran.planning.analytical import decoder_of_job
from trimaran.planning.requests import PlanRequest, parse_software
from trimaran.pricing.analytical.layers import parameter_count, prediction_count
from trimaran.pricing.analytical.shapes import TransformerShape
from trimaran.program.plan_file import Plan, Prediction, Premises, write_plan
from trimaran.program.strategy import read_strategy

CLUSTER = "dgx-h100:128"


def plan_of(job: str, strategy: str, *, batch: int = 1024, framework: str = "megatron") -> Plan:
    found = decoder_of_job(job, PlanRequest())
    assert found is not None
    said = read_strategy(strategy)
    said = dataclasses.replace(said, sequence_parallel=said.tp > 1)
    premises = Premises(
        graph_digest="",
        global_batch_size=batch,
        devices=("NVIDIA H100 SXM5 80 GB",) * said.devices,
        memory_bytes=(),
        cluster=CLUSTER,
        precision="bf16",
        layers=found.shape.layers,
        sequence_length=4096,
        framework=framework,
    )
    return Plan(
        job=job, strategy=said, premises=premises, prediction=Prediction(step_time_s=1.0, interval_s=(1.0, 1.0))
    )


def shape_of(job: str) -> TransformerShape:
    found = decoder_of_job(job, PlanRequest(options={"sequence": "4096"}))
    assert found is not None
    return found.shape


def recipe(job: str, **settings: Any) -> ExportRecipe:
    settings = {"dp": 8, "zero": 3, "microbatch": 1, "global_batch_size": 8, "precision": "bf16"} | settings
    return ExportRecipe(job=job, shape=shape_of(job), sequence_length=4096, **settings)


# ---------------------------------------------------------------------------------------------------------------------
# What is written is priced


@pytest.mark.parametrize(
    ("job", "strategy", "target", "zero"),
    [
        ("llama2:70b", "dp64 pp4 interleaved x10 tp4 zero1 m8 mb2", "torchtitan", None),
        ("llama2:70b", "dp64 pp4 interleaved x10 tp4 zero1 m8 mb2", "pytorch", None),
        ("llama2:70b", "dp64 pp4 interleaved x10 tp4 zero1 m8 mb2 bf16-gradients", "megatron", 1),
        ("qwen3:32b", "dp256 tp4 zero1 m2 mb2", "torchtitan", 2),
        ("llama3:8b", "dp1024 zero1", "accelerate", 2),
        ("llama3:8b", "dp1024", "accelerate", None),
        ("mixtral:8x7b", "dp1024 zero3", "pytorch", 3),
        ("deepseek-v3", "dp128 tp8 zero1 mb8", "megatron", None),
    ],
)
def test_an_export_fits_by_the_price_of_what_it_says_or_is_refused(
    tmp_path: Path, job: str, strategy: str, target: str, zero: int | None
) -> None:
    """Replicas of 163.9 GiB were written for torchtitan in place of ZeRO-1, for 79.1 GiB."""
    path = tmp_path / "plan.json"
    write_plan(path, plan_of(job, strategy))
    if zero is None:
        with raises("export.does-not-fit", InfeasibleError) as caught:
            export_plan(path, target)
        assert f"--devices 1024 --batch 1024 --to {target} -o plan.json" in str(caught.value)
        return
    exported = export_plan(path, target)
    assert exported.degrees is not None
    assert exported.degrees.zero == zero
    software = TARGETS[target].software
    request = PlanRequest(
        cluster=CLUSTER,
        devices=1024,
        batch=1024,
        software=parse_software(software) if software else None,
        options={"sequence": "4096"},
    )
    said = dataclasses.replace(
        read_strategy(strategy), zero=exported.degrees.zero, recomputed=exported.degrees.recomputed
    )
    priced = Pricing(JobSource(reference=job), request)
    fit = priced.price(Setting(strategy=said.name)).fit
    assert fit.need.usual <= fit.room


def test_a_plan_without_a_cluster_says_that_it_is_not_priced() -> None:
    plan = plan_of("llama3:8b", "dp64 zero3", batch=64)
    plan = dataclasses.replace(plan, premises=dataclasses.replace(plan.premises, cluster=""))
    exported = check_fits(plan, to_torchtitan(recipe_of_degrees(plan)))
    assert any("does not say its cluster" in line for line in exported.lost)


def test_a_command_for_a_target_has_what_the_plan_was_asked() -> None:
    plan = plan_of("llama3:8b", "dp64 zero1", batch=64)
    options = ("--software megatron:2024", "--sequence 4096")
    plan = dataclasses.replace(plan, premises=dataclasses.replace(plan.premises, options=options))
    said = command_for(plan, "accelerate")
    assert said.endswith("--devices 64 --batch 64 --sequence 4096 --to accelerate -o plan.json")


# ---------------------------------------------------------------------------------------------------------------------
# Plans are for what the target can run


@pytest.mark.parametrize(
    ("job", "target", "forbidden"),
    [
        ("llama2:70b", "megatron", ()),
        ("llama2:70b", "torchtitan", ()),
        ("llama2:70b", "accelerate", ("cp", "ep", "pp", "tp")),
        ("llama2:70b", "pytorch", ("cp", "ep")),
        ("mixtral:8x7b", "pytorch", ("cp", "ep", "tp")),
        ("qwen3:4b", "pytorch", ("cp", "ep", "pp")),
        ("llama3:1b", "torchtitan", ("pp",)),
        ("deepseek-v3", "torchtitan", ("cp", "pp")),
    ],
)
def test_a_plan_for_a_target_has_only_what_it_can_run(job: str, target: str, forbidden: tuple[str, ...]) -> None:
    asked = request_for(job, PlanRequest(cluster=CLUSTER), target)
    assert asked.pins.forbid == forbidden
    software = TARGETS[target].software
    assert asked.software is None if not software else asked.software is not None and asked.software.text == software
    assert (asked.pins.etp, asked.pins.ulysses) == (
        (1 if "mixtral" in job or "deepseek" in job else None, False) if target == "torchtitan" else (None, None)
    )


@pytest.mark.parametrize(
    ("pins", "target"), [(Pins(tp=8), "accelerate"), (Pins(ep=8), "pytorch"), (Pins(allow=("cp",)), "pytorch")]
)
def test_what_is_asked_and_a_target_lacks_is_refused(pins: Pins, target: str) -> None:
    request = PlanRequest(cluster=CLUSTER, devices=1024, pins=pins)
    with raises("plan.target-lacks", target=target):
        request_for("mixtral:8x7b", request, target)


def test_a_job_of_its_own_model_is_planned_for_a_target_too() -> None:
    assert "placement" in request_for("resnet50", PlanRequest(), "pytorch").pins.forbid
    with raises("plan.target-lacks"):
        request_for("resnet50", PlanRequest(pins=Pins(pp=2)), "accelerate")


# ---------------------------------------------------------------------------------------------------------------------
# What is written is whole


def test_degrees_of_experts_are_written() -> None:
    found = recipe("mixtral:8x7b", ep=8, expert_tp=1)
    assert to_torchtitan(found).sections["parallelism"]["expert_parallel_degree"] == 8
    model = to_megatron(found).sections["model"]
    assert (model["expert_model_parallel_size"], model["expert_tensor_parallel_size"]) == (8, 1)
    text = to_megatron(found).text
    assert {"--expert-model-parallel-size 8", "--num-experts 8", "--moe-router-topk 2"} <= {*text.splitlines()}
    # Replicas that share nothing have no ranks for experts: torchtitan takes them of those that shard the state.
    whole = to_torchtitan(dataclasses.replace(found, zero=0))
    assert whole.sections["parallelism"]["data_parallel_shard_degree"] == 8
    with raises("export.not-expressible"):
        to_torchtitan(dataclasses.replace(found, shard_ranks=4))


@pytest.mark.parametrize(
    ("job", "write", "reason"),
    [
        ("gemma2:9b", to_torchtitan, "norms behind sub-layers"),
        ("gpt2:1.5b", to_torchtitan, "positions that are learned"),
        ("qwen2.5:7b", to_torchtitan, "biases"),
        ("gemma2:9b", to_megatron, "norms behind sub-layers"),
        ("deepseek-v3", to_pytorch, "latent attention"),
        ("gpt-oss:20b", to_pytorch, "sinks of attention"),
        ("mixtral:8x7b", to_accelerate, "8 experts over 16 ranks"),
    ],
)
def test_a_network_that_a_target_has_not_is_refused_by_name(
    job: str, write: Callable[[ExportRecipe], Exported], reason: str
) -> None:
    with raises("export.not-expressible") as caught:
        write(recipe(job, dp=16, global_batch_size=16))
    assert reason in str(caught.value)


def test_layers_that_predict_further_tokens_are_in_no_pipeline_of_torchtitan() -> None:
    assert "num_mtp_layers=1" in to_torchtitan(recipe("deepseek-v3")).text
    with raises("export.not-expressible"):
        to_torchtitan(recipe("deepseek-v3", pp=2, microbatches=1))


@pytest.mark.parametrize("job", ["llama2:70b", "qwen3:32b", "qwen3:0.6b", "mixtral:8x7b", "qwen3:30b-a3b"])
def test_a_script_has_the_parameters_of_its_network(tmp_path: Path, job: str) -> None:
    path = tmp_path / "script.py"
    path.write_text(to_pytorch(recipe(job)).text)
    segment = runpy.run_path(str(path))["Segment"]
    with torch.device("meta"):
        model = segment(0, lambda module, prefix: module)
    assert sum(one.numel() for one in model.parameters()) == parameter_count(shape_of(job))


@pytest.mark.parametrize("job", ["llama2:70b", "qwen3:32b", "mixtral:8x7b", "qwen3:30b-a3b"])
def test_a_script_for_accelerate_has_the_parameters_of_its_network(job: str) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers_config(shape_of(job))
    assert config is not None
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, config.name)(**config.settings))
    assert sum(one.numel() for one in model.parameters()) == parameter_count(shape_of(job))


@pytest.mark.parametrize(
    "job", ["llama2:70b", "mixtral:8x7b", "qwen3:8b", "qwen3:30b-a3b", "deepseek-v3", "gpt-oss:20b"]
)
def test_torchtitan_builds_the_network(tmp_path: Path, job: str) -> None:
    pytest.importorskip("torchtitan", reason="torchtitan is not installed: pip install '.[targets]'")
    path = tmp_path / "titan.py"
    path.write_text(to_torchtitan(recipe(job)).text)
    config = runpy.run_path(str(path))["trainer"]()
    with torch.device("meta"):
        model = config.model_spec.model.build()
    shape = shape_of(job)
    assert sum(one.numel() for one in model.parameters()) == parameter_count(shape) + prediction_count(shape)


@pytest.mark.filterwarnings("ignore:full scope is deprecated")  # of its own default
@pytest.mark.parametrize("job", ["llama2:70b", "qwen3:32b", "mixtral:8x7b", "deepseek-v3", "gpt-oss:20b", "gpt2:1.5b"])
def test_megatron_takes_the_network(job: str) -> None:
    with warnings.catch_warnings():
        # It says on import which of its optional parts are missing.
        warnings.simplefilter("ignore")
        from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
    shape, found = shape_of(job), to_megatron(recipe(job, ep=8 if shape_of(job).experts else 1))
    build = TransformerConfig if shape.latent is None else MLATransformerConfig
    built = build(**found.sections["model"])
    assert (built.num_layers, built.hidden_size, built.num_query_groups) == (shape.layers, shape.hidden, shape.kv_heads)
    experts = shape.experts
    assert built.num_moe_experts == (None if experts is None else experts.count)
    assert ("untie_embeddings_and_output_weights" in found.sections["network"]) != shape.tied
