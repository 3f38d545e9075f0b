"""From a strategy to the part of the job that this rank runs."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parameter import is_lazy

from trimaran.base.errors import InputError
from trimaran.base.job import Job
from trimaran.graph.behaviour import OptimizerTraits
from trimaran.graph.capture.capture import Capture
from trimaran.graph.optimizers import named_in
from trimaran.graph.types import Graph, ParameterUse
from trimaran.launch.world import World
from trimaran.program.gradients import gradient_buckets
from trimaran.program.layout import is_chained
from trimaran.program.refusals import update_obstacle
from trimaran.program.strategy import Strategy
from trimaran.program.types import Instruction, Kind, Program
from trimaran.runtime.communication.channels import Agreement, Channels
from trimaran.runtime.data.reading import digest_of
from trimaran.runtime.parts.part import Making, RankPart, Used
from trimaran.runtime.parts.replica import BucketedReplica, Replica
from trimaran.runtime.parts.segments import parameters_by_name, segmented_part
from trimaran.runtime.step.updates import Updater


def check_world(strategy: Strategy, programs: Sequence[Program], world: World) -> None:
    """Refuse a world that a strategy and its programs are not for.

    Raises:
        InputError: the number of ranks differs
    """
    for program in programs:
        if len(program.ranks) != strategy.devices:
            raise InputError(
                f"the strategy is for {strategy.devices} ranks, the program for {len(program.ranks)}: lower it again",
                code="strategy.program-for-other-ranks",
                strategy=strategy.devices,
                program=len(program.ranks),
            )
    if strategy.devices != world.size:
        names = ("dp", "pp", "tp") if strategy.tp > 1 else ("dp", "pp")
        degrees = " x ".join(f"{name} {getattr(strategy, name)}" for name in names)
        raise InputError(
            f"the strategy is for {strategy.devices} ranks ({degrees}), this world has "
            f"{world.size}: start {strategy.devices} ranks, or plan again for this world",
            code="strategy.wrong-world-size",
            strategy=strategy.devices,
            world=world.size,
        )


def is_partitioned(strategy: Strategy) -> bool:
    """Whether a strategy partitions the network: ranks run parts of the captured graph, not the user's own model."""
    return strategy.pp > 1 or strategy.segments > 1 or strategy.tp > 1 or bool(strategy.shards)


def check_capture(job: Job, strategy: Strategy, capture: Capture | None) -> None:
    """Refuse a strategy that partitions the network, where there is no graph to partition.

    Raises:
        InputError: the model could not be captured, or its capture is not given
    """
    if is_partitioned(strategy) and (capture is None or capture.flow is None):
        raise InputError(
            f"the model of {job.name!r} could not be captured as a graph, so it cannot be split into "
            f"{strategy.segments} stages, nor its tensors be shared: use data parallelism (pp=1, tp=1)"
        )
    if strategy.sync == "p2p" and strategy.dp > 1 and capture is None:
        raise InputError(
            f"buckets with owners need the graph of {job.name!r}, which says when each parameter has its gradient: "
            "give `capture`"
        )


def check_update(job: Job, strategy: Strategy, traits: OptimizerTraits, *, gradient_noise: bool = False) -> None:
    """Refuse a strategy under which the update would not be that of a plain loop.

    Args:
        job: the job
        strategy: how it runs
        traits: of its optimizer
        gradient_noise: the norms of gradients are to be noted

    Raises:
        InputError: with the reason
    """
    found = update_obstacle(strategy, traits, precision=job.precision)
    if found:
        raise InputError(
            f"{job.name!r} cannot train under {strategy.name}: {found}",
            code="strategy.cannot-update",
            strategy=strategy.name,
        )
    if gradient_noise and job.precision == "fp16":
        raise InputError(
            "the gradient noise scale cannot be seen in fp16, where losses are scaled: use bf16 or fp32",
            code="gradient-noise.fp16",
        )


def make_updater(job: Job, strategy: Strategy, part: RankPart, model: nn.Module, traits: OptimizerTraits) -> Updater:
    """The job's optimizer over what a rank trains.

    Args:
        job: the job
        strategy: how it runs
        part: of the rank
        model: the user's, which holds the parameters of the part under their names
        traits: of the optimizer over all parameters

    Raises:
        InputError: the optimizer would not do on these what it does on all
    """
    some = bool(part.elsewhere) or strategy.pp > 1 or bool(strategy.shards)
    parameters = named_in(model, part.parameters)
    return Updater(job, parameters, part.counted, elsewhere=part.elsewhere, traits=traits if some else None)


def check_alike(model: nn.Module, agreement: Agreement) -> None:
    """Refuse models that differ from rank to rank in more than values of parameters and buffers, which rank 0 gives.

    Args:
        model: the user's
        agreement: with the other ranks

    Raises:
        InputError: they do
    """
    heard = agreement.gather_objects(_written_down(model) if agreement.group is not None else {}, "comparing models")
    for rank, found in enumerate(heard):
        for name in {**heard[0], **found}:
            one, other = heard[0].get(name), found.get(name)
            # A number that is that of the rank says which part it has, and not what it computes.
            if one != other and (one, other) != (("number", "0"), ("number", str(rank))):
                raise InputError(
                    f"Job.model makes another model on rank {rank} than on rank 0: {name} differs. Ranks get the "
                    "parameters and buffers of rank 0, and nothing else of its model: let Job.model draw from the "
                    "global generators, which are seeded, ask for no rank, and iterate over sorted lists, as the order "
                    "of a set is another in each process; or put the tensor into a buffer (register_buffer)",
                    code="model.other-on-rank",
                    ranks=(0, rank),
                    name=name,
                )


def _written_down(model: nn.Module) -> dict[str, tuple[str, str]]:
    """What a model has but the values of its parameters and buffers, by name."""
    found = {
        name: ("tensor", f"{one.dtype} {tuple(one.shape)}")
        for name, one in (*model.named_parameters(), *model.named_buffers())
        if not is_lazy(one)
    }
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        found[path or "the model"] = ("module", type(module).__name__)
        for name, one in vars(module).items():
            if name.startswith("_torchdynamo"):
                continue  # of a module that torch.compile has wrapped: an address
            if isinstance(one, bool | int | float) and "seed" not in name:
                found[prefix + name] = ("number", repr(one))
            elif isinstance(one, torch.Tensor | numpy.ndarray | list | tuple):
                found[prefix + name] = ("content", str(digest_of([one])))
    return found


def share_weights(model: nn.Module, world: World, channels: Channels) -> None:
    """Give every rank the parameters and buffers of rank 0.

    The seed has made them equal already, unless the model draws from something that the seed does not reach.

    Args:
        model: the user's
        world: this process's
        channels: communicate
    """
    if world.size == 1:
        return
    group = channels.control if world.device == "cpu" else None
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            contiguous = tensor.detach().contiguous()
            dist.broadcast(contiguous, src=0, group=group)
            if contiguous.data_ptr() != tensor.data_ptr():
                tensor.copy_(contiguous)


def make_part(making: Making) -> RankPart:
    """The part of this rank.

    Args:
        making: what it is made of

    Raises:
        InputError: the program is not for the strategy
    """
    strategy, capture = making.strategy, making.capture
    if strategy.zero > 1:
        # Imported where it is used: FSDP2 takes a second to import.
        from trimaran.runtime.zero.part import zero_part

        return zero_part(making)
    if capture is not None and (strategy.segments > 1 or strategy.shards):
        part = _sharded_or_segmented(strategy)(making, capture)
    elif capture is not None and strategy.sync == "p2p" and strategy.dp > 1:
        part = owner_model(making, capture.graph)
    else:
        part = whole_model(making)
    if strategy.zero == 1 and strategy.dp > 1 and capture is not None:
        from trimaran.runtime.zero.part import share_update

        part = share_update(part, making, capture.graph)
    return part


def _sharded_or_segmented(strategy: Strategy) -> Callable[[Making, Capture], RankPart]:
    if not strategy.shards:
        return segmented_part
    from trimaran.runtime.tensor.part import tensor_part

    return tensor_part


def bucket_instructions(instructions: Sequence[Instruction]) -> dict[int, list[Instruction]]:
    """The reductions of gradient buckets of each segment, in order; of hierarchical ones the reduce-scatters."""
    found: dict[int, list[Instruction]] = {}
    for instruction in instructions:
        label = instruction.label
        first = instruction.kind in _REDUCTIONS and not is_chained(instruction)
        if first and label[:1] == "b" and label[1:].isdigit():
            found.setdefault(instruction.segment or 0, []).append(instruction)
    return found


_REDUCTIONS = (Kind.ALL_REDUCE, Kind.REDUCE, Kind.REDUCE_SCATTER)


def check_use(job: Job, strategy: Strategy, use: ParameterUse) -> None:
    """Refuse a strategy that partitions a network of which each batch may use another part.

    Raises:
        InputError: it does
    """
    if use != "varies":
        return
    if is_partitioned(strategy):
        raise InputError(
            f"which parameters of {job.name!r} get a gradient depends on the data, and a partitioned network runs "
            "all of its parts: use data parallelism (pp=1, tp=1)",
            code="unused-parameters.pipeline",
        )
    if strategy.zero > 1 and strategy.units:
        raise InputError(
            f"which parameters of {job.name!r} get a gradient depends on the data, so a unit such as "
            f"{strategy.units[0]!r} may be called on one replica and not on another, which would wait for it: shard "
            "the model as a whole (units=()), or take zero=1",
            code="unused-parameters.sharded-units",
            units=strategy.units,
        )


def replica_buckets(
    graph: Graph | None, parameters: Sequence[nn.Parameter], model: nn.Module, bucket_bytes: int
) -> list[list[nn.Parameter]]:
    """The buckets of all trained parameters of a model, in order of readiness: first those of the program.

    Args:
        graph: has the operations that use them; None: they are taken to be ready in the reverse order of the model
        parameters: that are trained, or may be later
        model: the user's
        bucket_bytes: size at which a bucket is reduced [bytes]

    Returns:
        Buckets of one dtype and device each. Parameters that no operation of the graph uses are in the last buckets.
    """
    found: list[list[nn.Parameter]] = []
    if graph is not None:
        named = parameters_by_name(graph, model)
        made = gradient_buckets(graph, graph.ops, bucket_bytes)
        found = [[named[name] for name in bucket.parameters] for bucket in made]
    placed = {id(parameter) for bucket in found for parameter in bucket}
    opened: dict[tuple[torch.dtype, torch.device], list[nn.Parameter]] = {}
    for parameter in reversed(parameters):
        if id(parameter) in placed:
            continue
        kind = (parameter.dtype, parameter.device)
        opened.setdefault(kind, []).append(parameter)
        if sum(one.nbytes for one in opened[kind]) >= bucket_bytes:
            found.append(opened.pop(kind))
    return [*found, *opened.values()]


def whole_model(making: Making) -> RankPart:
    """The part of a rank that has the whole model.

    Args:
        making: what it is made of
    """
    job, strategy, model = making.job, making.strategy, making.model
    parameters = tuple(making.trained)
    refits = strategy.dp == 1 or (strategy.sync == "all-reduce" and strategy.compression is None)
    thawing = False
    if refits and (job.on_step is not None or job.on_epoch is not None):
        # A callback may free what is frozen now; without a gradient an optimizer leaves a parameter alone.
        thawing = len(parameters) < sum(1 for _ in model.parameters())
        parameters = tuple(model.parameters())
    used = Used(parameters) if strategy.dp > 1 and parameters and (making.use != "always" or thawing) else None
    stage: Replica | BucketedReplica
    if used is None:
        stage = Replica(
            model,
            own_loss=job.loss is None,
            execution=strategy.execution,
            group=making.channels.group(tuple(range(strategy.dp))) if strategy.dp > 1 else None,
            bucket_bytes=strategy.bucket_bytes,
            reduce_bucket=partial(making.reduce_bucket, 0),
        )
    else:
        graph = None if making.capture is None else making.capture.graph
        stage = _bucketed(making, replica_buckets(graph, parameters, model, strategy.bucket_bytes), used)
    return RankPart(
        stages={0: stage},
        parameters=parameters,
        counted=parameters,
        tied={},
        reads=True,
        used=used,
        refit=stage.refit if refits else None,
    )


def _bucketed(making: Making, buckets: Sequence[Sequence[nn.Parameter]], used: Used | None) -> BucketedReplica:
    return BucketedReplica(
        making.model,
        own_loss=making.job.loss is None,
        execution=making.strategy.execution,
        buckets=buckets,
        reduce_bucket=partial(making.reduce_bucket, 0),
        used=used,
    )


def owner_model(making: Making, graph: Graph) -> RankPart:
    """The part of a rank that has the whole model and owns some of its buckets.

    Parameters that no operation of the graph uses have the owner of the last bucket, and are broadcast with it.

    Args:
        making: what it is made of
        graph: names its parameters

    Raises:
        InputError: the program's buckets are not those of the strategy
    """
    strategy, trained = making.strategy, making.trained
    reduces = bucket_instructions(making.instructions).get(0, [])
    labels = [bucket.label for bucket in gradient_buckets(graph, graph.ops, strategy.bucket_bytes)]
    filled = replica_buckets(graph, trained, making.model, strategy.bucket_bytes)
    owned = {instruction.label: instruction.root_rank == instruction.rank for instruction in reduces}
    if not owned.keys() == set(labels) or (filled and not labels):
        raise InputError(
            f"the program reduces {len(owned)} buckets to their owners, and the strategy {strategy.name} makes "
            f"{len(labels)}: lower it again",
            program=len(owned),
            strategy=len(labels),
        )
    buckets = dict(zip(labels, filled, strict=False))
    if labels:
        others = [parameter for bucket in filled[len(labels) :] for parameter in bucket]
        buckets[labels[-1]] = [*buckets[labels[-1]], *others]
    own = {id(parameter) for label, bucket in buckets.items() if owned[label] for parameter in bucket}
    mine = tuple(parameter for parameter in trained if id(parameter) in own)
    used = Used(trained) if trained and making.use != "always" else None
    return RankPart(
        stages={0: _bucketed(making, filled, used)},
        parameters=mine,
        counted=mine,
        tied={},
        reads=True,
        buckets=buckets,
        elsewhere=tuple(parameter for parameter in trained if id(parameter) not in own),
        used=used,
    )
