"""Arms that others offer: torch's hooks, torchtune's, checkpointing, and torch.compile's own budget.

Each is set up as its documentation says. None takes a budget in bytes but the last, which takes a share of what the
forward keeps.
"""

import importlib.util
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from benchmarks.memory.models import Training


class AbsentError(Exception):
    """A package that an arm needs is not there."""


@dataclass(slots=True, kw_only=True)
class Runner:
    """A way to run steps.

    Attributes:
        step: runs one, gives its loss
        figures: what it knows of the last step
        close: gives everything back
        settle: steps before it runs as it will
        settled: tells, after each further one, whether it does
        counted: whether the bytes that it copies can be counted from outside
        compared: whether its gradients are compared with the oracle's
    """

    step: Callable[[], torch.Tensor]
    figures: Callable[[], dict[str, Any]] = dict
    close: Callable[[], object] = lambda: None
    settle: int = 2
    settled: Callable[[], bool] = lambda: True
    counted: bool = True
    compared: bool = True


def oracle(training: Training) -> Runner:
    """Plain autograd."""
    return Runner(step=training.step)


def save_on_cpu(training: Training, *, page_locked: bool) -> Runner:
    """Torch's own hooks: every saved tensor to the host, and back when it is needed."""
    on_gpu = training.device == "cuda"
    return _around_forward(
        training, lambda: torch.autograd.graph.save_on_cpu(pin_memory=page_locked and on_gpu, device_type="cuda")
    )


def torchtune(training: Training) -> Runner:
    """The hooks of torchtune, on a GPU with page-locked memory and streams of their own."""
    if importlib.util.find_spec("torchtune") is None:
        raise AbsentError("torchtune is not installed")
    from torchtune.training import OffloadActivations

    on_gpu = training.device == "cuda"
    return _around_forward(training, lambda: OffloadActivations(use_pin_memory=on_gpu, use_streams=on_gpu))


def checkpointed(training: Training) -> Runner:
    """Each block is recomputed whole in the backward."""
    training.blocks()
    return Runner(step=training.step)


def compiled(training: Training, *, budget: float) -> Runner:
    """torch.compile, whose partitioner keeps a share of what the forward makes.

    Args:
        training: what is run
        budget: that share [0..1]
    """
    import torch._functorch.config as config

    config.activation_memory_budget = min(1.0, max(0.0, budget))
    training.run = torch.compile(training.model)
    return Runner(step=training.step, figures=lambda: {"memory_budget": budget}, counted=False, compared=False)


def _around_forward(training: Training, hooks: Callable[[], AbstractContextManager[Any]]) -> Runner:
    def step() -> torch.Tensor:
        training.optimizer.zero_grad(set_to_none=True)
        with hooks():
            loss = training.forward()
        return training.finish(loss)

    return Runner(step=step)
