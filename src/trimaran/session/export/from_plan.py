"""From a plan and the graph of its job to a recipe.

Runtimes cut between modules, a plan between operations. A *unit* is what they call a layer: the outermost module with a
number in its path (`layers.3`), or, outside of such lists, the module itself. A unit that a cut goes through is counted
to the segment that has most of its work.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from trimaran.graph import Graph
from trimaran.graph.types import Op
from trimaran.program import Plan, Strategy, segment_ops
from trimaran.program.buckets import DEFAULT_BUCKET_BYTES
from trimaran.session.export.recipe import Precision, Recipe, Stage
from trimaran.units import format_bytes


def recipe_of_plan(plan: Plan, graph: Graph, *, clip_norm: float | None = None) -> Recipe:
    """What the plan of a job says, in the words of other runtimes.

    Args:
        plan: what was decided
        graph: of the plan's job
        clip_norm: the job's gradients are clipped to this norm
    """
    strategy, batch = plan.strategy, plan.premises.global_batch_size
    placed = bool(strategy.parts)
    return Recipe(
        job=plan.job,
        dp=strategy.dp,
        tp=strategy.tp,
        pp=1 if placed else strategy.pp,
        chunks=strategy.chunks,
        schedule=strategy.schedule,
        zero=strategy.zero,
        sequence_parallel=any(shard.style == "sequence" for shard in strategy.shards),
        stages=() if placed or strategy.pp == 1 else stages_of(graph, segment_ops(graph, strategy)),
        microbatch_size=batch // (strategy.dp * strategy.microbatches),
        microbatches=strategy.microbatches,
        global_batch_size=batch,
        sequence_length=_sequence_length(graph),
        precision=_PRECISIONS[graph.precision],
        recompute="none" if strategy.memory_bytes is None else "full",
        bucket_bytes=None if strategy.bucket_bytes == DEFAULT_BUCKET_BYTES else strategy.bucket_bytes,
        clip_norm=clip_norm,
        compiled=strategy.execution == "compiled",
        beyond=tuple(_beyond(strategy)),
    )


_PRECISIONS: dict[str, Precision] = {"fp32": "fp32", "bf16": "bf16", "fp16": "fp16", "fp64": "fp64"}


def stages_of(graph: Graph, parts: Sequence[Sequence[Op]]) -> tuple[Stage, ...]:
    """The units of each segment of a chain.

    Args:
        graph: of the job
        parts: operations of each segment, in order

    Returns:
        One stage a segment. Every unit is in exactly one.
    """
    work: dict[str, dict[int, float]] = {}
    for number, ops in enumerate(parts):
        for op in ops:
            unit = unit_of(op.module)
            if unit:
                found = work.setdefault(unit, {})
                found[number] = found.get(number, 0.0) + op.flops.at(1) + op.backward_flops.at(1)
    home = {unit: max(found, key=found.__getitem__) for unit, found in work.items()}
    lists = Counter(unit.rpartition(".")[0] for unit in work if unit.rpartition(".")[2].isdigit())
    repeated = lists.most_common(1)[0][0] if lists else None
    return tuple(
        Stage(
            modules=tuple(unit for unit in work if home[unit] == number),
            layers=sum(_is_layer(unit, repeated) for unit in work if home[unit] == number),
            split=tuple(unit for unit, found in work.items() if number in found and len(found) > 1),
        )
        for number in range(len(parts))
    )


def unit_of(module: str) -> str:
    """The layer that a module belongs to.

    Args:
        module: path of a module

    Example:
        >>> unit_of("transformer.h.3.attn.c_attn"), unit_of("lm_head"), unit_of("model.norm")
        ('transformer.h.3', 'lm_head', 'model.norm')
    """
    names = module.split(".")
    for position, name in enumerate(names):
        if name.isdigit():
            return ".".join(names[: position + 1])
    return module


def _is_layer(unit: str, repeated: str | None) -> bool:
    base, _, last = unit.rpartition(".")
    return last.isdigit() and base == repeated


def _sequence_length(graph: Graph) -> int | None:
    """The tokens of a sample, where the model reads a batch of sequences of whole numbers."""
    for spec in graph.inputs:
        if spec.name not in graph.targets and spec.dtype == "int64" and len(spec.shape) == 2:
            length = spec.shape[1]
            return length if isinstance(length, int) else None
    return None


def _beyond(strategy: Strategy) -> Iterator[str]:
    if strategy.parts:
        yield (
            f"the placement of operations on {strategy.pp} devices: no runtime but Trimaran runs one; the file is for "
            f"{strategy.dp} whole replicas, which is slower than the plan says"
        )
    if strategy.memory_bytes is not None:
        yield (
            f"the memory plan (offload or recompute of each storage, in {format_bytes(strategy.memory_bytes)} a rank): "
            "the file recomputes whole layers, which may be slower or need more; or use trimaran.virtual_memory there"
        )
    if strategy.shards and strategy.tp == 1:
        yield "the classifier sharded over the replicas: the file keeps it whole on each, with its gradients exchanged"
    if strategy.sync == "p2p" and strategy.dp > 1:
        yield "homes of gradient buckets (p2p): the file all-reduces"
    if strategy.sync == "hierarchical":
        yield "sums within nodes and then across them (hierarchical): the file all-reduces, and NCCL chooses how"
    if strategy.compression is not None:
        yield (
            f"compressed gradients ({strategy.compression.name}): the file sends them whole, which is slower than the "
            "plan says; torch's communication hooks come near it, those for 16 bits without error feedback"
        )
    if strategy.device_order:
        devices = ",".join(map(str, strategy.device_order))
        yield f"the order of devices: start the ranks with CUDA_VISIBLE_DEVICES={devices} on a node, or a rank file"
