"""Weight stashing: a backward uses the weights of its forward, whatever updates came between.

autograd keeps a parameter itself for the backward, whose values an update replaces. So a forward notes the memory that
each saved tensor has, and an update that comes while passes are under way moves the parameters into new memory first:

    F1 ── notes memory A ──────────────────────────── B1 reads A ── A is freed
                update: copies A to B, changes B
    F2 ── notes memory B ────────────────────────────────────────── B2 reads B

The parameters stay the same objects, so that gradients, the optimizer and the state of a model are where they were. A
version is freed with the last pass that used it. An operation that keeps a parameter by other means than saved tensors
(`ctx.save_for_backward`) would read the newest weights.

Source:
    Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019, section 3.3.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager

import torch
from torch import nn

from trimaran.base.errors import InputError
from trimaran.base.job import Job
from trimaran.program.strategy import Strategy


def check_stale(strategy: Strategy, job: Job | None = None, *, observes: str = "", saves: str = "") -> None:
    """Refuse what a stale strategy cannot do exactly, before it starts.

    Args:
        strategy: to run; one that is not stale may do all of it
        job: its callbacks are looked at; None: not known yet
        observes: what else each step is used for, as "--verify" or "--gradient-noise"; empty: nothing
        saves: how the state of the training would be kept, as "--save-every"; empty: it is not

    Raises:
        InputError: with the reason and another way
    """
    if not strategy.is_stale:
        return
    reason = advice = ""
    if observes:
        reason = f"{observes} compares steps with those of one process, and no step here is one"
        advice = f"leave {observes} out"
    elif saves:
        reason = (
            f"{saves} would end the passes under way in the middle of an epoch, after which steps use newer weights "
            "than in a training without it"
        )
        advice = f"leave {saves} out: the weights are written at the end"
    elif job is not None and job.on_step is not None:
        reason = "Job.on_step is called between two updates, and here each stage is at another update"
        advice = "use Job.on_epoch, before which the pipeline is empty"
    if reason:
        raise InputError(
            f"{strategy.name} is not the training of one process. "
            f"{reason[:1].upper()}{reason[1:]}: {advice}, or take a synchronous schedule "
            "(--schedule 1f1b)",
            code="strategy.stale-run",
            strategy=strategy.name,
        )


class Stash:
    """The weights of a rank, in as many versions as passes under way need.

    Args:
        parameters: of the rank
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._parameters = [one for one in dict.fromkeys(parameters) if one.requires_grad]

    def keeping(self) -> AbstractContextManager[object]:
        """While a forward runs: its backward reads what is in memory now."""
        return torch.autograd.graph.saved_tensors_hooks(_memory_of, _as_it_is)

    def renew(self) -> None:
        """Before an update: leave the versions that passes under way have noted as they are."""
        for parameter in self._parameters:
            parameter.data = parameter.data.clone()


def _memory_of(saved: torch.Tensor) -> torch.Tensor:
    return saved.detach()


def _as_it_is(noted: torch.Tensor) -> torch.Tensor:
    return noted
