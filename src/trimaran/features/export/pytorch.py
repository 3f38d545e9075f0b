"""A recipe as a script of plain PyTorch: FSDP2, DTensor and `torch.distributed.pipelining`, started by torchrun.

The script trains. A network that the analytical model planned is written out as a plain decoder, whose weights do not
depend on the layout. A plan of a job takes model, data, loss and optimizer from the job; for a pipeline the tracer of
`torch.distributed.pipelining` splits the model. What a plan says and the script cannot do is refused, because a script
that trains otherwise would not show what the plan costs.

How levels of ZeRO are said in FSDP2:

    0    states on every replica: sharded over one rank, copied over all (a mesh of `replicate` x 1)
    1    parameters stay gathered and gradients whole until the last microbatch; then one scatter, one gather
    2    parameters stay gathered; gradients are scattered at every microbatch
    3    parameters are freed behind each layer's forward too (`reshard_after_forward`)

Names are those of torch 2.13. Sources of the layouts of tensor-parallel ranks: Shoeybi et al., arXiv:1909.08053, 2019
(columns, then rows); Korthikanti et al., arXiv:2205.05198, 2022 (norms split along the sequence); in DTensor's words,
torchtitan, `models/llama3/parallelize.py`.
"""

from collections.abc import Iterator

from trimaran.base.units import format_count
from trimaran.features.export.recipe import (
    SETTINGS,
    Exported,
    ExportRecipe,
    ScriptSource,
    lost_account,
    refuse,
    render,
    special_parts,
    torch_rounds,
    torchrun_ranks,
)
from trimaran.pricing.analytical.shapes import TransformerShape, vocabulary_rows

RELEASE = "2.13"
FILE_NAME = "trimaran_pytorch.py"

_SCHEDULES = {"gpipe": "ScheduleGPipe", "1f1b": "Schedule1F1B", "interleaved": "ScheduleInterleaved1F1B"}
_RATE = 3e-4
_PARTS = frozenset(
    {
        *("positions that are learned", "feed-forward networks without gates", "norms with a bias", "biases"),
        *("norms of queries and keys", "experts", "experts in some layers", "tied embeddings"),
    }
)
"""Of `special_parts`, those that the script's decoder has."""


def to_pytorch(recipe: ExportRecipe) -> Exported:
    """The recipe as a script.

    Args:
        recipe: of a plan

    Raises:
        InputError: the plan has what the script cannot do
    """
    refuse(recipe, "pytorch", _reasons(recipe))
    lost, values = tuple(_lost(recipe)), _plan(recipe)
    return Exported(
        target="pytorch",
        release=RELEASE,
        file_name=FILE_NAME,
        text=_text(recipe, values, lost),
        sections={"plan": values},
        next=f"{SETTINGS} torchrun {torchrun_ranks(recipe)} {FILE_NAME} --steps 10",
        lost=lost,
        degrees=recipe,
    )


def _plan(recipe: ExportRecipe) -> dict[str, object]:
    """The degrees in the words of the script's mesh."""
    copies, shard = recipe.copies_of_state() if recipe.zero else (recipe.dp, 1)
    return {
        "pipeline": recipe.pp,
        "replicate": copies,
        "shard": shard,
        "tensor": recipe.tp,
        "segments": list(_segments(recipe)),
        "global_batch": recipe.global_batch_size,
        "microbatch": recipe.microbatch,
        "microbatches": recipe.microbatches,
        "reshard_after_forward": recipe.zero == 3,
        "precision": recipe.precision,
    }


def _segments(recipe: ExportRecipe) -> tuple[int, ...]:
    """Layers of each segment; empty where a job's own modules are split."""
    if recipe.shape is None:
        return tuple(stage.layers for stage in recipe.stages)
    return tuple(stage.layers for stage in recipe.stages) or (recipe.shape.layers,)


def _reasons(recipe: ExportRecipe) -> Iterator[str]:
    """Why the script cannot train as the plan says."""
    if recipe.shape is not None:
        yield from network_reasons(recipe, recipe.shape)
    elif recipe.source is not None:
        yield from _reasons_of_job(recipe, recipe.source)
    else:
        yield (
            "the layers of its network are not known; plan a decoder by its name or its configuration, or export to "
            "another target"
        )
    if recipe.cp > 1:
        yield f"context parallelism over {recipe.cp} ranks is experimental in torch (--forbid cp)"
    if recipe.ep > 1:
        yield f"experts over {recipe.ep} ranks: the script has all experts on each, sharded by FSDP2 (--forbid ep)"
    if recipe.precision not in ("fp32", "bf16"):
        yield f"precision {recipe.precision}: the script computes in fp32 or bf16 (--precision)"
    if not recipe.recomputed <= {"layers"} and recipe.recomputed != {"attention"}:
        yield f"recomputation of {', '.join(sorted(recipe.recomputed))}: the script recomputes layers or attention"
    if recipe.offload:
        yield "the optimizer's state in the memory of the host: the script updates on the device"
    if recipe.gradients == "bf16" and (recipe.shape is None or recipe.precision != "bf16"):
        yield "gradients in bf16: the script keeps them in fp32 (--gradients fp32)"
    if recipe.optimizer_state not in (None, "fp32"):
        yield (
            f"states of the optimizer in {recipe.optimizer_state}: the script keeps them in fp32 "
            "(--optimizer-state fp32)"
        )
    if recipe.pp > 1:
        yield from _reasons_of_pipeline(recipe)
    if recipe.global_batch_size != recipe.dp * recipe.microbatch * recipe.microbatches:
        yield (
            f"a batch of {recipe.global_batch_size} is not {recipe.microbatches} microbatches of "
            f"{recipe.microbatch} on {recipe.dp} replicas (--batch)"
        )


def _reasons_of_job(recipe: ExportRecipe, source: ScriptSource) -> Iterator[str]:
    if source.placed:
        yield "operations are placed on devices one by one, which only Trimaran runs (--forbid placement)"
    if source.in_memory:
        yield "a memory plan by storages, which only Trimaran runs (leave --memory out)"
    if recipe.tp > 1 or source.sharded:
        yield "parts of the job's own modules lie on several ranks, which only Trimaran arranges (--forbid tp)"
    if source.weighted_loss:
        yield "Job.loss_weight: the script takes losses that are means over samples"
    if source.follows_metric:
        yield "the schedule follows a metric, and the script evaluates none (Job.lr_schedule)"
    if recipe.pp == 1:
        return
    if source.form != "input":
        yield "a pipeline of torch takes one tensor in and one target out, and this batch has others (--pp 1)"
    if source.tied:
        yield f"{source.tied} is used on several stages, and torch would train a copy on each (--pp 1)"
    if recipe.clip_norm is not None:
        yield "the norm of gradients that are clipped is that of all stages (--pp 1)"
    if any(not stage.modules for stage in recipe.stages):
        yield "a stage without a whole module: torch splits in front of modules (--pp 1)"


def network_reasons(recipe: ExportRecipe, shape: TransformerShape) -> Iterator[str]:
    """Why the script's decoder is not a network, in a layout.

    Args:
        recipe: has the layout
        shape: of the network
    """
    if wanting := [part for part in special_parts(shape) if part not in _PARTS]:
        yield f"{', '.join(wanting)}: not in the script's decoder (export to megatron or torchtitan)"
    if shape.experts is not None and recipe.tp > 1:
        yield "tensor parallelism: the script's experts are whole on each rank (--tp 1)"
    if recipe.tp > 1:
        rows = vocabulary_rows(shape)
        counts = {"heads": shape.heads, "kv_heads": shape.kv_heads, "ffn": shape.ffn, "vocabulary": rows}
        counts |= {"sequence": shape.sequence} if recipe.sequence_parallel else {}
        for name, count in counts.items():
            if count % recipe.tp:
                yield f"{name} {count} does not divide by {recipe.tp} tensor-parallel ranks (--tp)"
    if recipe.pp > 1 and shape.tied:
        yield "the embedding is also the head, and the first and the last stage would need one copy of it (--pp 1)"


def _reasons_of_pipeline(recipe: ExportRecipe) -> Iterator[str]:
    if recipe.schedule not in _SCHEDULES:
        yield f"schedule {recipe.schedule} is not one of torch's for one segment a stage (--schedule)"
    yield from torch_rounds(recipe)


def _lost(recipe: ExportRecipe) -> Iterator[str]:
    yield from recipe.beyond
    yield from lost_account(recipe, "pytorch")
    if recipe.shape is not None:
        if recipe.shape.hidden_dropout or recipe.shape.attention_dropout:
            yield "dropout: the script has none"
        yield (
            "what costs no time: norms in front of sub-layers with an epsilon of 1e-5, a rotary base of 10,000, SiLU "
            "where the feed-forward network is gated and GELU elsewhere, initial weights"
        )
        if recipe.shape.experts is not None:
            yield "how experts are chosen: by a softmax over all, without a loss for even visits"
        yield f"the optimizer: AdamW with a learning rate of {_RATE:g}; change optimizer_of"
    if recipe.source is not None and not recipe.source.drop_last:
        yield "a last, smaller batch of an epoch: the script leaves it out (Job.drop_last)"
    if recipe.source is not None and recipe.source.callbacks:
        yield f"{', '.join(f'Job.{name}' for name in recipe.source.callbacks)}: the script calls none"
    if recipe.bucket_bytes is not None and recipe.dp > 1 and recipe.zero:
        yield f"bucket size {recipe.bucket_bytes} bytes: FSDP2 sends a layer at a time"
    if recipe.tensor_overlap:
        yield "exchanges of tensor-parallel ranks do not overlap products (torch has it as asynchronous TP, compiled)"
    if recipe.compiled:
        yield "torch.compile of segments: call model.compile() before the first step"
    for number, stage in enumerate(recipe.stages if recipe.pp > 1 else ()):
        if stage.split:
            yield f"stage {number}: its boundary splits {', '.join(stage.split)}; torch splits in front of modules"


def _text(recipe: ExportRecipe, plan: dict[str, object], lost: tuple[str, ...]) -> str:
    devices = format_count(recipe.devices, "device")
    common = {
        "title": f"{recipe.job} on {devices}, by plain PyTorch {RELEASE}; made by `trimaran export`.",
        "file_name": FILE_NAME,
        "ranks": torchrun_ranks(recipe),
        "settings": SETTINGS,
        "lost": lost,
        "bf16": recipe.precision == "bf16",
        "exchanged": "bfloat16" if recipe.gradients == "bf16" else "float32",
        "zero": recipe.zero,
        "dp": recipe.dp,
        "pp": recipe.pp,
        "replicate": plan["replicate"],
        "shard": plan["shard"],
        "chunks": recipe.chunks,
        "schedule": _SCHEDULES.get(recipe.schedule, ""),
        "batch": recipe.global_batch_size,
        "microbatches": recipe.microbatches,
        "axes": _axes(recipe),
    }
    if recipe.shape is None:
        return render("job", common | _of_job(recipe))
    return render("decoder", common | _of_network(recipe, recipe.shape))


def _axes(recipe: ExportRecipe) -> tuple[str, ...]:
    """Dimensions of the mesh, the one whose neighbours are farthest apart first."""
    names = {"tp": ("tensor",), "pp": ("pipeline",), "dp": ("replicate", "shard")}
    return tuple(name for axis in reversed(recipe.rank_order) for name in names.get(axis, ()))


def _of_job(recipe: ExportRecipe) -> dict[str, object]:
    """What the script of a job is told."""
    source = recipe.source
    return {
        "job": recipe.job,
        "built_in": not recipe.job.rpartition(":")[0].endswith(".py"),
        "form": "" if source is None else source.form,
        "units": () if source is None else source.layers,
        "splits": tuple(stage.modules[0] for stage in recipe.stages[1:] if stage.modules),
        "bucket_mb": None if recipe.bucket_bytes is None else max(1, recipe.bucket_bytes // 2**20),
        "clip_norm": recipe.clip_norm,
        "accumulates": recipe.dp > 1 and not recipe.zero and recipe.pp == 1 and recipe.microbatches > 1,
    }


def _of_network(recipe: ExportRecipe, shape: TransformerShape) -> dict[str, object]:
    """What the script of a decoder is told."""
    with_experts = {layer for layer in range(shape.layers) if shape.has_experts(layer)}
    return {
        "with_experts": with_experts,
        "mixed": 0 < len(with_experts) < shape.layers,
        "sharded": recipe.dp > 1 or recipe.precision == "bf16",
        "tp": recipe.tp,
        "sequence_parallel": recipe.sequence_parallel and recipe.tp > 1,
        "recompute": next(iter(recipe.recomputed), ""),
        "recompute_layers": recipe.recompute_layers if "layers" in recipe.recomputed else None,
        "segments": _segments(recipe),
        "microbatch": recipe.microbatch,
        "rate": _RATE,
        "shape": shape,
        "vocabulary": vocabulary_rows(shape),
        "rotary_base": "10_000.0",
        "norm": "nn.LayerNorm(HIDDEN)" if shape.centred_norm else "nn.RMSNorm(HIDDEN, eps=1e-5)",
    }
