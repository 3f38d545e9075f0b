"""Give a model back as it was before FSDP2 took it over.

FSDP2 changes modules in place, for good: their class, their hooks, their parameters. A model belongs to the user, and
another plan may want it next, so what was there is kept and put back. The parameters are the same objects as before;
while the model is sharded they hold no data.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed._composable_state import _module_state_mapping


class Wrapping:
    """What a model was before it was sharded.

    Args:
        model: the user's; may be changed afterwards
    """

    def __init__(self, model: nn.Module) -> None:
        self._modules = [(module, type(module), _shallow(vars(module))) for module in model.modules()]
        self._parameters = [(parameter, parameter.shape) for parameter in model.parameters()]

    def empty(self) -> None:
        """Let the original parameters go of their data, once they have been sharded."""
        for parameter, _ in self._parameters:
            parameter.data = parameter.data.new_empty(0)

    def restore(self) -> None:
        """Put classes, hooks and parameters back; the parameters are zeros, in host memory.

        Nothing is gathered: this is called after failures too, when other ranks do not take part.
        """
        for module, kind, attributes in self._modules:
            # torch has no way to take a module back; without this it could never be sharded again.
            _module_state_mapping.pop(module, None)
            module.__class__ = kind
            vars(module).clear()
            vars(module).update(attributes)
        for parameter, shape in self._parameters:
            # The host commits no memory for zeros that nobody touches.
            parameter.data = torch.zeros(shape, dtype=parameter.dtype)
            parameter.grad = None


def _shallow(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes with copies of their containers, so that what is added to a container later is not there."""
    return {name: value.copy() if isinstance(value, (dict, list, set)) else value for name, value in attributes.items()}
