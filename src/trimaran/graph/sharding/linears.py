"""Which operations are linear layers and embeddings: by what they compute, not by their class."""

from dataclasses import dataclass

from torch import fx, nn

from trimaran.graph.hooks import has_user_hooks
from trimaran.graph.sharding.calls import interior, is_tensor, shape_of
from trimaran.graph.sharding.spread import NotSharedError

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
class Lookup:
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


def lookup_of(node: fx.Node, owner: nn.Module) -> Lookup | None:
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
        if len(inside) != 1 or inside[0][0] != "embedding" or len(names) != 1 or has_user_hooks(module):
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
    return Lookup(node=node, source=source, weight=weight, padding=padding)


def _linear_module(node: fx.Node, owner: nn.Module) -> Linear | None:
    module = owner.get_submodule(str(node.target))
    parameters = dict(module.named_parameters())
    matrices = [name for name, tensor in parameters.items() if tensor.dim() == 2]
    vectors = [name for name, tensor in parameters.items() if tensor.dim() == 1]
    if len(matrices) != 1 or len(vectors) > 1 or len(parameters) != len(matrices) + len(vectors):
        return None
    if has_user_hooks(module) or any(True for _ in module.buffers()) or len(node.all_input_nodes) != 1:
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
