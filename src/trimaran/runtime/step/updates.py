"""The update of a rank's parameters: divisor, global norm, optimizer, learning rate."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from trimaran.base.errors import InputError
from trimaran.base.job import Job
from trimaran.base.user_errors import users
from trimaran.graph.behaviour import OptimizerTraits
from trimaran.graph.optimizers import (
    Trained,
    differing_option,
    make_optimizer,
    make_schedule,
    takes_metric,
    without_hooks,
)


class Updater:
    """Optimizer and schedule of what one rank trains.

    Args:
        job: makes the optimizer and the schedule
        parameters: trained on this rank; may be empty
        counted: those whose gradients count in the global norm here: a weight that several stages share counts once
        elsewhere: parameters that have gradients here and are updated on other ranks
        held: given to the optimizer in their place, under the same names; None: the parameters
        traits: of the optimizer over all parameters, where this rank has some of them, or parts; None: it has all
        measured: nothing is trained, the update is timed: without schedule, and hooks on the optimizer do not fire

    Attributes:
        optimizer: of torch, or another one of its form; None: this rank updates nothing
        schedule: of the learning rate; None: there is none
        updates: that were done

    Raises:
        InputError: the job fails to make its optimizer or its schedule, it holds none of the parameters or others than
            it may, or it would do another thing than over all parameters
    """

    def __init__(
        self,
        job: Job,
        parameters: Trained,
        counted: Sequence[nn.Parameter],
        *,
        elsewhere: Sequence[nn.Parameter] = (),
        held: Trained | None = None,
        traits: OptimizerTraits | None = None,
        measured: bool = False,
    ) -> None:
        self._parameters = list(parameters)
        self._counted = list(counted)
        self._elsewhere = list(elsewhere)
        self._clip_norm = job.clip_norm
        self._foreign: list[torch.Tensor] = []
        self.updates = 0
        self.schedule: Any = None
        self._by_metric = False
        given = parameters if held is None else held
        # torch's optimizers refuse an empty list, and a stage may well have nothing to train.
        self.optimizer: Any = make_optimizer(job, given) if given else None
        if self.optimizer is None:
            return
        if measured:
            without_hooks(self.optimizer)
            _drop_others(self.optimizer, given)
            return
        self._foreign = _others(self.optimizer, given)
        self._check_held(given, split=traits is not None or bool(self._elsewhere))
        found = "" if traits is None else differing_option(job, given, traits)
        if found:
            raise InputError(
                f"the optimizer of {job.name!r} does another thing on a rank that has some of the parameters: {found}. "
                "Tell parameters by their names (named_parameters() of its argument), or use replicas that update "
                'everything (dp with sync="all-reduce", zero=0)'
            )
        self.schedule = make_schedule(job, self.optimizer)
        self._by_metric = self.schedule is not None and takes_metric(self.schedule)

    @property
    def name(self) -> str:
        """Name of the optimizer's class; empty where this rank updates nothing."""
        return "" if self.optimizer is None else type(self.optimizer).__name__

    @property
    def foreign(self) -> list[torch.Tensor]:
        """What the optimizer holds besides the parameters that it was given."""
        return self._foreign

    def known_as(self, parameter: nn.Parameter) -> torch.Tensor:
        """The tensor that the optimizer has in place of a parameter of this rank."""
        return parameter

    def state_of(self, parameter: nn.Parameter) -> Mapping[str, Any]:
        """The optimizer's state of a parameter of this rank; of a share it is laid out like the share."""
        return {} if self.optimizer is None else self.optimizer.state.get(self.known_as(parameter), {})

    def second_moment(self, parameter: nn.Parameter) -> tuple[torch.Tensor, float] | None:
        """The mean square of a parameter's gradients of earlier steps, as Adam, RMSprop and their kin keep it.

        Args:
            parameter: trained here

        Returns:
            What is kept, of the parameter's shape, and by how much it falls short of the mean, because it started from
            zero; None where the optimizer keeps nothing, or has not begun.
        """
        if self.optimizer is None:
            return None
        state = self.optimizer.state.get(parameter)
        if not state:
            return None
        if "square_avg" in state:
            return state["square_avg"], 1.0
        if "exp_avg_sq" not in state or "betas" not in self.optimizer.defaults:
            return None
        return state["exp_avg_sq"], 1.0 - self.optimizer.defaults["betas"][1] ** float(state["step"])

    def gradients(self) -> list[torch.Tensor]:
        """All gradients that this rank has, each once."""
        every = {id(one): one for one in (*self._parameters, *self._counted, *self._foreign)}
        return _gradients(list(every.values()))

    def divide(self, divisor: torch.Tensor) -> None:
        """Divide all gradients.

        Args:
            divisor: scalar, on their device
        """
        gradients = self.gradients()
        if gradients:
            torch._foreach_div_(gradients, divisor.to(gradients[0].real.dtype))

    def norm(self, device: str) -> torch.Tensor:
        """Norm of the gradients that count here, as torch adds it up, so that clipping by it is that of a plain loop.

        Args:
            device: where the result lies
        """
        gradients = _gradients(self._counted)
        return nn.utils.get_total_norm(gradients) if gradients else torch.zeros((), device=device)

    def square_norm(self, device: str) -> torch.Tensor:
        """Sum of the squares of the gradients that count here, fp64.

        Args:
            device: where the result lies
        """
        gradients = _gradients(self._counted)
        if not gradients:
            return torch.zeros((), dtype=torch.float64, device=device)
        norms: Sequence[torch.Tensor] = torch._foreach_norm(gradients)
        return torch.stack(list(norms)).double().square().sum()

    def clip(self, norm: torch.Tensor) -> None:
        """Shrink the gradients so that their global norm is at most the job's.

        Args:
            norm: the global norm
        """
        gradients = _gradients(self._parameters)
        if self._clip_norm is not None and gradients:
            # As torch clips: the small number keeps a norm of zero from being divided by.
            scale = (self._clip_norm / (norm + 1e-6)).clamp(max=1.0)
            torch._foreach_mul_(gradients, scale.to(gradients[0].device, gradients[0].real.dtype))

    def update(self) -> None:
        """One step of the optimizer, then one of the schedule, unless that is stepped by a metric; no gradient is left.

        A schedule may read them, as in a loop that forgets gradients where a step begins.

        Raises:
            InputError: the schedule has come to its end, or fails
        """
        if self.optimizer is not None:
            self.optimizer.step()
            self.updates += 1
        if self.schedule is not None and not self._by_metric:
            self._step_schedule()
        self.drop_gradients()

    def end_epoch(self, metric: float) -> None:
        """One step of a schedule that follows a metric; any other is left alone.

        Args:
            metric: of the epoch that has ended, the same on every rank

        Raises:
            InputError: the schedule fails
        """
        if self._by_metric:
            self._step_schedule(metric)

    def drop_gradients(self) -> None:
        """Forget the gradients of a step: also those that the optimizer does not hold."""
        if self.optimizer is not None and hasattr(self.optimizer, "zero_grad"):
            self.optimizer.zero_grad()
        for one in (*self._parameters, *self._counted, *self._elsewhere, *self._foreign):
            one.grad = None

    def _step_schedule(self, *metric: float) -> None:
        with users(
            "Job.lr_schedule",
            said=lambda error: InputError(
                f"the schedule {type(self.schedule).__name__} of Job.lr_schedule failed after update {self.updates}: "
                f"{type(error).__name__}: {error}. A schedule is stepped once an update: give it as many steps as the "
                "run has updates",
                update=self.updates,
            ),
        ):
            self.schedule.step(*metric)

    def _check_held(self, given: Trained, *, split: bool) -> None:
        name = type(self.optimizer).__name__
        held = {id(one) for group in self.optimizer.param_groups for one in group["params"]}
        # Of all parameters some must be there; of a rank's all may be those that the user leaves out.
        if not split and not any(id(one) in held for one in given):
            raise InputError(
                f"{name} holds none of the parameters that it was given, so nothing would be trained: make it from the "
                "argument of Job.optimizer, which has named_parameters() too",
                optimizer=name,
            )
        if self._foreign and split:
            raise InputError(
                f"{name} holds {len(self._foreign)} parameters that it was not given, and this rank updates some only: "
                "make it from the argument of Job.optimizer, which has named_parameters() too",
                optimizer=name,
            )


def _others(optimizer: Any, parameters: Sequence[nn.Parameter]) -> list[torch.Tensor]:
    """What an optimizer holds besides some parameters."""
    own = {id(parameter) for parameter in parameters}
    return [one for group in optimizer.param_groups for one in group["params"] if id(one) not in own]


def _drop_others(optimizer: Any, parameters: Sequence[nn.Parameter]) -> None:
    """Let an optimizer hold nothing but some parameters, so that measuring changes nothing else."""
    own = {id(parameter) for parameter in parameters}
    for group in optimizer.param_groups:
        group["params"] = [one for one in group["params"] if id(one) in own]


def _gradients(parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What this rank has of the gradients."""
    return [local_part(parameter.grad) for parameter in parameters if parameter.grad is not None]


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank has of a tensor: its shard of a DTensor, else the tensor."""
    # Not by its class, which takes long to import.
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
