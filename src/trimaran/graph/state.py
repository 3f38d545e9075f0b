"""The parameters and buffers of a model, each tensor once, and which of them an operation uses."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx, nn

from trimaran.graph.types import Parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What an operation uses of the model's state, by name.

    Attributes:
        parameters: names of parameters
        buffers: names of buffers
    """

    parameters: tuple[str, ...]
    buffers: tuple[str, ...]


class State:
    """The state of a model.

    Args:
        model: the user's model

    Attributes:
        parameters: every parameter; a tied one once, under its first name
        buffers: size of every buffer [bytes], by name
        names: of each parameter, by the identity of its tensor
    """

    def __init__(self, model: nn.Module) -> None:
        names: dict[int, list[str]] = {}
        tensors: dict[int, nn.Parameter] = {}
        for name, tensor in model.named_parameters(remove_duplicate=False):
            names.setdefault(id(tensor), []).append(name)
            tensors[id(tensor)] = tensor
        self.parameters = tuple(_describe(tensors[key], found) for key, found in names.items())
        self.buffers = {name: tensor.numel() * tensor.element_size() for name, tensor in model.named_buffers()}
        self.names = {key: found[0] for key, found in names.items()}
        self._buffer_names = {id(tensor): name for name, tensor in model.named_buffers()}

    def read_by(self, node: fx.Node, model: nn.Module) -> Read:
        """What an operation of a flow uses, be it in its module or as an argument."""
        tensors: list[Any] = []
        if node.op == "call_module":
            module = model.get_submodule(str(node.target))
            tensors += [*module.parameters(), *module.buffers()]
        for source in node.all_input_nodes:
            if source.op == "get_attr":
                owner, _, name = str(source.target).rpartition(".")
                tensors.append(getattr(_submodule(model, owner), name, None))
        return Read(parameters=self._named(tensors, self.names), buffers=self._named(tensors, self._buffer_names))

    def of_model(self) -> Read:
        """All of it."""
        return Read(parameters=tuple(self.names.values()), buffers=tuple(self.buffers))

    @staticmethod
    def _named(tensors: list[Any], names: dict[int, str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(names[id(tensor)] for tensor in tensors if id(tensor) in names))


def _describe(tensor: Tensor, names: list[str]) -> Parameter:
    return Parameter(
        name=names[0],
        shape=tuple(tensor.shape),
        dtype=str(tensor.dtype).removeprefix("torch."),
        nbytes=tensor.numel() * tensor.element_size(),
        trainable=tensor.requires_grad,
        aliases=tuple(names[1:]),
    )


def _submodule(model: nn.Module, path: str) -> nn.Module | None:
    try:
        return model.get_submodule(path)
    except AttributeError:
        return None
