"""A recipe as a script of plain PyTorch: FSDP2, DTensor and `torch.distributed.pipelining`, started by torchrun.

The script trains; nothing of Trimaran is in it. A network that the analytical model planned is written out as a plain
decoder, whose weights do not depend on the layout. What a plan says and the script cannot do is refused, because a
script that trains otherwise would not show what the plan costs.

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
from importlib.resources import files

from jinja2 import Environment, StrictUndefined

from trimaran.base.errors import InputError
from trimaran.base.units import format_count
from trimaran.features.export.recipe import Exported, Recipe
from trimaran.pricing.analytical.shapes import TransformerShape

RELEASE = "2.13"
FILE_NAME = "trimaran_pytorch.py"

_NODE = 8
"""Ranks that the printed command starts on one node; more are for several nodes."""

_SCHEDULES = {"gpipe": "ScheduleGPipe", "1f1b": "Schedule1F1B", "interleaved": "ScheduleInterleaved1F1B"}
_RATE = 3e-4


def to_pytorch(recipe: Recipe) -> Exported:
    """The recipe as a script.

    Args:
        recipe: of a plan

    Raises:
        InputError: the plan has what the script cannot do
    """
    reasons = list(_reasons(recipe))
    if recipe.shape is None or reasons:
        raise InputError(
            f"the plan for {recipe.job} cannot be exported to pytorch: {'; '.join(reasons)}",
            code="export.not-expressible",
            job=recipe.job,
        )
    lost = tuple(_lost(recipe, recipe.shape))
    values = _plan(recipe)
    return Exported(
        target="pytorch",
        release=RELEASE,
        file_name=FILE_NAME,
        text=_text(recipe, recipe.shape, values, lost),
        sections={"plan": values},
        next=f"torchrun {_ranks(recipe)} {FILE_NAME} --steps 10",
        lost=lost,
    )


def _plan(recipe: Recipe) -> dict[str, object]:
    """The degrees in the words of the script's mesh."""
    shard = recipe.dp if recipe.zero else 1
    return {
        "pipeline": recipe.pp,
        "replicate": recipe.dp // shard,
        "shard": shard,
        "tensor": recipe.tp,
        "segments": [stage.layers for stage in recipe.stages],
        "global_batch": recipe.global_batch_size,
        "microbatch": recipe.microbatch,
        "microbatches": recipe.microbatches,
        "reshard_after_forward": recipe.zero == 3,
        "precision": recipe.precision,
    }


def _ranks(recipe: Recipe) -> str:
    if recipe.devices <= _NODE:
        return f"--nproc-per-node {recipe.devices}"
    return f"--nnodes {-(-recipe.devices // _NODE)} --nproc-per-node {_NODE} --rdzv-endpoint HOST:29500"


def _reasons(recipe: Recipe) -> Iterator[str]:
    """Why the script cannot train as the plan says."""
    if recipe.shape is None:
        yield (
            "the layers of its network are not known; plan a decoder by its name or its configuration, or export to "
            "another target"
        )
    else:
        yield from _reasons_of_network(recipe, recipe.shape)
    if recipe.cp > 1:
        yield f"context parallelism over {recipe.cp} ranks is experimental in torch (--forbid cp)"
    if recipe.ep > 1:
        yield f"experts over {recipe.ep} ranks are not part of torch (--forbid ep)"
    if recipe.precision not in ("fp32", "bf16"):
        yield f"precision {recipe.precision}: the script computes in fp32 or bf16 (--precision)"
    if not recipe.recomputed <= {"layers"} and recipe.recomputed != {"attention"}:
        yield f"recomputation of {', '.join(sorted(recipe.recomputed))}: the script recomputes layers or attention"
    if recipe.pp > 1:
        yield from _reasons_of_pipeline(recipe)
    elif recipe.global_batch_size != recipe.dp * recipe.microbatch * recipe.microbatches:
        yield f"a batch of {recipe.global_batch_size} is not {recipe.dp} x {recipe.microbatches} x {recipe.microbatch}"


def _reasons_of_network(recipe: Recipe, shape: TransformerShape) -> Iterator[str]:
    if shape.experts is not None or shape.latent is not None:
        yield "experts and latent attention are not in the script's decoder (export to megatron or torchtitan)"
    if shape.head != "causal":
        yield "the script's network is a decoder, and this one has a masked-language head"
    if shape.query_key_norm:
        yield "norms of queries and keys are not in the script's decoder"
    if not shape.rotary and not shape.positions:
        yield "the script's decoder has rotary or learned positions, and this network has others"
    if recipe.tp > 1:
        counts = {"heads": shape.heads, "kv_heads": shape.kv_heads, "ffn": shape.ffn, "vocabulary": shape.vocabulary}
        counts |= {"sequence": shape.sequence} if recipe.sequence_parallel else {}
        for name, count in counts.items():
            if count % recipe.tp:
                yield f"{name} {count} does not divide by {recipe.tp} tensor-parallel ranks (--tp)"
    if recipe.pp > 1 and shape.tied:
        yield "the embedding is also the head, and the first and the last stage would need one copy of it (--pp 1)"


def _reasons_of_pipeline(recipe: Recipe) -> Iterator[str]:
    if recipe.zero >= 2:
        yield f"ZeRO-{recipe.zero} in a pipeline: torch's schedules keep whole gradients until the last microbatch"
    if recipe.schedule not in _SCHEDULES:
        yield f"schedule {recipe.schedule} is not one of torch's for one segment a stage (--schedule)"
    if recipe.schedule == "interleaved":
        rounds = max(1, recipe.microbatches // recipe.pp)
        if recipe.microbatches % rounds:
            yield f"torch interleaves microbatches in {rounds} equal rounds, and {recipe.microbatches} do not divide"
        if recipe.microbatch_group not in (0, recipe.pp):
            yield f"torch interleaves by the number of stages, not by groups of {recipe.microbatch_group}"


def _lost(recipe: Recipe, shape: TransformerShape) -> Iterator[str]:
    yield from recipe.beyond
    if shape.hidden_dropout or shape.attention_dropout:
        yield "dropout: the script has none"
    if recipe.bucket_bytes is not None and recipe.dp > 1:
        yield f"bucket size {recipe.bucket_bytes} bytes: FSDP2 sends a layer at a time"
    yield f"the optimizer: AdamW with a learning rate of {_RATE:g}; change optimizer_of"


def _text(recipe: Recipe, shape: TransformerShape, plan: dict[str, object], lost: tuple[str, ...]) -> str:
    # The output is Python, so nothing is escaped.
    environment = Environment(trim_blocks=True, undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
    template = environment.from_string((files(__package__) / "scripts" / "decoder.py.jinja").read_text())
    bf16 = recipe.precision == "bf16"
    segments = tuple(stage.layers for stage in recipe.stages) or (shape.layers,)
    return template.render(
        title=f"{recipe.job} on {format_count(recipe.devices, 'device')}, by plain PyTorch {RELEASE}; made by "
        "`trimaran export`.",
        file_name=FILE_NAME,
        ranks=_ranks(recipe),
        lost=lost,
        sharded=recipe.dp > 1 or bf16,
        bf16=bf16,
        zero=recipe.zero,
        pp=recipe.pp,
        tp=recipe.tp,
        replicate=plan["replicate"],
        shard=plan["shard"],
        chunks=recipe.chunks,
        schedule=_SCHEDULES.get(recipe.schedule, ""),
        sequence_parallel=recipe.sequence_parallel and recipe.tp > 1,
        recompute=next(iter(recipe.recomputed), ""),
        segments=segments if len(segments) > 1 else f"({segments[0]},)",
        batch=recipe.global_batch_size,
        microbatch=recipe.microbatch,
        microbatches=recipe.microbatches,
        rate=_RATE,
        layers=shape.layers,
        hidden=shape.hidden,
        ffn=shape.ffn,
        vocabulary=shape.vocabulary,
        sequence=shape.sequence,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_size=shape.head_size,
        biases=shape.biases,
        gated=shape.gated,
        rotary=shape.rotary,
        rotary_base="10_000.0",
        positions=shape.positions,
        tied=shape.tied,
        norm="nn.LayerNorm(HIDDEN)" if shape.centred_norm else "nn.RMSNorm(HIDDEN, eps=1e-5)",
    )
