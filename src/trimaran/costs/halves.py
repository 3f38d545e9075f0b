"""The two halves of a backward: gradients of inputs, which others wait for, and of weights, which may be put off.

Linear layers and convolutions have both, as two products of the same work: half of their backward each, where nobody
measured them apart. One whose input needs no gradient, such as the first of a network, has the second only. All other
operations (norms, embeddings, recurrent layers, activations) have one computation, which is in the first half.
"""

import re
from collections.abc import Sequence

from trimaran.graph.types import Graph, Op

_WITH_WEIGHTS = re.compile(r"Linear|NonDynamicallyQuantizableLinear|Conv(Transpose)?[123]d|aten\.(linear|conv\w*)\.\w+")


def weight_shares(graph: Graph, *, execution: str) -> dict[str, float]:
    """The share of each operation's backward that is put off, by its id [0..1].

    Args:
        graph: the network
        execution: a compiled segment has its whole backward in the first half
    """
    if execution == "compiled":
        return dict.fromkeys((op.id for op in graph.ops), 0.0)
    returned = {spec.name for op in graph.ops for spec in op.outputs if spec.requires_grad}
    trained = {parameter.name for parameter in graph.parameters if parameter.trainable}
    return {op.id: _weight_share(op, returned, trained) for op in graph.ops}


def put_off(ops: Sequence[Op], shares: dict[str, float]) -> list[Op]:
    """The operations with anything to put off."""
    return [op for op in ops if shares[op.id] > 0.0]


def _weight_share(op: Op, returned: set[str], trained: set[str]) -> float:
    if not _WITH_WEIGHTS.fullmatch(op.target) or not trained.issuperset(op.parameters) or not op.parameters:
        return 0.0
    return 0.5 if returned.intersection(op.inputs) else 1.0
