"""Recipes as other runtimes take them: their own classes build what we write."""

import dataclasses
import runpy
import warnings
from pathlib import Path

import pytest
import torch
from tests.raising import raises

from trimaran.features.export.accelerate import to_accelerate
from trimaran.features.export.megatron import to_megatron
from trimaran.features.export.pytorch import to_pytorch
from trimaran.features.export.recipe import ExportRecipe, ExportStage, ScriptSource
from trimaran.features.export.torchtitan import to_torchtitan

HYBRID = ExportRecipe(
    job="llama",
    dp=2,
    tp=4,
    pp=2,
    chunks=2,
    schedule="interleaved",
    sequence_parallel=True,
    stages=(
        ExportStage(modules=("tok_embeddings", "layers.0"), layers=1),
        ExportStage(modules=("layers.1", "layers.2", "layers.3"), layers=3),
        ExportStage(modules=("layers.4", "layers.5"), layers=2),
        ExportStage(modules=("norm", "output"), layers=0),
    ),
    microbatch=2,
    microbatches=8,
    global_batch_size=32,
    sequence_length=4096,
    precision="bf16",
    recompute="full",
    bucket_bytes=40 * 2**20,
    clip_norm=1.0,
)
SHARDED = ExportRecipe(job="gpt2", dp=8, zero=3, microbatch=4, microbatches=2, global_batch_size=64, precision="bf16")


@pytest.fixture
def megatron():
    with warnings.catch_warnings():
        # It says on import which of its optional parts are missing.
        warnings.simplefilter("ignore")
        from megatron.core.distributed import DistributedDataParallelConfig
        from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout
        from megatron.core.transformer.transformer_config import TransformerConfig
    return TransformerConfig, DistributedDataParallelConfig, PipelineParallelLayerLayout


def test_groups_of_microbatches_are_said_to_megatron_and_are_not_those_of_torch():
    """Megatron's option; torch makes 12 rounds for two stages, over which 25 microbatches do not divide."""
    grouped = dataclasses.replace(HYBRID, microbatches=25, microbatch_group=5, global_batch_size=100)
    exported = to_megatron(grouped)
    assert "--microbatch-group-size-per-virtual-pipeline-stage 5" in exported.text
    assert exported.sections["model"]["microbatch_group_size_per_vp_stage"] == 5
    assert any("12 equal rounds" in line for line in to_torchtitan(grouped).lost)
    three = dataclasses.replace(grouped, microbatches=3, microbatch_group=3, global_batch_size=12)
    assert not any("torch interleaves" in line for line in to_torchtitan(three).lost)


@pytest.mark.filterwarnings("ignore:full scope is deprecated")  # of its own default
def test_megatron_builds_the_model_configuration(megatron):
    build = megatron[0]
    section = to_megatron(HYBRID).sections["model"]
    built = build(num_layers=6, hidden_size=64, num_attention_heads=8, pipeline_dtype=torch.bfloat16, **section)
    assert built.tensor_model_parallel_size == 4
    assert built.virtual_pipeline_model_parallel_size == 2
    assert built.recompute_granularity == "full"


def test_megatron_reads_uneven_stages_as_they_are(megatron):
    layout = megatron[2](to_megatron(HYBRID).sections["model"]["pipeline_model_parallel_layout"], 2)
    layout.validate_layer_layout(num_layers=6, mtp_num_layers=0)
    counts = [[[kind.name for kind in chunk].count("decoder") for chunk in rank] for rank in layout.layout]
    assert counts == [[1, 2], [3, 0]]  # stage s of rank s % 2


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_megatron_builds_the_data_parallel_configuration(megatron, zero):
    recipe = dataclasses.replace(SHARDED, zero=zero)
    built = megatron[1](**to_megatron(recipe).sections["data_parallel"])
    assert built.use_distributed_optimizer == (zero > 0)
    assert (built.data_parallel_sharding_strategy == "optim_grads_params") == (zero == 3)


def test_megatron_arguments_name_every_field_once():
    exported = to_megatron(HYBRID)
    options = [line.split()[0] for line in exported.text.splitlines() if not line.startswith("#")]
    assert len(options) == len(set(options))
    for option in ("--tensor-model-parallel-size", "--sequence-parallel", "--pipeline-model-parallel-layout", "--bf16"):
        assert option in options
    assert "--ddp-bucket-size 10485760" in exported.text  # 40 MiB of fp32


def test_accelerate_reads_its_file(tmp_path: Path):
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.utils import DistributedType

    path = tmp_path / "accelerate.yaml"
    path.write_text(to_accelerate(SHARDED).text)
    config = load_config_from_file(str(path))
    assert config.distributed_type == DistributedType.FSDP
    assert config.num_processes == 8
    assert config.fsdp_config["fsdp_reshard_after_forward"] is True
    assert config.mixed_precision == "bf16"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [({"pp": 2}, "a pipeline of 2 stages"), ({"ep": 2}, "experts over 2 ranks"), ({"tp": 2, "zero": 0}, "replicas")],
)
def test_what_accelerate_lacks_is_refused(settings, reason):
    with raises("export.not-expressible") as caught:
        to_accelerate(dataclasses.replace(SHARDED, **settings))
    assert reason in str(caught.value)


def test_accelerate_builds_its_plugins(monkeypatch):
    from accelerate import ParallelismConfig
    from accelerate.utils import FullyShardedDataParallelPlugin

    monkeypatch.setenv("FSDP_VERSION", "2")
    recipe = dataclasses.replace(SHARDED, tp=2)
    cluster = to_accelerate(recipe).sections["cluster"]
    section = cluster["parallelism_config"]
    built = ParallelismConfig(**{name.removeprefix("parallelism_config_"): value for name, value in section.items()})
    assert built.total_size == recipe.devices
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, reshard_after_forward=cluster["fsdp_config"]["fsdp_reshard_after_forward"]
    )
    assert plugin.reshard_after_forward is True


def test_torchtitan_builds_its_sections(tmp_path: Path):
    config = pytest.importorskip("torchtitan.config", reason="torchtitan is not installed: pip install '.[targets]'")
    path = tmp_path / "sections.py"
    path.write_text(to_torchtitan(HYBRID).text)
    built = runpy.run_path(str(path))
    parallelism = built["parallelism"]
    assert isinstance(parallelism, config.ParallelismConfig)
    assert parallelism.pipeline_parallel_schedule == "Interleaved1F1B"
    assert parallelism.module_fqns_per_model_part[1] == ["layers.1", "layers.2", "layers.3"]
    assert built["training"].local_batch_size == 16


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved", "zero-bubble", "dualpipe", "dualpipev"])
def test_schedules_of_torchtitan_are_those_of_torch(schedule):
    from torch.distributed.pipelining.schedules import get_schedule_class

    recipe = dataclasses.replace(HYBRID, schedule=schedule)
    get_schedule_class(to_torchtitan(recipe).sections["parallelism"]["pipeline_parallel_schedule"])


def test_what_is_lost_is_said():
    assert "num_steps=2" in " ".join(to_accelerate(SHARDED).lost)
    assert any(
        "zero-bubble" in line for line in to_torchtitan(dataclasses.replace(HYBRID, schedule="zero-bubble")).lost
    )
    assert any("zero-bubble" in line for line in to_megatron(dataclasses.replace(HYBRID, schedule="zero-bubble")).lost)
    split = dataclasses.replace(
        HYBRID, stages=(*HYBRID.stages[:3], ExportStage(modules=("norm",), layers=0, split=("layers.5",)))
    )
    for write in (to_torchtitan, to_megatron):
        assert any("layers.5" in line for line in write(split).lost)


def test_a_job_that_does_not_clip_is_not_clipped_by_the_default_of_the_target():
    """Megatron clips to a norm of 1 unless told, as torchtitan does; 0 is none to Megatron."""
    plain = ExportRecipe(job="digits", dp=4, microbatch=8, global_batch_size=32, source=ScriptSource(form="input"))
    assert "--clip-grad 0.0" in to_megatron(plain).text
    assert to_torchtitan(plain).sections["training"]["max_norm"] > 1e20
    # What trains a decoder by name is not decided.
    assert "clip_grad" not in to_megatron(dataclasses.replace(plain, source=None)).sections["batch"]


def test_copies_of_sharded_state_are_exported_where_the_target_has_them():
    hybrid = dataclasses.replace(SHARDED, shard_ranks=4)
    sections = [to_torchtitan(hybrid).sections["parallelism"]]
    sections.append(to_accelerate(hybrid).sections["cluster"]["parallelism_config"])
    for section, names in zip(sections, ("data_parallel_{}_degree", "parallelism_config_dp_{}_size"), strict=True):
        assert [section[names.format(one)] for one in ("replicate", "shard")] == [2, 4]
    for write in (to_torchtitan, to_accelerate):
        assert not any("HSDP" in line for line in write(hybrid).lost)
    assert any("HSDP" in line for line in to_megatron(hybrid).lost)
    # A copy within the ranks that share a sequence: no size of these runtimes says it.
    within = dataclasses.replace(SHARDED, cp=4, shard_ranks=2)
    assert to_torchtitan(within).sections["parallelism"]["data_parallel_shard_degree"] == 8
    assert any("HSDP" in line for line in to_torchtitan(within).lost)


def test_a_script_says_what_of_its_job_it_does_not_do():
    source = ScriptSource(form="input", callbacks=("on_step",), drop_last=False)
    lost = " ".join(
        to_pytorch(ExportRecipe(job="digits", dp=4, microbatch=8, global_batch_size=32, source=source)).lost
    )
    assert "Job.on_step: the script calls none" in lost
    assert "Job.drop_last" in lost


def test_a_plain_recipe_loses_nothing():
    plain = ExportRecipe(job="digits", dp=4, microbatch=8, global_batch_size=32)
    for write in (to_torchtitan, to_megatron, to_accelerate):
        assert write(plain).lost == ()
