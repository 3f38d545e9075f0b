"""Which operations are convolutions: by what they compute, not by their class."""

from dataclasses import dataclass
from typing import Any

from torch import fx, nn

from trimaran.graph.hooks import has_user_hooks
from trimaran.graph.sharding.calls import arguments_of, interior, is_tensor, overload_of, shape_of
from trimaran.graph.sharding.linears import are_parameters
from trimaran.graph.sharding.spread import NotSharedError

_DIMENSIONS = {f"{name}{number}d": number for name in ("conv", "conv_transpose") for number in (1, 2, 3)}
_TENSORS = frozenset({"input", "weight", "bias"})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Convolution:
    """A convolution with parameters.

    Attributes:
        node: of the flow
        source: what is convolved
        weight: path of the weight in the model
        bias: path of what is added to each channel; None: nothing
        operation: torch's
        options: stride, padding and the like, by name
        groups: of channels; ranks share whole groups where there are several
        split_dim: dimension of the weight that is split: that of the channels of the output; of a transposed
            convolution with several groups that of the channels of the input
        channel_dim: of what goes in and comes out, counted from the right
    """

    node: fx.Node
    source: fx.Node
    weight: str
    bias: str | None
    operation: Any
    options: dict[str, Any]
    groups: int
    split_dim: int
    channel_dim: int

    @property
    def channels(self) -> int:
        """Of its output."""
        return shape_of(self.node)[self.channel_dim]


def convolution_of(node: fx.Node, owner: nn.Module) -> Convolution | None:
    """A node as a convolution of which each rank can make some channels, or None.

    Args:
        node: of a flow
        owner: the flow
    """
    if not is_tensor(node):
        return None
    found = _of_module(node, owner) if node.op == "call_module" else _of_function(node, owner)
    if found is None:
        return None
    name, source, weight, bias = found
    options = {key: value for key, value in arguments_of(node).items() if key not in _TENSORS}
    if not is_tensor(source) or not all(_is_plain(value) for value in options.values()):
        return None
    groups = options.pop("groups")
    return Convolution(
        node=node,
        source=source,
        weight=weight,
        bias=bias,
        operation=overload_of(node),
        options=options,
        groups=groups,
        split_dim=int("transpose" in name and groups == 1),
        channel_dim=-1 - _DIMENSIONS[name],
    )


_Found = tuple[str, fx.Node, str, str | None]


def _of_module(node: fx.Node, owner: nn.Module) -> _Found | None:
    """A leaf module whose inside is a convolution and nothing else."""
    module = owner.get_submodule(str(node.target))
    try:
        inside = interior(node)
    except NotSharedError:
        return None
    if len(inside) != 1 or inside[0][0] not in _DIMENSIONS or inside[0][2] or len(node.all_input_nodes) != 1:
        return None
    names = [name for name, _ in module.named_parameters()]
    weights = [name for name in names if module.get_parameter(name).dim() > 1]
    biases = [name for name in names if name not in weights]
    tensors = [value for value in inside[0][1][:3] if value == "_"]
    if len(weights) != 1 or len(tensors) != 2 + len(biases) or inside[0][1][:2] != ("_", "_"):
        return None
    if has_user_hooks(module) or any(True for _ in module.buffers()):
        return None
    bias = f"{node.target}.{biases[0]}" if biases else None
    return inside[0][0], node.all_input_nodes[0], f"{node.target}.{weights[0]}", bias


def _of_function(node: fx.Node, owner: nn.Module) -> _Found | None:
    """A call of torch's operation with parameters of the model."""
    if node.op != "call_function" or not str(node.target).startswith("aten.conv"):
        return None
    name = str(node.target).split(".")[1]
    if name not in _DIMENSIONS:
        return None
    arguments = arguments_of(node)
    source, given = arguments["input"], [arguments[key] for key in ("weight", "bias") if arguments[key] is not None]
    paths = [str(part.target) for part in given if isinstance(part, fx.Node) and part.op == "get_attr"]
    if not isinstance(source, fx.Node) or len(paths) != len(given) or not are_parameters(paths, owner):
        return None
    return name, source, paths[0], paths[1] if len(paths) > 1 else None


def _is_plain(value: object) -> bool:
    """Whether an option is written down, not computed; in a list, each part of it."""
    if isinstance(value, list | tuple):
        return all(isinstance(part, int) for part in value)
    return isinstance(value, int) or value in ("valid", "same")
