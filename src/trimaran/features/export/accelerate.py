"""A recipe as a configuration file of Hugging Face accelerate.

Names are those of accelerate 1.15: `ClusterConfig`, FSDP version 2, `ParallelismConfig`. It has no
pipelines for training, and no ranks with different experts.
"""

import json
from collections.abc import Iterator

from trimaran.base.units import format_count
from trimaran.features.export.recipe import (
    SETTINGS,
    Exported,
    ExportRecipe,
    lost_account,
    lost_copies,
    lost_order,
    lost_to_fsdp2,
    refuse,
    sharded_by_fsdp2,
)

RELEASE = "1.15"


def to_accelerate(recipe: ExportRecipe) -> Exported:
    """The recipe for accelerate.

    Args:
        recipe: of a plan

    Raises:
        InputError: the plan has what accelerate lacks
    """
    refuse(recipe, "accelerate", _reasons(recipe))
    said, lost = sharded_by_fsdp2(recipe), tuple(_lost(recipe))
    section = _cluster(said)
    return Exported(
        target="accelerate",
        release=RELEASE,
        file_name="trimaran_accelerate.yaml",
        text=_text(said, section, lost),
        sections={"cluster": section, "accelerator": _accelerator(said)},
        next=f"{SETTINGS} accelerate launch --config_file trimaran_accelerate.yaml train.py",
        lost=lost,
        degrees=said,
    )


def _reasons(recipe: ExportRecipe) -> Iterator[str]:
    if recipe.pp > 1:
        yield f"a pipeline of {recipe.pp} stages: accelerate has none for training (--pp 1)"
    if recipe.ep > 1:
        yield f"experts over {recipe.ep} ranks: accelerate has all experts on each (--ep 1)"
    experts = None if recipe.shape is None else recipe.shape.experts
    if experts is not None and recipe.zero and recipe.state_ranks > experts.count:
        yield (
            f"{experts.count} experts over {recipe.state_ranks} ranks that share the state: transformers has them in "
            "one tensor, whose first dimension FSDP2 shards, and fills up to as many experts as ranks"
        )
    if recipe.tp > 1 and recipe.zero == 0 and recipe.dp > 1:
        yield "tensor parallelism with plain replicas: accelerate wants the replicas sharded (--tp 1, or --zero 2)"


def _cluster(recipe: ExportRecipe) -> dict[str, object]:
    sharded = recipe.zero >= 2 and recipe.dp > 1
    ranks = recipe.dp * recipe.tp * recipe.cp
    machines, _ = recipe.nodes(ranks)
    section: dict[str, object] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP" if sharded else "MULTI_GPU" if recipe.devices > 1 else "NO",
        "mixed_precision": {"bf16": "bf16", "fp16": "fp16"}.get(recipe.precision, "no"),
        "num_machines": machines,
        "num_processes": ranks,
        "use_cpu": False,
    }
    if machines > 1:
        section |= {"machine_rank": 0, "main_process_ip": "HOST", "main_process_port": 29500}
    if sharded:
        section["fsdp_config"] = {
            "fsdp_version": 2,
            "fsdp_reshard_after_forward": recipe.zero == 3,
            "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "fsdp_activation_checkpointing": recipe.recompute == "full",
            "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        }
    copies, shared = recipe.copies_of_state() if sharded else (recipe.dp, 1)
    if recipe.tp > 1 or recipe.cp > 1 or (sharded and copies > 1):
        section["parallelism_config"] = {
            "parallelism_config_dp_replicate_size": copies,
            "parallelism_config_dp_shard_size": shared,
            "parallelism_config_tp_size": recipe.tp,
            "parallelism_config_cp_size": recipe.cp,
        }
    if recipe.compiled:
        section["dynamo_config"] = {"dynamo_backend": "INDUCTOR"}
    return section


def _accelerator(recipe: ExportRecipe) -> dict[str, object]:
    """Settings for the script, because the file has no place for them."""
    section: dict[str, object] = {
        "gradient_accumulation_steps": recipe.microbatches,
        "batch_size": recipe.microbatch,
    }
    return section | {"sync_each_batch": True} if scatters_each_time(recipe) else section


def scatters_each_time(recipe: ExportRecipe) -> bool:
    """Whether gradients are scattered at every microbatch; accelerate keeps them whole until the last one by default.

    Args:
        recipe: of a plan
    """
    return recipe.microbatches > 1 and recipe.zero >= 2 and recipe.dp > 1


def _lost(recipe: ExportRecipe) -> Iterator[str]:
    yield from recipe.beyond
    yield from lost_order(recipe)
    yield from lost_account(recipe, "accelerate")
    yield from lost_to_fsdp2(recipe, "accelerate")
    recipe = sharded_by_fsdp2(recipe)
    if recipe.zero >= 2 and recipe.copies_of_state()[0] == 1:
        yield from lost_copies(recipe)
    machines, each = recipe.nodes(recipe.dp * recipe.tp * recipe.cp)
    if machines > 1:
        yield f"machines of {each} ranks: write the first one's address for HOST, on each its number as machine_rank"
    if recipe.precision not in ("fp32", "fp16", "bf16"):
        yield f'precision {recipe.precision}: set by the script; the file says "no" mixed precision'
    if recipe.recompute != "none" and (recipe.recompute != "full" or recipe.zero < 2):
        yield f"recompute {recipe.recompute}: by the script, such as model.gradient_checkpointing_enable()"
    if scatters_each_time(recipe):
        plugin = f"GradientAccumulationPlugin(num_steps={recipe.microbatches}, sync_each_batch=True)"
        yield (
            f"{recipe.microbatches} microbatches, gradients scattered at each: "
            f"Accelerator(gradient_accumulation_plugin={plugin})"
        )
    elif recipe.microbatches > 1:
        yield f"{recipe.microbatches} microbatches: Accelerator(gradient_accumulation_steps={recipe.microbatches})"
    if recipe.clip_norm is not None:
        yield f"clipping: accelerator.clip_grad_norm_(model.parameters(), {recipe.clip_norm})"
    if recipe.bucket_bytes is not None and recipe.dp > 1 and recipe.zero < 2:
        megabytes = max(1, recipe.bucket_bytes // 2**20)
        yield f"bucket size: DistributedDataParallelKwargs(bucket_cap_mb={megabytes}) in the script"


def _text(recipe: ExportRecipe, section: dict[str, object], lost: tuple[str, ...]) -> str:
    lines = [f"# {recipe.job} on {format_count(recipe.devices, 'device')}, for accelerate {RELEASE}."]
    lines += [f"# Not said here: {line}" for line in lost]
    for name, value in section.items():
        if isinstance(value, dict):
            lines.append(f"{name}:")
            lines += [f"  {key}: {json.dumps(inner)}" for key, inner in value.items()]
        else:
            lines.append(f"{name}: {json.dumps(value)}")
    return "\n".join(lines) + "\n"
