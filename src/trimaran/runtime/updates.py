"""The update of a rank's parameters: divisor, global norm, optimizer, learning rate."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from trimaran.errors import InputError
from trimaran.job import Job


class Updater:
    """Optimizer and schedule of what one rank trains.

    Args:
        job: makes the optimizer and the schedule
        parameters: trained on this rank; may be empty
        counted: those whose gradients count in the global norm here: a weight that several stages share counts once
        elsewhere: parameters that have gradients here and are updated on other ranks

    Raises:
        InputError: some are updated elsewhere, and the optimizer cannot be split over parameters
    """

    def __init__(
        self,
        job: Job,
        parameters: Sequence[nn.Parameter],
        counted: Sequence[nn.Parameter],
        *,
        elsewhere: Sequence[nn.Parameter] = (),
    ) -> None:
        self._parameters = list(parameters)
        self._counted = list(counted)
        self._elsewhere = list(elsewhere)
        # torch's optimizers refuse an empty list, and a stage may well have nothing to train.
        self.optimizer = job.optimizer(self._parameters) if self._parameters else None
        if elsewhere and isinstance(self.optimizer, torch.optim.LBFGS):
            raise InputError(
                "the state of LBFGS is one for all parameters, so that they cannot be updated in several places: use "
                'Strategy(sync="all-reduce", zero=0)'
            )
        self.schedule = job.lr_schedule(self.optimizer) if job.lr_schedule and self.optimizer else None
        self._clip_norm = job.clip_norm

    def known_as(self, parameter: nn.Parameter) -> torch.Tensor:
        """What the optimizer has in the place of a parameter of this rank."""
        return parameter

    def state_of(self, parameter: nn.Parameter) -> Mapping[str, Any]:
        """What the optimizer keeps of a parameter of this rank; of a share it is laid out like the share."""
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

    def divide(self, divisor: torch.Tensor) -> None:
        """Divide all gradients.

        Args:
            divisor: scalar, on their device
        """
        every = {id(parameter): parameter for parameter in (*self._parameters, *self._counted)}
        gradients = _gradients(list(every.values()))
        if gradients:
            torch._foreach_div_(gradients, divisor.to(gradients[0].dtype))

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
            torch._foreach_mul_(gradients, scale.to(gradients[0]))

    def update(self) -> None:
        """One step of the optimizer, then one of the schedule; gradients are gone afterwards."""
        for parameter in self._elsewhere:
            parameter.grad = None
        if self.optimizer is None:
            return
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.schedule is not None:
            self.schedule.step()


def _gradients(parameters: Sequence[nn.Parameter]) -> list[torch.Tensor]:
    """What this rank has of the gradients."""
    return [_local(parameter.grad) for parameter in parameters if parameter.grad is not None]


def _local(tensor: torch.Tensor) -> torch.Tensor:
    # Only a tensor that is sharded over ranks has a local part.
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor
