"""A recipe as arguments of Megatron-LM, and as fields of Megatron Core's configuration.

Names are those of Megatron Core 0.16: `TransformerConfig`, `DistributedDataParallelConfig`; the arguments are the
fields as options. A pipeline's stages are its layout: `Et*3|t*4L` is an embedding and three layers, then four layers
and the loss.
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence

from trimaran.base.units import format_count
from trimaran.features.export.recipe import Exported, Recipe, lost_copies, lost_order
from trimaran.program.strategy import SELECTIVE, Recomputed

RELEASE = "0.16"

_MODULES: Mapping[Recomputed, Sequence[str]] = {
    "attention": ("core_attn",),
    "norms": ("layernorm",),
    "feed_forward": ("mlp",),
    "up_projections": ("mla_up_proj",),
}
"""What is recomputed, as `--recompute-modules` names it."""

_MODULES_OF_EXPERTS: Mapping[Recomputed, Sequence[str]] = {"activations": ("moe_act",), "feed_forward": ("mlp", "moe")}
"""The same where layers have experts: activation functions are recomputed in these alone."""

# Megatron counts a bucket in elements of fp32 gradients.
_GRADIENT_BYTES = 4


def to_megatron(recipe: Recipe) -> Exported:
    """The recipe for Megatron.

    Args:
        recipe: of a plan
    """
    sections = {"model": _model(recipe), "data_parallel": _data_parallel(recipe), "batch": _batch(recipe)}
    return Exported(
        target="megatron",
        release=RELEASE,
        file_name="trimaran_megatron.args",
        text=_text(recipe),
        sections=sections,
        next="torchrun ... pretrain_gpt.py $(grep -v '^#' trimaran_megatron.args) and the arguments of the model",
        lost=tuple(_lost(recipe)),
    )


def _model(recipe: Recipe) -> dict[str, object]:
    section: dict[str, object] = {
        "tensor_model_parallel_size": recipe.tp,
        "pipeline_model_parallel_size": recipe.pp,
        "context_parallel_size": recipe.cp,
        "sequence_parallel": recipe.sequence_parallel and recipe.tp > 1,
    }
    if _stages_before_replicas(recipe):
        section["use_tp_pp_dp_mapping"] = True
    if recipe.pp > 1:
        if recipe.chunks > 1:
            section["virtual_pipeline_model_parallel_size"] = recipe.chunks
        if recipe.microbatch_group:
            section["microbatch_group_size_per_vp_stage"] = recipe.microbatch_group
        layout = _layout(recipe)
        if layout:
            section["pipeline_model_parallel_layout"] = layout
    if recipe.precision in ("bf16", "fp16"):
        section[recipe.precision] = True
    names = _modules(recipe)
    if recipe.recompute == "selective" and (names or not recipe.recomputed):
        section["recompute_granularity"] = "selective"
        if recipe.recomputed and recipe.recomputed != SELECTIVE:
            section["recompute_modules"] = [name for kind in sorted(names) for name in names[kind]]
    elif recipe.recompute == "full":
        section["recompute_granularity"] = "full"
        section["recompute_method"] = "uniform" if recipe.recompute_layers is None else "block"
        section["recompute_num_layers"] = recipe.recompute_layers or 1
    return section


def _modules(recipe: Recipe) -> Mapping[Recomputed, Sequence[str]]:
    """Names of what is recomputed, by kind; without those that Megatron has no name for."""
    has_experts = recipe.ep > 1 if recipe.shape is None else recipe.shape.experts is not None
    known = {**_MODULES, **_MODULES_OF_EXPERTS} if has_experts else _MODULES
    return {kind: known[kind] for kind in recipe.recomputed if kind in known}


def _stages_before_replicas(recipe: Recipe) -> bool:
    """Whether ranks are in the one other order that Megatron's arguments have."""
    return not recipe.has_order() and recipe.has_order("tp", "cp", "pp", "dp")


def _data_parallel(recipe: Recipe) -> dict[str, object]:
    section: dict[str, object] = {"overlap_grad_reduce": recipe.dp > 1}
    if recipe.zero:
        section["use_distributed_optimizer"] = True
    if recipe.zero >= 2:
        section["use_megatron_fsdp"] = True
        section["data_parallel_sharding_strategy"] = "optim_grads" if recipe.zero == 2 else "optim_grads_params"
    if recipe.bucket_bytes is not None and recipe.dp > 1:
        section["bucket_size"] = max(1, recipe.bucket_bytes // _GRADIENT_BYTES)
    if recipe.gradients == "bf16":
        section["grad_reduce_in_fp32"] = False
    return section


def _batch(recipe: Recipe) -> dict[str, object]:
    section: dict[str, object] = {
        "micro_batch_size": recipe.microbatch,
        "global_batch_size": recipe.global_batch_size,
    }
    if recipe.sequence_length is not None:
        section["seq_length"] = recipe.sequence_length
    if recipe.clip_norm is not None:
        section["clip_grad"] = recipe.clip_norm
    elif recipe.source is not None:
        section["clip_grad"] = 0.0  # by default it clips to 1
    return section


def _layout(recipe: Recipe) -> str:
    """The layers of each stage as Megatron writes them; empty where there are no layers to count."""
    if not recipe.stages or not any(stage.layers for stage in recipe.stages):
        return ""
    last = len(recipe.stages) - 1
    parts = []
    for number, stage in enumerate(recipe.stages):
        layers = "" if not stage.layers else "t" if stage.layers == 1 else f"t*{stage.layers}"
        parts.append(f"{'E' if number == 0 else ''}{layers}{'L' if number == last else ''}")
    return "|".join(parts)


def _lost(recipe: Recipe) -> Iterator[str]:
    yield from recipe.beyond
    if not _stages_before_replicas(recipe):
        yield from lost_order(recipe)
    yield from lost_copies(recipe)
    if recipe.pp > 1 and recipe.schedule not in ("1f1b", "interleaved"):
        yield f"schedule {recipe.schedule}: Megatron runs 1F1B, interleaved where a stage has several parts"
    if recipe.precision not in ("fp32", "fp16", "bf16"):
        yield f"precision {recipe.precision}: Megatron trains in fp32, fp16 and bf16"
    if recipe.pp > 1 and not _layout(recipe):
        yield "the layers of each stage: Megatron divides transformer layers, and this plan knows of none"
    for number, stage in enumerate(recipe.stages if recipe.pp > 1 else ()):
        if stage.split:
            yield f"stage {number}: its boundary splits {', '.join(stage.split)}; Megatron splits between layers"
    if recipe.optimizer_state not in (None, "fp32"):
        yield (
            f"states of the optimizer in {recipe.optimizer_state}, by which it fits: --use-precision-aware-optimizer "
            "with its types, as the release has them"
        )
    for kind in sorted(recipe.recomputed - {"layers"} - _modules(recipe).keys()):
        what = "activation functions of experts alone (moe_act)" if kind == "activations" else "nothing of the kind"
        yield f"recompute:{kind}: Megatron recomputes {what}; without it a step needs more memory than planned"
    if recipe.compiled:
        yield "torch.compile of segments: Megatron fuses by its own switches"
    if recipe.zero >= 2 and recipe.pp > 1:
        yield f"ZeRO-{recipe.zero} inside a pipeline: gradients are reduced at each microbatch, which costs time"


_OPTIONS = {
    "bucket_size": "ddp-bucket-size",
    "microbatch_group_size_per_vp_stage": "microbatch-group-size-per-virtual-pipeline-stage",
}


def _text(recipe: Recipe) -> str:
    lines = [f"# {recipe.job} on {format_count(recipe.devices, 'device')}, for Megatron-LM (Megatron Core {RELEASE})."]
    lines += [f"# Not said here: {line}" for line in _lost(recipe)]
    values = _model(recipe) | _data_parallel(recipe) | _batch(recipe)
    for name, value in values.items():
        option = f"--{_OPTIONS.get(name, name.replace('_', '-'))}"
        if name == "virtual_pipeline_model_parallel_size":
            # Follows from the layout; where there is none, the argument counts virtual stages.
            if "pipeline_model_parallel_layout" in values:
                continue
            option = "--num-virtual-stages-per-pipeline-rank"
        if name == "grad_reduce_in_fp32":
            # In bf16 the arguments ask for fp32 unless told otherwise.
            option, value = "--grad-reduce-in-bf16", True
        if value is False:
            continue
        words = map(str, value) if isinstance(value, list) else (str(value),)
        lines.append(option if value is True else f"{option} {shlex.join(words)}")
    return "\n".join(lines) + "\n"
