"""Which kinds of plans train a job exactly as one process does with the whole global batch, from what was seen of it.

One place: `objection` is asked by the planner for each strategy, by whoever runs a plan, and for the table of
`trimaran check`. What batch norm and random draws do differently in parts of a batch is the same in one process that
sees the same parts; it is no objection.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from trimaran.errors import InputError
from trimaran.graph.behaviour import Behaviour
from trimaran.program.types import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What a kind of plan does to a job.

    Attributes:
        replicas: parts of a batch are seen by different ranks
        microbatches: parts of a batch are seen in turn
        divided: ranks run parts of the network
        owned: a parameter is updated on one rank only, or a share of it
    """

    replicas: bool = False
    microbatches: bool = False
    divided: bool = False
    owned: bool = False


KINDS: dict[str, Demand] = {
    "one device": Demand(),
    "accumulation": Demand(microbatches=True),
    "data parallel": Demand(replicas=True),
    "ZeRO-1": Demand(replicas=True, owned=True),
    "ZeRO-2": Demand(replicas=True, owned=True),
    "ZeRO-3": Demand(replicas=True, owned=True),
    "p2p": Demand(replicas=True, owned=True),
    "pipeline": Demand(microbatches=True, divided=True, owned=True),
    "tensor parallel": Demand(divided=True, owned=True),
    "placement": Demand(divided=True, owned=True),
    "memory plan": Demand(),
}
"""The kinds of `trimaran check`, and what each does."""


def demand_of(strategy: Strategy) -> Demand:
    """What a strategy does to a job."""
    return Demand(
        replicas=strategy.dp > 1,
        microbatches=strategy.microbatches > 1,
        divided=strategy.pp * strategy.tp > 1 or bool(strategy.parts) or bool(strategy.shards),
        owned=strategy.zero > 0 or strategy.sync == "p2p" or strategy.pp > 1,
    )


def objection(behaviour: Behaviour | None, demand: Demand) -> str | None:
    """Why a kind of plan is refused, as it would train something else than the job; None: it is not.

    Nothing is refused where nobody has looked, or the user has accepted that.

    Args:
        behaviour: what was seen of the job
        demand: what the kind of plan does

    Example:
        >>> seen = Behaviour(reduction="batch", microbatches=0.94, replicas=0.94, tolerance=1e-7)
        >>> objection(seen, Demand()) is None
        True
        >>> objection(seen, Demand(replicas=True))[:58]
        'the loss of a batch is not made of the losses of its parts'
    """
    return None if behaviour is None or behaviour.accepted else difference(behaviour, demand)


def difference(behaviour: Behaviour, demand: Demand) -> str | None:
    """How a kind of plan would train something else than the job, accepted or not; None: it would not.

    Args:
        behaviour: what was seen of the job
        demand: what the kind of plan does
    """
    return next(_objections(behaviour, demand), None)


def check_exact(behaviour: Behaviour | None, strategy: Strategy) -> None:
    """Refuse a strategy by which something else would be trained.

    Args:
        behaviour: what was seen of the job
        strategy: what is to be run

    Raises:
        InputError: with the reason
    """
    found = objection(behaviour, demand_of(strategy))
    if found is not None:
        raise InputError(
            f"{strategy.name} would train something else than this job: {found}. To train it all the same: "
            "--accept-inexact, or init(…, accept_inexact=True)",
            strategy=strategy.name,
        )


def _objections(seen: Behaviour, demand: Demand) -> Iterator[str]:
    if seen.reduction == "gathers":
        if demand.microbatches or demand.divided:
            yield (
                "the loss gathers across ranks: only replicas with one microbatch each see the whole batch; use "
                "--dp, with --microbatches 1"
            )
        elif demand.replicas and not seen.replicates:
            yield (
                f"the loss gathers across ranks, and gradients still differ by up to {_share(seen.replicas)} from "
                "those of the whole batch: gather with torch.distributed.nn.all_gather, which has a backward"
            )
        return
    for parts, what, holds, difference in (
        (demand.replicas, "on several ranks", seen.replicates, seen.replicas),
        (demand.microbatches, "in microbatches", seen.splits, seen.microbatches),
    ):
        if parts and not holds:
            yield _why(seen, what, difference)


def _why(seen: Behaviour, what: str, difference: float | None) -> str:
    if seen.padded:
        return (
            f"padding each part of a batch to its own longest sample changes the gradients, {what} by up to "
            f"{_share(difference)}: pad to one length in Job.collate, or mask the padding in the model and the loss"
        )
    if seen.reduction != "batch" and seen.buffers:
        return (
            f"each forward changes the buffer {seen.buffers[0]} by the samples that it sees, or once more, so that "
            f"{what} a step ends with other values: use one device without microbatches, or update it in Job.on_step"
        )
    return (
        f"the loss of a batch is not made of the losses of its parts: {what} gradients differ by up to "
        f"{_share(difference)}; return (sum, weight) or give Job.loss_weight, if it is a mean over something"
    )


def _share(difference: float | None) -> str:
    """A difference, of the largest gradient of the same tensor."""
    return "an unknown part" if difference is None else f"{difference:.1g} of the largest"
