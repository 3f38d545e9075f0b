"""Whether an operation of a graph may be what launched a kernel, by their names.

A graph has operators as a model calls them ("aten.linear.default"), a traced step those that they come down to
("aten.addmm"). What they have in common is part of the name, or the family.
"""

from trimaran.graph.types import Op
from trimaran.graph.workload import Work, WorkKind

_FAMILIES: dict[WorkKind, tuple[str, ...]] = {
    WorkKind.PRODUCT: ("linear", "matmul", "mm", "addmm", "bmm", "baddbmm", "einsum", "dot", "mv"),
    WorkKind.ATTENTION: ("scaled_dot_product",),
    WorkKind.CONVOLUTION: ("conv",),
    WorkKind.RECURRENT: ("lstm", "gru", "rnn"),
    WorkKind.SOFTMAX: ("softmax",),
    WorkKind.NORMALIZATION: ("norm",),
    WorkKind.POOLING: ("pool",),
    WorkKind.EMBEDDING: ("embedding", "index_select", "gather"),
}
"""Parts of the names of operators that launch kernels of a kind."""


def may_launch(op: Op, work: Work) -> bool:
    """Whether an operation may have launched a kernel.

    Args:
        op: of a graph
        work: a kernel of the forward

    Example:
        >>> from trimaran.graph.types import Phase
        >>> figures = {"module": "", "dtype": "float32", "flops": 1.0, "nbytes": 1, "dims": (1,)}
        >>> work = Work(kind=WorkKind.PRODUCT, phase=Phase.FORWARD, name="aten.addmm", **figures)
        >>> may_launch(Op(id="a", target="aten.linear.default"), work), may_launch(Op(id="b", target="aten.relu"), work)
        (True, False)
    """
    called, launched = _bare(op.target), _bare(work.name)
    if called == launched:
        return True
    return any(part in called for part in _FAMILIES.get(work.kind, ()))


def _bare(name: str) -> str:
    """The operator without its library, its overload and the marks of variants.

    Example:
        >>> _bare("aten.relu_.default"), _bare("aten._softmax")
        ('relu', 'softmax')
    """
    parts = name.split(".")
    return (parts[1] if len(parts) > 1 else parts[0]).strip("_")
