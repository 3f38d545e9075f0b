"""A recipe as a configuration of torchtitan: Python, because its sections are dataclasses.

Names of options and schedules are those of torchtitan 0.3 (`torchtitan/config/configs.py`) and of
`torch.distributed.pipelining`.
"""

import json
from collections.abc import Iterator
from itertools import accumulate

from trimaran.base.units import format_count
from trimaran.features.export.recipe import Exported, Recipe, lost_order

RELEASE = "0.3"

_SCHEDULES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "Interleaved1F1B",
    "zero-bubble": "1F1B",
    "dualpipe": "1F1B",
    "dualpipev": "DualPipeV",
}
_CLASSES = {"training": "TrainingConfig", "parallelism": "ParallelismConfig", "compile": "CompileConfig"}


def to_torchtitan(recipe: Recipe) -> Exported:
    """The recipe for torchtitan.

    Args:
        recipe: of a plan
    """
    sections = {"training": _training(recipe), "parallelism": _parallelism(recipe), "compile": _compile(recipe)}
    return Exported(
        target="torchtitan",
        release=RELEASE,
        file_name="trimaran_torchtitan.py",
        text=_text(recipe, sections),
        sections=sections,
        next="import the sections in a config_registry function, and pass them to Trainer.Config",
        lost=tuple(_lost(recipe)),
    )


def _training(recipe: Recipe) -> dict[str, object]:
    accumulated = 1 if recipe.pp == 1 else recipe.microbatches
    section: dict[str, object] = {
        # A pipeline's microbatches are parts of the local batch; without one, accumulation follows from the global one.
        "local_batch_size": recipe.microbatch * accumulated,
        "global_batch_size": recipe.global_batch_size,
        "dtype": "float32",
        "mixed_precision_param": "bfloat16" if recipe.precision == "bf16" else "float32",
    }
    if recipe.sequence_length is not None:
        section["seq_len"] = recipe.sequence_length
    if recipe.clip_norm is not None:
        section["max_norm"] = recipe.clip_norm
    return section


def _parallelism(recipe: Recipe) -> dict[str, object]:
    sharded = recipe.zero >= 2
    section: dict[str, object] = {
        "data_parallel_replicate_degree": 1 if sharded else recipe.dp,
        "data_parallel_shard_degree": recipe.dp if sharded else 1,
        "tensor_parallel_degree": recipe.tp,
        "pipeline_parallel_degree": recipe.pp,
        "context_parallel_degree": recipe.cp,
    }
    if sharded:
        section["fsdp_reshard_after_forward"] = "always" if recipe.zero == 3 else "never"
    if recipe.tp > 1:
        section["enable_sequence_parallel"] = recipe.sequence_parallel
    if recipe.pp > 1:
        section["pipeline_parallel_schedule"] = _SCHEDULES[recipe.schedule]
        section["pipeline_parallel_microbatch_size"] = recipe.microbatch
        if recipe.stages:
            section["module_fqns_per_model_part"] = _stages(recipe)
    return section


def _stages(recipe: Recipe) -> list[list[str]]:
    """The modules of each stage; where the plan only counts layers, under the names of torchtitan's own decoders."""
    if any(stage.modules for stage in recipe.stages):
        return [list(stage.modules) for stage in recipe.stages]
    ends = list(accumulate(stage.layers for stage in recipe.stages))
    named = [
        [f"layers.{layer}" for layer in range(end - stage.layers, end)]
        for stage, end in zip(recipe.stages, ends, strict=True)
    ]
    named[0].insert(0, "tok_embeddings")
    named[-1] += ["norm", "lm_head"]
    return named


def _compile(recipe: Recipe) -> dict[str, object]:
    return {"enable": recipe.compiled}


def _lost(recipe: Recipe) -> Iterator[str]:
    yield from recipe.beyond
    yield from lost_order(recipe)
    if recipe.precision in ("fp16", "fp64"):
        yield f"precision {recipe.precision}: torchtitan trains in float32 and bfloat16; the file says float32"
    if recipe.zero == 1:
        yield "ZeRO-1: torchtitan shards all (FSDP2) or nothing; the file says replicas, with whole optimizer states"
    if recipe.pp > 1 and recipe.schedule == "zero-bubble":
        yield (
            "zero-bubble with one segment a stage: torch's zero-bubble schedules want two or more; the file says 1F1B, "
            "which idles for longer"
        )
    if recipe.pp > 1 and recipe.schedule == "dualpipe":
        yield "dualpipe: torchtitan has the folded form alone (DualPipeV); the file says 1F1B, which idles for longer"
    if recipe.pp > 1:
        for number, stage in enumerate(recipe.stages):
            if stage.split:
                yield (
                    f"stage {number}: its boundary splits {', '.join(stage.split)}; stages are lists of whole modules, "
                    "so the module is in the stage that has most of it"
                )
        if not recipe.stages:
            yield "the modules of each stage: not known from this plan; torchtitan will divide the layers evenly"
    if recipe.recompute != "none":
        kind = "FullAC" if recipe.recompute == "full" else "SelectiveAC"
        some = "" if recipe.recompute_layers is None else f" ({recipe.recompute_layers} layers a stage: all there)"
        yield f"recompute: set Trainer.Config.activation_checkpoint to {kind}.Config(){some}"
    if recipe.bucket_bytes is not None and recipe.dp > 1:
        yield f"bucket size {recipe.bucket_bytes} bytes: torchtitan takes torch's own"


def _text(recipe: Recipe, sections: dict[str, dict[str, object]]) -> str:
    devices = format_count(recipe.devices, "device")
    lines = [
        f'"""{recipe.job} on {devices}, for torchtitan {RELEASE}; made by `trimaran export`.',
        "",
        "Not said here:",
        *(f"- {line}" for line in _lost(recipe)),
        '"""',
        "",
        f"from torchtitan.config import {', '.join(sorted(_CLASSES.values()))}",
        "",
    ]
    if not any(_lost(recipe)):
        del lines[1:3]
    for name, section in sections.items():
        lines.append(f"{name} = {_CLASSES[name]}(")
        lines += [f"    {key}={_python(value)}," for key, value in section.items()]
        lines.append(")")
    return "\n".join(lines) + "\n"


def _python(value: object) -> str:
    return repr(value) if isinstance(value, bool | None) else json.dumps(value)
