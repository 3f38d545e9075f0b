"""torch's attention modules, which a flow calls as one operation, with columns and rows inside."""

from dataclasses import dataclass

from torch import fx, nn

from trimaran.graph.hooks import has_user_hooks
from trimaran.graph.sharding.calls import is_tensor, shape_of

Parts = tuple[tuple[str, int, tuple[int, ...]], ...]
"""Path of each sharded parameter of a pair of columns and rows, its dimension, its sections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
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


def attention_of(node: fx.Node, owner: nn.Module) -> Attention | None:
    """A node as attention whose heads can be shared, or None.

    Args:
        node: of a flow
        owner: the flow
    """
    if node.op != "call_module":
        return None
    module = owner.get_submodule(str(node.target))
    if any(has_user_hooks(part) for part in module.modules()):
        return None
    if type(module) is nn.MultiheadAttention and _is_plain(module) and _needs_no_weights(node):
        given = [*node.args[:3]]
        if len(given) < 3 or not all(isinstance(part, fx.Node) and _is_batched(part) for part in given):
            return None
        splits: tuple[Parts, ...] = (_heads(str(node.target), module),)
        units: tuple[int, ...] = (module.num_heads,)
    elif type(module) is nn.TransformerEncoderLayer and _is_plain(module.self_attn):
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
    return Attention(node=node, sources=sources, splits=splits, units=units)


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


def _is_plain(module: nn.MultiheadAttention) -> bool:
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
