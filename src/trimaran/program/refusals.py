"""Which strategies train a job exactly as one process does with the whole global batch.

`objection` is the one answer: the planner asks it for each strategy, so does every command that runs a plan, and so
does the table of `trimaran check`. Batch norm and random draws differ in parts of a batch, but as they do in one
process that sees the same parts: that is no objection.

Each `Refusal` is evidence of a job under a kind of plan, one sentence, and one remedy; the first that holds is told.

Strategies under which an optimizer updates as in a plain loop:

    whole      one device, replicas that sum everywhere      the optimizer of every rank holds all parameters
    subsets    zero=1, sync="p2p", pipelines, placements     that of a rank holds some: right where it is separable
    parts      zero=2 and 3, tensor parallelism              it holds parts of tensors: right where it is elementwise

An optimizer that is not elementwise may still be right under zero=2 and 3, on tensors that know that they are parts:
the trial of the plan shows that.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trimaran.base.errors import InputError
from trimaran.base.units import format_count, format_some
from trimaran.graph.behaviour import OF_LOSS, TOO_LARGE, Behaviour, OptimizerTraits
from trimaran.program.strategy import Part, Shard, Strategy


class _Kind:
    """What a strategy makes of a job, as far as refusals go by it."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy, self.dp, self.zero = strategy, strategy.dp, strategy.zero
        self.several = strategy.devices > 1
        self.replicas, self.microbatches = strategy.dp > 1, strategy.microbatches > 1
        self.splits = self.replicas or self.microbatches
        # Not every rank computes the whole network.
        self.divided = strategy.pp * strategy.tp > 1
        self.shares = strategy.tp > 1 or bool(strategy.shards)
        self.partitioned = strategy.pp > 1 or strategy.segments > 1 or self.shares
        self.parts = self.partitioned or strategy.zero > 1
        # A rank has parts of tensors; updates some parameters.
        self.shards = self.shares or strategy.zero > 1
        self.owns = self.replicas and (strategy.zero == 1 or strategy.sync == "p2p")
        self.subsets = strategy.pp > 1 or self.owns
        self.workers = bool(strategy.feeding.workers)
        self.rereads = self.workers or bool(strategy.feeding.cached)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refusal.

    Attributes:
        holds: gives what the sentence names, of a job under a kind of plan, or True; anything that is false: it is none
        sentence: what would be wrong
        remedy: what to do
    """

    holds: "Callable[[Behaviour, _Kind], Any]"
    sentence: str
    remedy: str = ""

    def text(self, seen: Behaviour, kind: _Kind) -> str:
        """The sentence and the remedy; empty: it does not hold."""
        found = self.holds(seen, kind)
        if not found:
            return ""
        named = found if isinstance(found, tuple) else (found,)
        joint = "; " if ": " in self.sentence else ": "
        return f"{self.sentence}{joint}{self.remedy}".format(*named) if self.remedy else self.sentence.format(*named)


_WHOLE = 'replicas that update everything (dp with sync="all-reduce", zero=0)'

_OF_OPTIMIZERS = (
    Refusal(
        lambda seen, kind: seen.optimizer.needs_closure and seen.optimizer.class_name,
        "the step of {} computes the loss again (a closure, or two halves of a step), and here each microbatch runs "
        "forward and backward once",
        "use an optimizer whose step() needs no closure",
    ),
    Refusal(
        lambda seen, kind: seen.optimizer.keeps_gradients and seen.optimizer.class_name,
        "the zero_grad of {} keeps some of the gradients, and here they are forgotten after an update",
        "let its step keep in its state what it needs of them",
    ),
    Refusal(lambda seen, kind: seen.precision == "fp16" and scaling_obstacle(kind.strategy), "{}"),
    Refusal(
        lambda seen, kind: kind.several and seen.optimizer.schedule_draws,
        "Job.lr_schedule sets other options each time that it is tried, as it draws them, or reads a clock, and every "
        "rank would have its own",
        "let it go by its own steps, or draw from a generator that it makes and seeds, or use one device",
    ),
    Refusal(
        lambda seen, kind: kind.several and seen.optimizer.draws and seen.optimizer.class_name,
        "the step of {} draws random numbers, and every rank would draw its own",
        "use one device",
    ),
    Refusal(
        lambda seen, kind: kind.several and _of_optimizer(seen, seen.optimizer.foreign),
        "{} holds what is no parameter of the model ({}), whose gradients no other rank would hear of",
        "put them into the model, or use one device",
    ),
    Refusal(
        lambda seen, kind: (kind.shards or kind.subsets) and _of_optimizer(seen, seen.optimizer.extra),
        "{} holds parameters that it was not given ({}), and a rank updates some only",
        f"let Job.optimizer use those of its argument, which has named_parameters() too, or use {_WHOLE}",
    ),
    Refusal(
        lambda seen, kind: (kind.shards or kind.subsets) and seen.optimizer.hooked and seen.optimizer.class_name,
        "hooks on the step of {} would see the parameters of one rank only",
        f"use {_WHOLE}",
    ),
    Refusal(
        lambda seen, kind: (
            (kind.shards or kind.subsets)
            and (
                seen.optimizer.schedule_reads
                or (not seen.optimizer.separable and (kind.subsets or kind.strategy.zero < 2))
            )
            and (seen.optimizer.class_name, seen.optimizer.reason)
        ),
        "each rank updates some parameters, and {} cannot be split over parameters: {}",
        f"use {_WHOLE}",
    ),
    Refusal(
        lambda seen, kind: (
            kind.shares and not seen.optimizer.elementwise and (seen.optimizer.class_name, seen.optimizer.reason)
        ),
        "ranks that share tensors update parts of them, and {} needs whole parameters: {}",
        "use one that treats every element by itself, or tp=1 without shards",
    ),
)

_GATHERING = (
    Refusal(
        lambda seen, kind: kind.divided and seen.reduction == "gathers",
        "the loss gathers across ranks, and here not every rank computes it on other samples",
        "use replicas with one microbatch each (--allow dp --microbatches 1)",
    ),
    Refusal(
        lambda seen, kind: seen.reduction == "gathers" and _uneven_batch(seen, kind),
        "the loss gathers across ranks, and {} has {} samples, which {} replicas cannot share evenly",
        "{}",
    ),
)

_IMPOSSIBLE = (
    Refusal(
        lambda seen, kind: (
            seen.precision == "fp16" and (seen.reduction == "pair" or (seen.reduction == "given" and kind.splits))
        ),
        "in fp16 the loss is scaled before its weight is known",
        "return a mean, without Job.loss_weight, which is then looked for, or use one device without microbatches, or "
        'precision="bf16"',
    ),
    *_OF_OPTIMIZERS,
    Refusal(
        lambda seen, kind: _last_that_fails(seen, kind.strategy),
        "the data is a stream that does not say how long it is, so that its last batch may have {}, and the job fails "
        "on parts of {}: {}",
        "set Job.drop_last, or give the stream a __len__",
    ),
    Refusal(
        lambda seen, kind: _part_that_fails(seen, kind.strategy),
        "the job fails on {}: {}",
        "use another global batch, other parts, or Job.drop_last where it is the last",
    ),
    Refusal(
        lambda seen, kind: kind.divided and seen.logs_over_ranks,
        "the forward or the loss communicates, if only for a log, and here not every rank computes it",
        "log in Job.on_step, which gets the loss of all ranks, or use replicas",
    ),
    *_GATHERING,
    Refusal(
        lambda seen, kind: kind.several and (kind.dp < kind.strategy.devices or kind.strategy.shards) and seen.synced,
        "{} is a SyncBatchNorm, which waits for all ranks, and here not every rank runs it",
        "use replicas, or nn.BatchNorm",
    ),
    Refusal(
        lambda seen, kind: (
            kind.several
            and seen.synced
            and next(((seen.synced[0], one, kind.dp) for one in seen.batches if one < kind.dp), ())
        ),
        "{} is a SyncBatchNorm, and the last batch of an epoch has {} samples for {} replicas",
        "set Job.drop_last, or use nn.BatchNorm",
    ),
    Refusal(
        lambda seen, kind: kind.zero > 1 and seen.scripted,
        "{} is a module of torch.jit, which takes no hooks, by which shards are gathered",
        "use replicas with zero=0 or 1, or the module before it was scripted",
    ),
    Refusal(
        lambda seen, kind: (kind.parts or kind.owns) and seen.overlapping,
        "{} and {} lie in the same memory, so that who updates one changes the other, and here ranks have separate "
        "tensors, or update some",
        "give both modules one parameter (head.weight = embedding.weight), or use one device, or replicas with zero=0 "
        'and sync="all-reduce"',
    ),
    Refusal(
        lambda seen, kind: kind.partitioned and seen.varying,
        "{} has a gradient in some batches only, and a partitioned network runs all of its parts, where what has none "
        "has zeros, by which an optimizer updates",
        "use one device or replicas",
    ),
    Refusal(
        lambda seen, kind: kind.zero > 1 and _mixed_unit(seen, kind.strategy),
        "{} and {} have different dtypes and would be gathered as one, which FSDP does not do",
        "use zero=0 or 1, or put parameters of one dtype into a module that is a unit",
    ),
    Refusal(
        lambda seen, kind: kind.zero > 1 and seen.hollow,
        "{} has no elements, and cannot be sharded",
        "leave it out of the model, or use zero=0 or 1",
    ),
    Refusal(
        lambda seen, kind: kind.parts and seen.renamed,
        "a hook gives the state_dict of the model {}, which is none of its parameters and buffers, and here a rank has "
        "a part of these, which it finds by their names",
        "rename entries where the file is read, or use one device, or replicas with zero=0 or 1",
    ),
    Refusal(
        lambda seen, kind: kind.strategy.pp > 1 and seen.leaves_out,
        "Job.collate may leave out samples, and stages send each other tensors of as many samples as a part was asked "
        "for",
        "leave them out of the data set (torch.utils.data.Subset), or use replicas",
    ),
)
"""What nobody can accept: the step cannot be done so, or ranks would wait for each other."""

_OTHERWISE = (
    Refusal(
        lambda seen, kind: seen.moved,
        "{} gives something else for the same batch each time, also under the same seeds, by what a look at the job "
        "has moved and cannot put back, such as an iterator, a queue or a file",
        "keep a number or a tensor in its place, as the index of the entry of a list, in an attribute or a dict; to "
        "draw, use the global generators of torch, random or numpy",
    ),
    Refusal(
        lambda seen, kind: kind.several and seen.follows_ranks,
        "the forward, the loss, a hook or the optimizer asks which rank of how many this is (WORLD_SIZE), and gives "
        "something else among several",
        "a global batch and its gradient are the same on any number of ranks, so write it as for one process",
    ),
    Refusal(
        lambda seen, kind: (kind.zero > 1 or kind.divided) and seen.written,
        "the forward, or train(), writes to the parameter {}, and a rank that has a part of the parameters would write "
        "to a copy",
        "use replicas with zero=0 or 1, or keep it outside of the model, by name, and update it in Job.on_step",
    ),
    Refusal(
        lambda seen, kind: kind.strategy.execution == "compiled" and _changed(seen),
        "the forward changes {}, and torch.compile computes anew in the backward what the forward made of it, from "
        "what is there by then, so that gradients are others",
        "run it eagerly (--execution eager), or update it in Job.on_step",
    ),
    Refusal(
        lambda seen, kind: kind.shards and seen.gradient_hooks,
        "the hook on the gradient of {} would not see it, as a rank has a part of the parameter",
        "use one device, replicas with zero=0 or 1, or a pipeline; or do it in the optimizer's step",
    ),
    Refusal(
        lambda seen, kind: next((one for one in seen.readers if _is_elsewhere(one[0], kind)), ()),
        "{} holds {}, of which a rank has a part, or that is not up to date there",
        "let the forward compute what it needs of it, or use one device, or replicas with zero=0, and workers=0",
    ),
    Refusal(
        lambda seen, kind: (kind.several or kind.rereads) and seen.data_carries,
        "a sample that is read again, or its batch, differs, also under the same seeds, or stays as it was drawn "
        "first, so that it depends on earlier reads, and ranks and workers read others than one process does",
        "draw from the global generators of torch, random or numpy, which are seeded by sample, in place of a "
        "generator of the data set or of Job.collate, and keep nothing that was drawn in __getitem__; or use one "
        "device with workers=0",
    ),
    Refusal(
        lambda seen, kind: seen.read_together,
        "__getitems__ of the data set gives other samples for several numbers than __getitem__ for each, so that a "
        "sample depends on those that are read with it, and each part of a batch is read by itself",
        "do in Job.collate, or in the forward, what is done over samples",
    ),
    Refusal(
        lambda seen, kind: kind.replicas and seen.own_generator,
        "the forward or the loss draws from a generator that the job keeps, which is in the same state on every "
        "replica, so that samples of several replicas would get the same draws",
        "draw from the global generator, which is seeded by rank, or use one device",
    ),
    Refusal(
        lambda seen, kind: kind.splits and seen.restarts,
        "each call of the forward or the loss seeds what it draws anew, so that samples of several parts of a batch "
        "would get the same draws",
        "draw from the global generator, which is seeded by Job.seed, or use one device without microbatches",
    ),
    Refusal(
        lambda seen, kind: kind.splits and seen.not_looked != TOO_LARGE and seen.not_looked,
        "it is not known whether parts of a batch train it as the whole does, as a look at the job failed: {}",
        "let it run on a few samples, or use one device without microbatches",
    ),
    *_GATHERING,
    Refusal(
        lambda seen, kind: kind.microbatches and seen.reduction == "gathers",
        "the loss gathers across ranks, and a microbatch sees those of other ranks only, not the whole batch",
        "use one microbatch (--microbatches 1)",
    ),
    Refusal(
        lambda seen, kind: (
            kind.replicas
            and seen.reduction != "gathers"
            and not seen.replicates
            and _why(seen, "on several ranks", seen.replicas)
        ),
        "{}",
    ),
    Refusal(
        lambda seen, kind: (
            kind.microbatches
            and seen.reduction != "gathers"
            and not seen.splits
            and _why(seen, "in microbatches", seen.microbatches)
        ),
        "{}",
    ),
)
"""What would train another job, which a user may accept."""


def _first(rows: Sequence[Refusal], seen: Behaviour, strategy: Strategy) -> str:
    kind = _Kind(strategy)
    return next(filter(None, (row.text(seen, kind) for row in rows)), "")


def update_obstacle(strategy: Strategy, traits: OptimizerTraits, *, precision: str = "fp32") -> str:
    """Why an update under a strategy would not be that of a plain loop; empty: it would.

    Args:
        strategy: how a job runs
        traits: of its optimizer
        precision: of the job

    Example:
        >>> update_obstacle(Strategy(dp=2, zero=1), OptimizerTraits(class_name="SGD"))
        ''
        >>> traits = OptimizerTraits(class_name="Norm", separable=False, elementwise=False, reason="it takes one norm")
        >>> update_obstacle(Strategy(dp=2), traits)
        ''
        >>> update_obstacle(Strategy(dp=2, zero=1), traits)
        'each rank updates some parameters, and Norm cannot be split over parameters: it takes one norm; use replicas \
that update everything (dp with sync="all-reduce", zero=0)'
    """
    return _first(_OF_OPTIMIZERS, Behaviour(optimizer=traits, precision=precision), strategy)


def scaling_obstacle(strategy: Strategy) -> str:
    """Why gradients cannot be scaled for fp16 under a strategy as in a plain loop; empty: they can.

    Args:
        strategy: how a job runs

    Example:
        >>> scaling_obstacle(Strategy(dp=2, zero=1)), "zero=3" in scaling_obstacle(Strategy(dp=2, zero=3))
        ('', True)
    """
    divided = {
        "pipelines and placements": strategy.pp > 1 or strategy.segments > 1,
        "ranks that share tensors": strategy.tp > 1 or bool(strategy.shards),
        f"zero={strategy.zero}": strategy.zero > 1,
        'sync="p2p"': strategy.sync == "p2p" and strategy.dp > 1,
        "compressed gradients": strategy.compression is not None,
    }
    found = [name for name, holds in divided.items() if holds]
    if not found:
        return ""
    return (
        f"in fp16 gradients are scaled for one device, for replicas and for zero=1, not for {' and '.join(found)}: "
        'use these, or precision="bf16", which needs no scaling'
    )


KINDS: dict[str, Strategy] = {
    "one device": Strategy(),
    "accumulation": Strategy(microbatches=2),
    "data parallel": Strategy(dp=2),
    "ZeRO-1": Strategy(dp=2, zero=1),
    "ZeRO-2": Strategy(dp=2, zero=2),
    "ZeRO-3": Strategy(dp=2, zero=3),
    "p2p": Strategy(dp=2, sync="p2p"),
    "pipeline": Strategy(pp=2, microbatches=2, boundaries=("",)),
    "tensor parallel": Strategy(tp=2, shards=(Shard(op="", style="column"),)),
    "placement": Strategy(pp=2, parts=(Part(ops=(), row=0), Part(ops=(), row=1))),
    "memory plan": Strategy(memory_bytes=1),
}
"""The kinds of `trimaran check`, each with a strategy of it that says what it does to a job."""


def objection(behaviour: Behaviour | None, strategy: Strategy) -> str | None:
    """Why a kind of plan is refused: it would not train the job; None: it would.

    Nothing is refused where nobody has looked, or the user has accepted that.

    Args:
        behaviour: what was seen of the job
        strategy: a plan of that kind

    Example:
        >>> seen = Behaviour(reduction="batch", microbatches=0.94, replicas=0.94, tolerance=1e-7)
        >>> objection(seen, Strategy()) is None
        True
        >>> objection(seen, Strategy(dp=2))[:58]
        'the loss of a batch is not made of the losses of its parts'
    """
    if behaviour is None:
        return None
    return _first(_IMPOSSIBLE, behaviour, strategy) or (None if behaviour.accepted else difference(behaviour, strategy))


def difference(behaviour: Behaviour, strategy: Strategy) -> str | None:
    """How gradients would differ from those of the whole batch, accepted or not; None: they would not.

    Args:
        behaviour: what was seen of the job
        strategy: by which it is run
    """
    return _first(_OTHERWISE, behaviour, strategy) or None


def check_exact(behaviour: Behaviour | None, strategy: Strategy) -> None:
    """Refuse a strategy that would not train the job exactly.

    Args:
        behaviour: what was seen of the job
        strategy: to run

    Raises:
        InputError: with the reason
    """
    found = objection(behaviour, strategy)
    if behaviour is None or found is None:
        return
    if objection(replace(behaviour, accepted=True), strategy) is not None:
        raise InputError(
            f"{strategy.name} cannot train this job: {found}", code="strategy.cannot-train", strategy=strategy.name
        )
    raise InputError(
        f"{strategy.name} would train something else than this job: {found}. To train it all the same: "
        "--accept-inexact, or init(…, accept_inexact=True)",
        code="strategy.not-exact",
        strategy=strategy.name,
    )


def _of_optimizer(seen: Behaviour, held: Sequence[str]) -> tuple[str, ...]:
    return (seen.optimizer.class_name, format_some(held)) if held else ()


def _changed(seen: Behaviour) -> tuple[str, ...]:
    return tuple(one for one in (*seen.buffers, *seen.written) if not one.startswith(OF_LOSS))


def _is_elsewhere(field: str, kind: _Kind) -> bool:
    """Whether a field of the job is used where the model is in parts, or not up to date."""
    of_data = field in ("Job.dataset", "Job.collate") and kind.rereads
    return kind.parts or of_data or (field == "Job.lr_schedule" and kind.owns)


def _uneven_batch(seen: Behaviour, kind: _Kind) -> tuple[Any, ...]:
    for batch in seen.batches:
        if batch % kind.dp:
            last = batch != seen.batches[0]
            which = "the last batch of an epoch" if last else "a global batch"
            return which, batch, kind.dp, "set Job.drop_last" if last else "use another global batch, or other replicas"
    return ()


def _last_that_fails(seen: Behaviour, strategy: Strategy) -> tuple[str, ...]:
    sizes = {size for size, _ in seen.failing}
    if sizes and seen.last_unknown and strategy.dp * strategy.microbatches > 1:
        for last in range(1, seen.batches[0]):
            if found := sizes & _parts(last, strategy):
                how = next(how for size, how in seen.failing if size in found)
                return format_count(last, "sample"), format_count(min(found), "sample"), how
    return ()


def _part_that_fails(seen: Behaviour, strategy: Strategy) -> tuple[str, ...]:
    for size, how in seen.failing:
        for batch in seen.batches:
            if size in _parts(batch, strategy):
                which = "a global batch" if batch == seen.batches[0] else "the last batch of an epoch"
                parts = "" if size == batch else f"parts of {size} of "
                return f"{parts}{which} of {batch}", how
    return ()


def _mixed_unit(seen: Behaviour, strategy: Strategy) -> tuple[str, str] | None:
    """Two trained parameters of one unit that have different dtypes; None: there are none."""
    others = {name: dtype for dtype, name in seen.dtypes}
    first: dict[str, str] = {}
    for name in (*seen.optimizer.options, *seen.optimizer.missing) if others else ():
        # Where the use of parameters varies, the model is one unit.
        units = () if seen.varying else strategy.units
        unit = max((one for one in units if name.startswith(f"{one}.")), key=len, default="")
        other = first.setdefault(unit, name)
        if others.get(other) != others.get(name):
            return other, name
    return None


def _parts(batch: int, strategy: Strategy) -> set[int]:
    """Sizes of the microbatches of a batch, as the runtime splits it; a replica without a sample runs another's.

    Example:
        >>> _parts(10, Strategy(dp=2, microbatches=4)), _parts(1, Strategy(dp=2))
        ({1, 2}, {1})
    """
    used = max(1, min(strategy.microbatches, batch // strategy.dp))
    shares = {max(1, batch // strategy.dp), -(-batch // strategy.dp)}
    return {part for share in shares for part in (share // used, -(-share // used))}


def _why(seen: Behaviour, what: str, difference: float | None) -> str:
    by = share_of_gradient(difference)
    if seen.padded:
        return (
            f"padding each part of a batch to its own longest sample changes the gradients, {what} by up to "
            f"{by}: pad to one length in Job.collate, or mask the padding in the model and the loss"
        )
    changed = [f"the buffer {name}" for name in seen.buffers] + [f"the parameter {name}" for name in seen.written]
    if seen.reduction != "batch" and changed:
        return (
            f"each forward changes {changed[0]} by the samples that it sees, or once more, so that "
            f"{what} a step ends with other values: use {_sees_all(seen)}, or update it in Job.on_step"
        )
    where = f" (first at {seen.mixed_at})" if seen.mixed_at else ""
    if seen.reduction == "batch" and seen.branches:
        return (
            f"the way that the forward takes depends on values of the batch{where}, and {what} gradients differ "
            f"by up to {by}: decide for each sample (torch.where), return (sum, weight) where the loss "
            "is a mean over something else than samples, or use one device without microbatches"
        )
    return (
        f"the loss of a batch is not made of the losses of its parts{where}: {what} gradients differ by up to "
        f"{by}. If it is a mean over something else than samples, give Job.loss_weight, or return "
        "(sum, weight); if it compares samples, gather them in the loss "
        "(torch.distributed.nn.functional.all_gather), or use one device without microbatches"
    )


def _sees_all(seen: Behaviour) -> str:
    return "replicas or one device, without microbatches" if seen.replicates else "one device without microbatches"


def share_of_gradient(difference: float | None) -> str:
    """A difference, of the largest gradient of the same tensor."""
    if difference is None:
        return "an unknown part"
    if not math.isfinite(difference):
        return "any amount"
    if difference < 5e-4:
        return f"{difference:.0e} of the largest"
    return f"{difference:.1%} of the largest" if difference < 0.1 else f"{difference:.0%} of the largest"
