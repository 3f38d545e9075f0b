"""The decisions of a plan in terms that training runtimes share: degrees, stages, schedule, microbatches, recompute.

A recipe is what a plan and its graph say, before any runtime is asked what it can take. Paths of modules are those of
the user's model.

From a plan and the graph of its job to a recipe.

Runtimes split between modules, a plan between operations. A *unit* is what they call a layer: the outermost module with
a number in its path (`layers.3`), or, outside of such lists, the module itself. A unit that is split counts to the
segment that has most of its work.

From parallel degrees, which the analytical model chose, to a recipe.

Such a plan names no modules: its stages are numbers of layers. The embedding is with the first part of the stack and
the loss with the last.
"""

import dataclasses
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from jinja2 import Environment, StrictUndefined

from trimaran.base.errors import InputError
from trimaran.base.files import packaged_text
from trimaran.base.precision import Precision, parse_precision
from trimaran.base.units import format_bytes
from trimaran.graph.types import Graph, Op
from trimaran.machine.find import find_machine
from trimaran.planning.analytical import decoder_of_job
from trimaran.planning.requests import PlanRequest
from trimaran.pricing.analytical.shapes import TransformerShape
from trimaran.program.gradients import DEFAULT_BUCKET_BYTES
from trimaran.program.lowering.partition import segment_ops
from trimaran.program.plan_file import Plan, Premises
from trimaran.program.strategy import RANK_ORDER, Axis, Degrees, Schedule, Strategy

NODE = 8
"""Ranks that printed commands start on one node, where the plan's cluster is not known."""

_NORMS = 2
"""Of a layer: in front of attention and of the feed-forward network."""

_TRAY = 4
"""Devices of one operating system in a rack that NVLink joins (GB200 NVL72: 18 trays)."""

_MOST = 16
"""Devices that one operating system has; nodes of the catalog with more are racks."""

Recompute = Literal["none", "selective", "full"]
"""Which activations are recomputed: none, what the runtime finds cheap, or whole layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportStage:
    """One segment of a pipeline.

    Attributes:
        modules: paths of the outermost modules that lie in it, in order of execution
        layers: how many of them are repeated layers, such as transformer blocks
        split: paths of modules that the boundary before or after it splits
    """

    modules: tuple[str, ...]
    layers: int
    split: tuple[str, ...] = ()


Form = Literal["input", "inputs", "mapping", "own-loss"]
"""What a batch is: a tensor and a target, several inputs and a target, a mapping, a mapping with the loss in the model.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptSource:
    """What a script of the job itself has to know, and what it may not be able to do.

    Attributes:
        form: of a batch
        layers: paths of repeated modules, such as transformer blocks, in order of execution
        tied: a parameter that several stages use; empty: none
        placed: operations are placed on devices one by one
        in_memory: storages are offloaded or recomputed one by one
        sharded: parameters of some operations lie on several ranks
        weighted_loss: the job says what its loss is a mean over
        callbacks: of the job, which it has for each step and epoch
        drop_last: the job leaves out the last, smaller batch of an epoch
        follows_metric: the job's schedule follows a metric
    """

    form: Form
    layers: tuple[str, ...] = ()
    tied: str = ""
    placed: bool = False
    in_memory: bool = False
    sharded: bool = False
    weighted_loss: bool = False
    callbacks: tuple[str, ...] = ()
    drop_last: bool = True
    follows_metric: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRecipe(Degrees):
    """Settings of a run, for another runtime.

    Attributes:
        job: reference of the job
        schedule: order of forwards and backwards in a pipeline
        stages: one a segment, in order; empty where they are not known
        global_batch_size: samples of one update
        sequence_length: tokens of a sample, where samples are sequences
        precision: of the job
        recompute: which activations are computed again
        bucket_bytes: size at which gradients are sent [bytes]; None: not decided
        clip_norm: gradients are clipped to this norm; None: they are not, where the source is known, else not decided
        compiled: segments run through torch.compile
        beyond: what was decided that no recipe can say, each with what it costs to leave it out
        shape: of the network, where the analytical model planned it and its name or configuration says one
        source: of the job, where it was captured
        planned_for: framework whose memory and time the plan has; empty: not known, or that of the job
        node: devices of a node
    """

    job: str
    schedule: Schedule = "1f1b"
    stages: tuple[ExportStage, ...] = ()
    global_batch_size: int
    sequence_length: int | None = None
    precision: Precision = "fp32"
    recompute: Recompute = "none"
    bucket_bytes: int | None = None
    clip_norm: float | None = None
    compiled: bool = False
    beyond: tuple[str, ...] = ()
    shape: TransformerShape | None = None
    source: ScriptSource | None = None
    planned_for: str = ""
    node: int = NODE

    def nodes(self, ranks: int) -> tuple[int, int]:
        """Nodes that a number of ranks takes, and the ranks of each: equal, as launchers start them."""
        each = max(count for count in range(1, min(ranks, self.node) + 1) if ranks % count == 0)
        return ranks // each, each

    def copies_of_state(self) -> tuple[int, int]:
        """Copies of sharded state, and replicas that share each; ranks that share sequences share it too.

        Example:
            >>> one = {"job": "gpt2", "microbatch": 1, "global_batch_size": 16, "dp": 8}
            >>> [ExportRecipe(**one, zero=3, **more).copies_of_state() for more in ({}, {"shard_ranks": 4})]
            [(1, 8), (2, 4)]
        """
        copies = self.dp * self.cp // self.state_ranks
        return (copies, self.dp // copies) if self.dp % copies == 0 else (1, self.dp)

    def has_order(self, *order: Axis) -> bool:
        """Whether ranks have the devices in this order, as far as degrees are above 1."""
        mine, other = (
            [axis for axis in axes if getattr(self, axis) > 1] for axes in (self.rank_order, order or RANK_ORDER)
        )
        return mine == other


def lost_order(recipe: ExportRecipe) -> Iterator[str]:
    """What is said of another order of ranks than the usual one to a runtime that has no other.

    Args:
        recipe: of a plan
    """
    if not recipe.has_order():
        order, usual = (",".join(axes) for axes in (recipe.rank_order, RANK_ORDER))
        yield f"ranks by {order}: the runtime has them by {usual}; start ranks on other devices, by a rank file"


def lost_copies(recipe: ExportRecipe) -> Iterator[str]:
    """What is said of copies of sharded state to a runtime whose file shards it over all replicas.

    Args:
        recipe: of a plan
    """
    if recipe.shard_ranks is not None and recipe.zero:
        yield f"sharded state copied every {recipe.shard_ranks} ranks (HSDP): the file shards it over all replicas"


def torch_rounds(recipe: ExportRecipe) -> Iterator[str]:
    """Why torch's interleaved schedule does not alternate between chunks as the plan does: its rounds are equal.

    Args:
        recipe: of a plan

    Source:
        pytorch/pytorch, torch/distributed/pipelining/schedules.py, `ScheduleInterleaved1F1B`.
    """
    if recipe.schedule == "interleaved" and recipe.pp > 1:
        rounds, group = max(1, recipe.microbatches // recipe.pp), recipe.microbatch_group or recipe.pp
        if recipe.microbatches % rounds:
            yield f"torch interleaves microbatches in {rounds} equal rounds, and {recipe.microbatches} do not divide"
        elif group != recipe.microbatches // rounds:
            yield f"torch interleaves by groups of {recipe.microbatches // rounds} here, not of {group}"


def lost_account(recipe: ExportRecipe, target: str) -> Iterator[str]:
    """What is said to a runtime of PyTorch's modules of a plan whose time is that of other software.

    Args:
        recipe: of a plan
        target: name of the runtime
    """
    if recipe.planned_for not in ("", "fsdp"):
        yield f"time: the plan's is that of {recipe.planned_for}, which launches fewer kernels: plan with --to {target}"


def refuse(recipe: ExportRecipe, target: str, reasons: Iterable[str]) -> None:
    """Refuse a plan that a target cannot run.

    Args:
        recipe: of the plan
        target: name of the runtime
        reasons: why not; empty: it can

    Raises:
        InputError: there are reasons
    """
    if told := "; ".join(reasons):
        raise InputError(
            f"the plan for {recipe.job} cannot be exported to {target}: {told} (plan with --to {target})",
            code="export.not-expressible",
            job=recipe.job,
        )


def special_parts(shape: TransformerShape) -> tuple[str, ...]:
    """What a decoder has that Llama has not, which a target must have too.

    Args:
        shape: of the network

    Example:
        >>> from trimaran.pricing.analytical.shapes import gpt_shape
        >>> special_parts(gpt_shape(layers=2, hidden=64, heads=4))[:2]
        ('positions that are learned', 'feed-forward networks without gates')
    """
    experts = shape.experts
    has = {
        "a head of masked tokens": shape.head != "causal" or shape.segments > 0,
        "positions that are learned": shape.positions > 0,
        "positions that are neither rotary nor learned": not shape.rotary and not shape.positions,
        "feed-forward networks without gates": not shape.gated,
        "norms with a bias": shape.centred_norm,
        "biases": bool(shape.biases),
        "norms of queries and keys": shape.query_key_norm == "head",
        "norms of all heads of queries and keys": shape.query_key_norm not in (None, "head"),
        "norms behind sub-layers": shape.norms != _NORMS,
        "norms without parameters": not shape.norm_scales,
        "a norm of the embedding": shape.embedding_norm,
        "parallel blocks": shape.parallel,
        "windows of attention": any(shape.windows),
        "sinks of attention": shape.sinks,
        "latent attention": shape.latent is not None,
        "linear attention": shape.linear is not None,
        "gates of attention's output": shape.output_gate,
        "experts": experts is not None,
        "experts with biases": experts is not None and bool(shape.biases & {"feed_forward", "router"}),
        "shared experts": experts is not None and experts.shared_ffn > 0,
        "experts in some layers": experts is not None and (experts.dense_layers > 0 or experts.every > 1),
        "layers that predict further tokens": shape.prediction_layers > 0,
        "tied embeddings": shape.tied,
    }
    return tuple(name for name, is_there in has.items() if is_there)


def sharded_by_fsdp2(recipe: ExportRecipe) -> ExportRecipe:
    """What runs in place of a plan where states are sharded whole by FSDP2, or not at all, and optimizers are AdamW.

    ZeRO-1 becomes ZeRO-2, which needs no more memory: FSDP2 scatters gradients at each microbatch.

    Args:
        recipe: of a plan
    """
    return replace(
        recipe,
        zero=2 if recipe.zero == 1 else recipe.zero,
        gradients=None,
        optimizer_state=None,
        offload=False,
        recompute_layers=None,
    )


def lost_to_fsdp2(recipe: ExportRecipe, target: str) -> Iterator[str]:
    """What of a plan `sharded_by_fsdp2` changes.

    Args:
        recipe: of the plan
        target: name of the runtime
    """
    if recipe.zero == 1:
        yield f"ZeRO-1: {target} shards all (FSDP2) or nothing; the file shards gradients too, which costs time"
    if recipe.gradients == "bf16":
        yield f"gradients in bf16: {target} keeps and exchanges them in fp32"
    if recipe.optimizer_state not in (None, "fp32"):
        yield f"states of the optimizer in {recipe.optimizer_state}: AdamW's are in fp32"
    if recipe.offload:
        yield "the optimizer's state on the host: the file keeps it on the device"
    if recipe.recompute_layers is not None:
        yield f"recompute of {recipe.recompute_layers} layers a stage: {target} recomputes those of all or none"


def render(name: str, values: Mapping[str, object]) -> str:
    """A script of the folder `scripts`.

    Args:
        name: without its endings
        values: of its template
    """
    # The output is Python, so nothing is escaped.
    environment = Environment(trim_blocks=True, undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)
    template = environment.from_string(packaged_text(str(__package__), f"scripts/{name}.py.jinja"))
    return template.render(values)


ALLOCATOR = "expandable_segments:True"
"""Of PyTorch's allocator, in commands: without it fragments of a large network take some GiB more than plans assume."""

SETTINGS = f"PYTORCH_ALLOC_CONF={ALLOCATOR}"
"""What commands are started with."""


def torchrun_ranks(recipe: ExportRecipe) -> str:
    """How many ranks torchrun is told to start.

    Args:
        recipe: of a plan
    """
    nodes, each = recipe.nodes(recipe.devices)
    if nodes == 1:
        return f"--nproc-per-node {each}"
    return f"--nnodes {nodes} --nproc-per-node {each} --rdzv-endpoint HOST:29500"


def _node_of(premises: Premises) -> int:
    """Devices of a node of the cluster that a plan is for; `NODE` where it names none that is known."""
    try:
        devices = find_machine(premises.cluster).node.devices if premises.cluster else NODE
    except InputError:
        return NODE
    return devices if devices <= _MOST else _TRAY


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A recipe as one runtime takes it.

    Attributes:
        target: name of the runtime
        release: the release whose options these are
        file_name: what the file is usually called
        text: content of the file
        sections: the same as values, by section of the runtime's configuration
        next: what to do with the file
        lost: settings of the plan that cannot be exported, or are written in other words
        degrees: what the file says, by which it is priced; None: it says none
    """

    target: str
    release: str
    file_name: str
    text: str
    sections: dict[str, dict[str, object]]
    next: str
    lost: tuple[str, ...]
    degrees: Degrees | None = None

    def with_lost(self, line: str) -> "Exported":
        """The same, which names one more thing."""
        return replace(self, lost=(*self.lost, line))

    def written_to(self, path: Path) -> "Exported":
        """The same, whose commands name the file by the name that it is given, where it is a module too."""
        usual, own = Path(self.file_name), f"--module {Path(self.file_name).stem}"

        def named(text: str, file: str) -> str:
            return text.replace(self.file_name, file).replace(own, f"--module {shlex.quote(path.stem)}")

        command = named(self.next, shlex.quote(str(path)))
        if own in self.next and path.parent != usual.parent:
            command = f"PYTHONPATH={shlex.quote(str(path.parent))} {command}"
        return replace(self, file_name=path.name, text=named(self.text, path.name), next=command)


def recipe_of_plan(
    plan: Plan,
    graph: Graph,
    *,
    clip_norm: float | None = None,
    own_loss: bool = False,
    weighted_loss: bool = False,
    callbacks: tuple[str, ...] = (),
    drop_last: bool = True,
    follows_metric: bool = False,
) -> ExportRecipe:
    """The recipe of a plan.

    Args:
        plan: what was decided
        graph: of the plan's job
        clip_norm: the job's gradients are clipped to this norm
        own_loss: the job's model computes its loss
        weighted_loss: the job says what its loss is a mean over
        callbacks: that the job has
        drop_last: the job leaves out the last, smaller batch of an epoch
        follows_metric: the job's schedule follows a metric

    Raises:
        InputError: its steps overlap, which no runtime of a recipe does
    """
    if plan.strategy.is_stale:
        raise InputError(
            f"{plan.strategy.name} is not the training of one process. "
            "No runtime that a plan is exported to keeps earlier weights of a stage: "
            "run it by `trimaran train`, or plan with a synchronous schedule (--schedule 1f1b)",
            code="export.stale",
            strategy=plan.strategy.name,
        )
    strategy, batch = plan.strategy, plan.premises.global_batch_size
    placed = bool(strategy.parts)
    return ExportRecipe(
        job=plan.job,
        dp=strategy.dp,
        tp=strategy.tp,
        pp=1 if placed else strategy.pp,
        chunks=strategy.chunks,
        schedule=strategy.schedule,
        zero=strategy.zero,
        sequence_parallel=strategy.splits_sequences,
        stages=() if placed or strategy.pp == 1 else stages_of(graph, segment_ops(graph, strategy)),
        microbatch=batch // (strategy.dp * strategy.microbatches),
        microbatches=strategy.microbatches,
        global_batch_size=batch,
        sequence_length=_sequence_length(graph),
        precision=parse_precision(graph.precision),
        recompute="none" if strategy.memory_bytes is None else "full",
        bucket_bytes=None if strategy.bucket_bytes == DEFAULT_BUCKET_BYTES else strategy.bucket_bytes,
        clip_norm=clip_norm,
        compiled=strategy.execution == "compiled",
        node=_node_of(plan.premises),
        beyond=tuple(_beyond_of_plan(strategy)),
        source=ScriptSource(
            form="own-loss" if own_loss else _form(graph),
            layers=_layers(graph),
            tied="" if placed or strategy.pp == 1 else _tied(segment_ops(graph, strategy)),
            placed=placed,
            in_memory=strategy.memory_bytes is not None,
            sharded=bool(strategy.shards),
            weighted_loss=weighted_loss,
            callbacks=callbacks,
            drop_last=drop_last,
            follows_metric=follows_metric,
        ),
    )


def _form(graph: Graph) -> Form:
    """What a batch of the job is, by the names of its tensors; see `user_code/batches.py`."""
    names = {spec.name for spec in graph.inputs if spec.name not in graph.targets}
    if names == {"input"}:
        return "input"
    return "inputs" if names and all(name.startswith("input.") for name in names) else "mapping"


def _layers(graph: Graph) -> tuple[str, ...]:
    """Repeated modules of the most common list, each once."""
    units = dict.fromkeys(unit_of(op.module) for op in graph.ops)
    lists = Counter(unit.rpartition(".")[0] for unit in units if unit.rpartition(".")[2].isdigit())
    repeated = lists.most_common(1)[0][0] if lists else None
    return tuple(unit for unit in units if _is_layer(unit, repeated))


def _tied(parts: Sequence[Sequence[Op]]) -> str:
    """A parameter that operations of several parts use; empty: there is none."""
    seen: dict[str, int] = {}
    for number, ops in enumerate(parts):
        for parameter in (name for op in ops for name in op.parameters):
            if seen.setdefault(parameter, number) != number:
                return parameter
    return ""


def stages_of(graph: Graph, parts: Sequence[Sequence[Op]]) -> tuple[ExportStage, ...]:
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
    owner = {unit: max(found, key=found.__getitem__) for unit, found in work.items()}
    lists = Counter(unit.rpartition(".")[0] for unit in work if unit.rpartition(".")[2].isdigit())
    repeated = lists.most_common(1)[0][0] if lists else None
    return tuple(
        ExportStage(
            modules=tuple(unit for unit in work if owner[unit] == number),
            layers=sum(_is_layer(unit, repeated) for unit in work if owner[unit] == number),
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


def _beyond_of_plan(strategy: Strategy) -> Iterator[str]:
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
        yield "owners of gradient buckets (p2p): the file all-reduces"
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


# What a runtime calls "selective" is attention's probabilities, or what is cheap to recompute.
_SELECTIVE = frozenset({"attention", "norms", "activations", "feed_forward", "up_projections"})


_PRICED_ALONE: frozenset[Schedule] = frozenset({"zero-bubble", "dualpipe", "dualpipev"})
"""Schedules of the analytical model that are neither 1F1B nor interleaved."""


def recipe_of_degrees(plan: Plan) -> ExportRecipe:
    """What a plan of the analytical model says, in the words of other runtimes.

    Args:
        plan: without a program

    Raises:
        InputError: an unknown precision, or the plan does not say how many layers there are
    """
    strategy, premises = plan.strategy, plan.premises
    precision = parse_precision(premises.precision, what=f"the precision of the plan for {plan.job}")
    if premises.layers is None:
        raise InputError(
            f"the plan for {plan.job} has no program and does not say how many layers there are: add premises.layers",
            code="export.no-layers",
        )
    layers = strategy.segment_layers or _even(premises.layers, strategy.pp * strategy.chunks)
    recompute: Recompute = "none"
    if "layers" in strategy.recomputed:
        recompute = "full"
    elif strategy.recomputed & _SELECTIVE:
        recompute = "selective"
    fields = {field.name: getattr(strategy, field.name) for field in dataclasses.fields(Degrees)}
    # What makes it fit is part of the plan, whoever chose it.
    fields["gradients"] = strategy.gradients or premises.gradients or None
    fields["optimizer_state"] = strategy.optimizer_state or premises.optimizer_state or None
    if strategy.schedule not in _PRICED_ALONE:
        fields["schedule"] = "interleaved" if strategy.chunks > 1 else "1f1b"
    return ExportRecipe(
        job=plan.job,
        **fields,
        stages=tuple(ExportStage(modules=(), layers=count) for count in layers) if strategy.pp > 1 else (),
        global_batch_size=premises.global_batch_size,
        sequence_length=premises.sequence_length,
        precision="bf16" if precision == "fp8" else precision,
        recompute=recompute,
        beyond=(*_beyond_of_degrees(strategy, precision), *_beyond_of_data(premises)),
        shape=_shape(plan),
        planned_for=premises.framework,
        node=_node_of(premises),
    )


def _shape(plan: Plan) -> TransformerShape | None:
    """The shape of the plan's network, with the samples that it was planned for."""
    length = plan.premises.sequence_length
    found = decoder_of_job(plan.job, PlanRequest(options={} if length is None else {"sequence": str(length)}))
    if found is None or found.shape.layers != plan.premises.layers:
        return None
    return found.shape


def _even(layers: int, segments: int) -> tuple[int, ...]:
    return tuple(layers // segments + (segment < layers % segments) for segment in range(segments))


def _beyond_of_degrees(degrees: Degrees, precision: Precision) -> Iterator[str]:
    if degrees.schedule in ("zero-bubble", "dualpipe", "dualpipev"):
        yield f"schedule {degrees.schedule}: the file says 1F1B, which idles for longer"
    if degrees.tensor_overlap is not None:
        yield "whether exchanges of tensor-parallel ranks overlap products: the target's own default"
    if "layers" in degrees.recomputed and len(degrees.recomputed) > 1:
        yield f"recompute of {', '.join(sorted(degrees.recomputed))}: the file names layers alone"
    if precision == "fp8":
        yield "products in fp8: the file says bf16"


def _beyond_of_data(premises: Premises) -> Iterator[str]:
    """What is said of documents that the plan was made for: files have the length of a sequence alone."""
    options = dict(option.split(" ", 1) for option in premises.options if " " in option)
    if "--lengths" not in options:
        return
    lengths, packing = options["--lengths"], options.get("--packing", "packed")
    if packing == "causal":
        yield f"documents of {lengths} in each sequence, with attention across them: the data must be packed so"
    elif packing == "padded":
        yield f"documents of {lengths}, padded to the longest of a microbatch: the file has whole sequences; pad data"
    else:
        yield (
            f"attention within each of the documents of {lengths} that a sequence packs: the file attends across them, "
            "which trains otherwise and takes longer; set the target's own mask by documents"
        )
