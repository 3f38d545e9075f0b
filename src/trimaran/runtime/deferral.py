"""The weight gradients of linear layers and convolutions, put off.

A backward makes two products at each such layer: the gradient of its input, which the stage before waits for, and the
gradient of its weight, which nobody waits for before the update. Under `Deferred.recording` the layers of a forward run
as functions whose backward makes the first and notes down the second; `Deferred.run` does what was noted:

    I   dx3 ─▶ dx2 ─▶ dx1 ─▶ send              B = I and W; norms, embeddings and recurrent layers, whose gradients
    W                         dw3 dw2 dw1          come out of one computation, are in I as a whole

Between the two, a layer's input and the gradient of its output are kept, and nothing else: what other operations had
saved is freed by I. Weights are the same objects and the products the same kernels, so gradients differ from those of
an undivided backward by nothing but the order of sums, where a weight is used several times.

What is left to autograd, and so is in I: weights that are no leaves (parametrized ones), that have hooks, or that are
not plain tensors; layers called by other functions than torch's.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from trimaran.runtime.deferred_layers import LAYERS

_Gradients = Callable[[], Sequence[torch.Tensor]]


class Deferred:
    """What one forward of a segment leaves to be done after its backward for the inputs."""

    def __init__(self) -> None:
        self._noted: list[tuple[tuple[nn.Parameter, ...], _Gradients]] = []

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Those whose gradients are put off, once for each use."""
        return [parameter for parameters, _ in self._noted for parameter in parameters]

    def recording(self) -> AbstractContextManager[object]:
        """A block in which layers are run so that their weights' gradients are put off; put the forward inside."""
        return _Mode(self)

    def note(self, parameters: tuple[nn.Parameter, ...], gradients: _Gradients) -> None:
        """Put the gradients of some parameters off.

        Args:
            parameters: whose
            gradients: makes one a parameter
        """
        self._noted.append((parameters, gradients))

    def run(self, arrived: Callable[[nn.Parameter], None]) -> None:
        """Add the gradients that were put off to those of the parameters; afterwards nothing is kept.

        Args:
            arrived: told of each parameter after the last of its gradients
        """
        left = Counter(map(id, self.parameters))
        self._noted.reverse()
        with torch.no_grad():
            while self._noted:
                parameters, gradients = self._noted.pop()
                for parameter, gradient in zip(parameters, gradients(), strict=True):
                    parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
                    left[id(parameter)] -= 1
                    if not left[id(parameter)]:
                        arrived(parameter)


class _Mode(TorchFunctionMode):
    def __init__(self, deferred: Deferred) -> None:
        super().__init__()
        self._deferred = deferred

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        layer = LAYERS.get(func)
        options = dict(kwargs or {})
        if layer is not None and torch.is_grad_enabled():
            given = [options.pop("input")] if "input" in options else []
            args = (*given, *args)
            result = layer(self._deferred, *args, **options)
            if result is not None:
                return result
        return func(*args, **options)
