"""A recipe as arguments of Megatron-LM, and as fields of Megatron Core's configuration.

Names are those of Megatron Core 0.16: `TransformerConfig`, `DistributedDataParallelConfig`; the arguments are the
fields as options. A pipeline's stages are its layout: `Et*3|t*4L` is an embedding and three layers, then four layers
and the loss. Of a network whose shape is known the arguments of the model are among them; experts are spread over ranks
that hold replicas of attention (`expert_model_parallel_size`).
"""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from trimaran.base.units import format_count
from trimaran.features.export.recipe import (
    Exported,
    ExportRecipe,
    lost_copies,
    lost_order,
    refuse,
    special_parts,
    torchrun_ranks,
)
from trimaran.pricing.analytical.shapes import TransformerShape
from trimaran.program.strategy import SELECTIVE, Recomputed, Schedule

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

_PARTS = frozenset(
    {
        *("positions that are learned", "feed-forward networks without gates", "norms with a bias", "biases"),
        *("norms of queries and keys", "windows of attention", "sinks of attention", "latent attention"),
        *("experts", "experts with biases", "shared experts", "experts in some layers"),
        *("layers that predict further tokens", "tied embeddings"),
    }
)
"""Of `special_parts`, those that `pretrain_gpt.py` has."""

# Megatron counts a bucket in elements of fp32 gradients.
_GRADIENT_BYTES = 4


def to_megatron(recipe: ExportRecipe) -> Exported:
    """The recipe for Megatron.

    Args:
        recipe: of a plan
    """
    refuse(recipe, "megatron", _reasons(recipe))
    said = as_said(recipe)
    sections = {
        "network": {} if recipe.shape is None else _network(recipe.shape),
        "model": _model(said) | ({} if recipe.shape is None else _layers(recipe.shape)),
        "data_parallel": _data_parallel(said),
        "optimizer": _optimizer(said),
        "batch": _batch(said),
    }
    sections = {name: section for name, section in sections.items() if section}
    lost = tuple(_lost(recipe))
    of_model = "" if recipe.shape is not None else ", the arguments of the model"
    return Exported(
        target="megatron",
        release=RELEASE,
        file_name="trimaran_megatron.args",
        text=_text(recipe, sections, lost),
        sections=sections,
        next=(
            f"torchrun {torchrun_ranks(recipe)} pretrain_gpt.py $(grep -v '^#' trimaran_megatron.args)"
            f"{of_model} and those of data and of the learning rate"
        ),
        lost=lost,
        degrees=said,
    )


def as_said(recipe: ExportRecipe) -> ExportRecipe:
    """What the file says of a recipe.

    Args:
        recipe: of a plan
    """
    schedule: Schedule = "interleaved" if recipe.chunks > 1 else "1f1b"
    recomputed = frozenset({*_modules(recipe), *(recipe.recomputed & {"layers"})})
    return replace(
        recipe,
        schedule=schedule if recipe.pp > 1 else recipe.schedule,
        recomputed=recomputed,
        recompute=recipe.recompute if recomputed or not recipe.recomputed else "none",
        optimizer_state=None if recipe.optimizer_state == "adam-8bit" else recipe.optimizer_state,
    )


def _reasons(recipe: ExportRecipe) -> Iterator[str]:
    shape = recipe.shape
    if shape is None:
        return
    if lacks := [part for part in special_parts(shape) if part not in _PARTS]:
        yield f"pretrain_gpt.py has no {', no '.join(lacks)}"
    if shape.chunked or len({*shape.windows} - {0}) > 1:
        yield "its windows of attention are chunks, or of several lengths"


def _network(shape: TransformerShape) -> dict[str, object]:
    """What GPTModel is told."""
    section: dict[str, object] = {
        "vocab_size": shape.vocabulary,
        "make_vocab_size_divisible_by": shape.padding,
        "max_position_embeddings": shape.positions or shape.sequence,
        "position_embedding_type": "rope" if shape.rotary else "learned_absolute",
    }
    return section if shape.tied else section | {"untie_embeddings_and_output_weights": True}


def _layers(shape: TransformerShape) -> dict[str, object]:
    """The network as fields of the configuration of a transformer."""
    section: dict[str, object] = {
        "num_layers": shape.layers,
        "hidden_size": shape.hidden,
        "ffn_hidden_size": shape.ffn,
        "num_attention_heads": shape.heads,
        "normalization": "LayerNorm" if shape.centred_norm else "RMSNorm",
        "gated_linear_unit": shape.gated,
        "add_bias_linear": "feed_forward" in shape.biases,
        "hidden_dropout": 0.1 if shape.hidden_dropout else 0.0,
        "attention_dropout": 0.1 if shape.attention_dropout else 0.0,
    }
    if shape.kv_heads != shape.heads:
        section["num_query_groups"] = shape.kv_heads
    if shape.heads * shape.head_size != shape.hidden and shape.latent is None:
        section["kv_channels"] = shape.head_size
    if "qkv" in shape.biases and "feed_forward" not in shape.biases:
        section["add_qkv_bias"] = True
    if shape.query_key_norm or shape.latent is not None:
        section["qk_layernorm"] = True
    if shape.latent is not None:
        section |= {
            "multi_latent_attention": True,
            "q_lora_rank": shape.latent.query_rank or None,
            "kv_lora_rank": shape.latent.key_rank,
            "qk_head_dim": shape.latent.head_size,
            "qk_pos_emb_head_dim": shape.latent.rotary_size,
            "v_head_dim": shape.latent.value_size,
        }
    if any(shape.windows):
        section["window_size"] = (max(shape.windows) - 1, 0)
        section["window_attn_skip_freq"] = [int(shape.window(layer) > 0) for layer in range(shape.layers)]
    if shape.sinks:
        section["softmax_type"] = "learnable"
    if shape.prediction_layers:
        section["mtp_num_layers"] = shape.prediction_layers
    return section | _experts(shape)


def _experts(shape: TransformerShape) -> dict[str, object]:
    experts = shape.experts
    if experts is None:
        return {}
    section: dict[str, object] = {
        "num_moe_experts": experts.count,
        "moe_router_topk": experts.active,
        "moe_ffn_hidden_size": experts.ffn,
        "moe_token_dispatcher_type": "alltoall",
        "moe_grouped_gemm": True,
        "moe_router_dtype": "fp32",
    }
    if experts.dense_layers or experts.every > 1:
        section["moe_layer_freq"] = [int(shape.has_experts(layer)) for layer in range(shape.layers)]
    if experts.shared_ffn:
        section["moe_shared_expert_intermediate_size"] = experts.shared_ffn
        section["moe_shared_expert_gate"] = experts.shared_gate
    return section


def _model(recipe: ExportRecipe) -> dict[str, object]:
    section: dict[str, object] = {
        "tensor_model_parallel_size": recipe.tp,
        "pipeline_model_parallel_size": recipe.pp,
        "context_parallel_size": recipe.cp,
        "sequence_parallel": recipe.sequence_parallel and recipe.tp > 1,
    }
    if recipe.shape is not None and recipe.shape.experts is not None:
        section["expert_model_parallel_size"] = recipe.ep
        section["expert_tensor_parallel_size"] = recipe.expert_ranks
    if recipe.cp > 1 and recipe.ulysses:
        section["cp_comm_type"] = "a2a"
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


def _modules(recipe: ExportRecipe) -> Mapping[Recomputed, Sequence[str]]:
    """Names of what is recomputed, by kind; without those that Megatron has no name for."""
    has_experts = recipe.ep > 1 if recipe.shape is None else recipe.shape.experts is not None
    known = {**_MODULES, **_MODULES_OF_EXPERTS} if has_experts else _MODULES
    return {kind: known[kind] for kind in recipe.recomputed if kind in known}


def _stages_before_replicas(recipe: ExportRecipe) -> bool:
    """Whether ranks are in the one other order that Megatron's arguments have."""
    return not recipe.has_order() and recipe.has_order("tp", "cp", "pp", "dp")


def _data_parallel(recipe: ExportRecipe) -> dict[str, object]:
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


def _optimizer(recipe: ExportRecipe) -> dict[str, object]:
    """Types of what the optimizer keeps, and where; the precision-aware one keeps the remainders of parameters."""
    state = recipe.optimizer_state
    if state in (None, "fp32") and not recipe.offload:
        return {}
    section: dict[str, object] = {"use_precision_aware_optimizer": True}
    if state in ("bf16-moments", "precision-aware"):
        section |= {"exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}
    if recipe.gradients == "bf16":
        section["main_grads_dtype"] = "bf16"
    if recipe.offload:
        section |= {"optimizer_cpu_offload": True, "optimizer_offload_fraction": 1.0}
    return section


def _batch(recipe: ExportRecipe) -> dict[str, object]:
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


def _layout(recipe: ExportRecipe) -> str:
    """The layers of each stage as Megatron writes them; empty where there are no layers to count."""
    if not recipe.stages or not any(stage.layers for stage in recipe.stages):
        return ""
    last = len(recipe.stages) - 1
    parts = []
    for number, stage in enumerate(recipe.stages):
        layers = "" if not stage.layers else "t" if stage.layers == 1 else f"t*{stage.layers}"
        parts.append(f"{'E' if number == 0 else ''}{layers}{'L' if number == last else ''}")
    return "|".join(parts)


def _lost(recipe: ExportRecipe) -> Iterator[str]:
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
    if recipe.optimizer_state == "adam-8bit":
        yield "moments of the optimizer in 8 bits: Megatron has none; the file keeps them in fp32"
    if recipe.optimizer_state == "bf16-moments":
        yield "moments in bf16: the precision-aware optimizer keeps remainders of parameters too, in less memory"
    if recipe.shape is not None:
        yield "the rotary base, epsilons of norms, initial weights and how experts are chosen: Megatron's own"
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
    "num_moe_experts": "num-experts",
    "gated_linear_unit": "swiglu",
}
"""Fields whose option has another name."""

_WHERE_FALSE = {"grad_reduce_in_fp32": "grad-reduce-in-bf16", "add_bias_linear": "disable-bias-linear"}
"""Fields that are true unless an option says otherwise."""


def _text(recipe: ExportRecipe, sections: Mapping[str, Mapping[str, object]], lost: Sequence[str]) -> str:
    lines = [f"# {recipe.job} on {format_count(recipe.devices, 'device')}, for Megatron-LM (Megatron Core {RELEASE})."]
    lines += [f"# Not said here: {line}" for line in lost]
    values = {name: value for section in sections.values() for name, value in section.items()}
    if "num_query_groups" in values:
        lines.append("--group-query-attention")
    for name, value in values.items():
        option = f"--{_OPTIONS.get(name, name.replace('_', '-'))}"
        if name == "virtual_pipeline_model_parallel_size":
            # Follows from the layout; where there is none, the argument counts virtual stages.
            if "pipeline_model_parallel_layout" in values:
                continue
            option = "--num-virtual-stages-per-pipeline-rank"
        if name in _WHERE_FALSE:
            option, value = f"--{_WHERE_FALSE[name]}", not value
        if value is False or value is None:
            continue
        words = [str(value)]
        if name == "recompute_modules" and isinstance(value, list):
            words = value
        elif isinstance(value, list | tuple):
            words = [",".join(map(str, value)) if isinstance(value, tuple) else str(value).replace(" ", "")]
        lines.append(option if value is True else f"{option} {shlex.join(words)}")
    return "\n".join(lines) + "\n"
