"""Which operations are linear layers and embeddings: by what they compute, not by their class."""

from dataclasses import dataclass
from typing import Any

from torch import fx, nn
from torch.nn.utils import parametrize

from trimaran.graph.sharding.calls import NotSharedError, arguments_of, interior, is_tensor, overload_of, shape_of
from trimaran.user_code.model import has_user_hooks

_PRODUCTS = frozenset({"linear", "addmm", "mm", "matmul"})
_VIEWS = frozenset({"view", "reshape", "_unsafe_view", "contiguous"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """A product with a matrix of parameters.

    Attributes:
        node: of the flow
        source: what is multiplied, by its last dimension
        weight: path of the matrix in the model
        bias: path of what is added; None: nothing
        out_dim: dimension of the matrix that is that of the output
    """

    node: fx.Node
    source: fx.Node
    weight: str
    bias: str | None
    out_dim: int

    @property
    def features(self) -> int:
        """Size of the last dimension of its output."""
        return shape_of(self.node)[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupCall:
    """Rows of a matrix of parameters, by their numbers.

    Attributes:
        node: of the flow
        source: the numbers
        weight: path of the matrix in the model
        padding: number of the row that has no gradient; -1: none
    """

    node: fx.Node
    source: fx.Node
    weight: str
    padding: int


def linear_of(node: fx.Node, owner: nn.Module) -> Linear | None:
    """A node as a linear layer, or None.

    Args:
        node: of a flow
        owner: the flow
    """
    if not is_tensor(node):
        return None
    if node.op == "call_module":
        return _linear_module(node, owner)
    if node.op != "call_function" or "aten.linear.default" not in str(node.target):
        return None
    source, weight, bias = (*node.args, None)[:3]
    paths = [str(part.target) for part in (weight, bias) if isinstance(part, fx.Node) and part.op == "get_attr"]
    if not isinstance(source, fx.Node) or len(paths) != 1 + (bias is not None) or not are_parameters(paths, owner):
        return None
    return Linear(node=node, source=source, weight=paths[0], bias=paths[1] if bias is not None else None, out_dim=0)


def lookup_of(node: fx.Node, owner: nn.Module) -> LookupCall | None:
    """A node as an embedding of which each rank can have some rows, or None.

    Args:
        node: of a flow
        owner: the flow
    """
    if not is_tensor(node):
        return None
    if node.op == "call_module":
        module = owner.get_submodule(str(node.target))
        names = [name for name, _ in module.named_parameters()]
        try:
            inside = interior(node)
        except NotSharedError:
            return None
        if len(inside) != 1 or inside[0][0] != "embedding" or len(names) != 1 or _is_adapted(module):
            return None
        arguments, keywords = inside[0][1], inside[0][2]
        source, weight = node.all_input_nodes[0], f"{node.target}.{names[0]}"
    elif node.op == "call_function" and "aten.embedding.default" in str(node.target):
        matrix, indices = node.args[:2]
        if not isinstance(matrix, fx.Node) or not isinstance(indices, fx.Node) or matrix.op != "get_attr":
            return None
        arguments, keywords, source, weight = node.args, node.kwargs, indices, str(matrix.target)
    else:
        return None
    padding, *flags = list(arguments[2:]) or [-1]
    if keywords or any(flags) or not isinstance(padding, int) or not are_parameters([weight], owner):
        return None
    return LookupCall(node=node, source=source, weight=weight, padding=padding)


def _linear_module(node: fx.Node, owner: nn.Module) -> Linear | None:
    module = owner.get_submodule(str(node.target))
    parameters = dict(module.named_parameters())
    matrices = [name for name, tensor in parameters.items() if tensor.dim() == 2]
    vectors = [name for name, tensor in parameters.items() if tensor.dim() == 1]
    if len(matrices) != 1 or len(vectors) > 1 or len(parameters) != len(matrices) + len(vectors):
        return None
    if _is_adapted(module) or any(True for _ in module.buffers()) or len(node.all_input_nodes) != 1:
        return None
    try:
        names = [name for name, _, _ in interior(node)]
    except NotSharedError:
        return None
    products = [name for name in names if name in _PRODUCTS]
    if len(products) != 1 or not set(names) <= _PRODUCTS | _VIEWS | ({"add"} if vectors else set()):
        return None
    out_dim = 0 if products[0] == "linear" else 1
    source, shape = node.all_input_nodes[0], tuple(parameters[matrices[0]].shape)
    if not is_tensor(source) or shape[out_dim] != shape_of(node)[-1] or shape[1 - out_dim] != shape_of(source)[-1]:
        return None
    if shape_of(source)[:-1] != shape_of(node)[:-1] or (vectors and parameters[vectors[0]].shape[0] != shape[out_dim]):
        return None
    bias = f"{node.target}.{vectors[0]}" if vectors else None
    return Linear(node=node, source=source, weight=f"{node.target}.{matrices[0]}", bias=bias, out_dim=out_dim)


def _is_adapted(module: nn.Module) -> bool:
    """Whether hooks, or parametrizations, whose weight an earlier call may have kept, change what a module computes."""
    return has_user_hooks(module) or parametrize.is_parametrized(module)


def are_parameters(paths: list[str], owner: nn.Module) -> bool:
    """Whether paths are those of parameters, not of buffers or constants.

    Args:
        paths: in the model
        owner: the flow
    """
    for path in paths:
        holder, _, name = path.rpartition(".")
        if name not in owner.get_submodule(holder)._parameters:
            return False
    return True


# ---------------------------------------------------------------------------------------------------------------------
# Which operations are convolutions: by what they compute, not by their class


_DIMENSIONS = {f"{name}{number}d": number for name in ("conv", "conv_transpose") for number in (1, 2, 3)}
_TENSORS = frozenset({"input", "weight", "bias"})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ConvolutionCall:
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


def convolution_of(node: fx.Node, owner: nn.Module) -> ConvolutionCall | None:
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
    return ConvolutionCall(
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
    if _is_adapted(module) or any(True for _ in module.buffers()):
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


# ---------------------------------------------------------------------------------------------------------------------
# torch's attention modules, which a flow calls as one operation, with columns and rows inside


Parts = tuple[tuple[str, int, tuple[int, ...]], ...]
"""Path of each sharded parameter of a pair of columns and rows, its dimension, its sections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCall:
    """A call of attention, or of an encoder layer around one.

    Attributes:
        node: of the flow
        sources: tensors that it reads and that want gradients, each once
        splits: of the parameters, for each pair of columns and rows
        units: of each pair: heads, or features
    """

    node: fx.Node
    sources: tuple[fx.Node, ...]
    splits: tuple[Parts, ...]
    units: tuple[int, ...]


def attention_of(node: fx.Node, owner: nn.Module) -> AttentionCall | None:
    """A node as attention whose heads can be shared, or None.

    Args:
        node: of a flow
        owner: the flow
    """
    if node.op != "call_module":
        return None
    module = owner.get_submodule(str(node.target))
    if any(_is_adapted(part) for part in module.modules()):
        return None
    if type(module) is nn.MultiheadAttention and _is_plain_attention(module) and _needs_no_weights(node):
        given = [*node.args[:3]]
        if len(given) < 3 or not all(isinstance(part, fx.Node) and _is_batched(part) for part in given):
            return None
        splits: tuple[Parts, ...] = (_heads(str(node.target), module),)
        units: tuple[int, ...] = (module.num_heads,)
    elif type(module) is nn.TransformerEncoderLayer and _is_plain_attention(module.self_attn):
        given = [*node.args[:1]]
        if len(given) != 1 or not isinstance(given[0], fx.Node) or not _is_batched(given[0]):
            return None
        if not callable(module.activation) or any(True for _ in getattr(module.activation, "parameters", list)()):
            return None
        splits = (_heads(f"{node.target}.self_attn", module.self_attn), _dense(str(node.target), module))
        units = (module.self_attn.num_heads, module.linear1.out_features)
    else:
        return None
    sources = tuple(dict.fromkeys(part for part in given if isinstance(part, fx.Node) and part.meta["wants_gradient"]))
    return AttentionCall(node=node, sources=sources, splits=splits, units=units)


def _heads(path: str, module: nn.MultiheadAttention) -> Parts:
    width = module.embed_dim
    found: list[tuple[str, int, tuple[int, ...]]] = [(f"{path}.in_proj_weight", 0, (width,) * 3)]
    if module.in_proj_bias is not None:
        found.append((f"{path}.in_proj_bias", 0, (width,) * 3))
    return (*found, (f"{path}.out_proj.weight", 1, (width,)))


def _dense(path: str, module: nn.TransformerEncoderLayer) -> Parts:
    width = module.linear1.out_features
    found: list[tuple[str, int, tuple[int, ...]]] = [(f"{path}.linear1.weight", 0, (width,))]
    if module.linear1.bias is not None:
        found.append((f"{path}.linear1.bias", 0, (width,)))
    return (*found, (f"{path}.linear2.weight", 1, (width,)))


def _is_plain_attention(module: nn.MultiheadAttention) -> bool:
    """One matrix for queries, keys and values, and nothing added to the keys."""
    return module._qkv_same_embed_dim and module.bias_k is None and not module.add_zero_attn


def _needs_no_weights(node: fx.Node) -> bool:
    """Whether nobody asks for the weights of the attention, which are a mean over all heads."""
    wanted = node.args[4] if len(node.args) > 4 else node.kwargs.get("need_weights", True)
    read = {user.args[1] for user in node.users if "getitem" in str(getattr(user.target, "__name__", ""))}
    masks = [node.kwargs.get("attn_mask"), *node.args[5:6]]
    by_head = any(isinstance(mask, fx.Node) and is_tensor(mask) and len(shape_of(mask)) == 3 for mask in masks)
    return not by_head and (wanted is False or read <= {0})


def _is_batched(node: fx.Node) -> bool:
    return is_tensor(node) and len(shape_of(node)) == 3
