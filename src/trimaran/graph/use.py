"""Which trained parameters get a gradient: all, always the same ones, or others from batch to batch.

A parameter that no sample of a global batch used has no gradient in a plain loop (`grad` is None), and an optimizer
leaves it alone: no weight decay, no momentum. Replicas see shares of a batch, so that a parameter may have a gradient
on one and none on another; then they must ask each other. Where every parameter always has one, nobody asks.
"""

from typing import Literal

from trimaran.graph.types import Graph

ParameterUse = Literal["always", "fixed", "varies"]
"""Every trained parameter has a gradient in every step; the same ones never have any; or it depends on the data."""


def parameter_use(graph: Graph | None) -> ParameterUse:
    """Which trained parameters get a gradient, as far as a graph tells.

    The forward of a captured model is the same for all data. The loss may read some of several outputs, so a parameter
    is known to have a gradient where all outputs depend on it, or where every one was seen to have one.

    Args:
        graph: of the job; None: nothing is known

    Returns:
        "always" is certain; the others are where it is not.

    Example:
        >>> parameter_use(None)
        'varies'
    """
    if graph is None or is_whole(graph):
        return "varies"
    seen = graph.behaviour
    if seen is not None and not (seen.not_looked or seen.host_draws or seen.unused or seen.varying):
        return "always"
    number = {parameter.name: at for at, parameter in enumerate(graph.parameters) if parameter.trainable}
    reached: dict[str, int] = {}
    for op in graph.ops[:-1]:
        inner = 0
        for name in op.inputs:
            inner |= reached.get(name, 0)
        for name in op.parameters:
            if name in number:
                inner |= 1 << number[name]
        reached.update((spec.name, inner) for spec in op.outputs if spec.requires_grad)
    every = sum(1 << at for at in number.values())
    read = [reached[name] for name in graph.ops[-1].inputs if name in reached]
    return "always" if read and all(found == every for found in read) else "fixed"


def is_whole(graph: Graph) -> bool:
    """Whether the model could not be captured, and is one operation of which nobody knows what is inside.

    Args:
        graph: of the job
    """
    return len(graph.ops) == 2 and graph.ops[0].target == "model" == graph.ops[0].id
