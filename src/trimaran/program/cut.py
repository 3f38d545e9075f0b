"""What a program has to know of a graph that is cut into segments: what crosses, what is fed, what is shared."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trimaran.graph.types import Graph, Op


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A graph, cut.

    Attributes:
        parts: operations of each segment
        forward: bytes of the activations that each `(producer, consumer)` pair of segments exchanges for one microbatch
        backward: for the pairs along which gradients flow back, bytes of those gradients
        data: for each segment, the names of the tensors of a batch that it reads
        data_bytes: size of each tensor of a batch for one microbatch
        buffer_bytes: for each segment, bytes of its buffers
        tied: for each parameter that several segments use, those segments, ascending
        parameter_bytes: size of each trained parameter
    """

    parts: tuple[tuple[Op, ...], ...]
    forward: Mapping[tuple[int, int], int]
    backward: Mapping[tuple[int, int], int]
    data: tuple[tuple[str, ...], ...]
    data_bytes: Mapping[str, int]
    buffer_bytes: tuple[int, ...]
    tied: Mapping[str, tuple[int, ...]]
    parameter_bytes: Mapping[str, int]


def cut_graph(graph: Graph, boundaries: Sequence[str], *, microbatch: int) -> Cut:
    """Cut a graph into a chain of segments.

    Args:
        graph: the graph
        boundaries: last operation of every segment but the last, in order
        microbatch: samples of a microbatch

    Returns:
        What crosses the cuts, with its size.
    """
    parts = graph.parts(boundaries)
    crossing = graph.crossing(boundaries)
    gradients = {pair: [spec for spec in specs if spec.requires_grad] for pair, specs in crossing.items()}
    return Cut(
        parts=parts,
        forward={pair: sum(round(spec.nbytes.at(microbatch)) for spec in specs) for pair, specs in crossing.items()},
        backward={
            pair: sum(round(spec.nbytes.at(microbatch)) for spec in specs) for pair, specs in gradients.items() if specs
        },
        data=_data(graph, parts),
        data_bytes={spec.name: round(spec.nbytes.at(microbatch)) for spec in graph.inputs},
        buffer_bytes=_buffer_bytes(graph, parts),
        tied=_tied(graph, parts),
        parameter_bytes={parameter.name: parameter.nbytes for parameter in graph.parameters if parameter.trainable},
    )


def tied_parameters(graph: Graph, boundaries: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """The trained parameters that several segments use, with those segments.

    The k-th of them is what `AR#tie<k>` reduces, where the segments are on several ranks.

    Args:
        graph: the graph
        boundaries: last operation of every segment but the last, in order

    Returns:
        Segments, ascending, by parameter, in the order of `graph.parameters`.
    """
    return _tied(graph, graph.parts(boundaries))


def _data(graph: Graph, parts: Sequence[Sequence[Op]]) -> tuple[tuple[str, ...], ...]:
    read = [{name for op in ops for name in op.inputs} for ops in parts]
    # The loss is computed where the last segment is, and nothing else reads the targets.
    read[-1].update(graph.targets)
    return tuple(tuple(spec.name for spec in graph.inputs if spec.name in names) for names in read)


def _buffer_bytes(graph: Graph, parts: Sequence[Sequence[Op]]) -> tuple[int, ...]:
    if len(parts) == 1:
        # The user's own model, with the buffers that no captured operation reads.
        return (sum(graph.buffers.values()),)
    used = [{name for op in ops for name in op.buffers} for ops in parts]
    return tuple(sum(size for name, size in graph.buffers.items() if name in names) for names in used)


def _tied(graph: Graph, parts: Sequence[Sequence[Op]]) -> dict[str, tuple[int, ...]]:
    users: dict[str, list[int]] = {}
    for segment, ops in enumerate(parts):
        for name in dict.fromkeys(name for op in ops for name in op.parameters):
            users.setdefault(name, []).append(segment)
    return {
        parameter.name: tuple(users[parameter.name])
        for parameter in graph.parameters
        if parameter.trainable and len(users.get(parameter.name, ())) > 1
    }
