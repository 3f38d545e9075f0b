"""A graph in segments: tensors that cross between them, data that they read, weights that they share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trimaran.base.errors import InputError
from trimaran.graph.types import Graph, Op, TensorSpec
from trimaran.program.strategy import Strategy

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A graph in segments.

    Attributes:
        parts: operations of each segment
        microbatch: samples of a microbatch
        loss: number of the segment that computes the loss
        forward: pairs `(producer, consumer)` of segments between which activations flow
        backward: those of them along which gradients flow back
        data: for each segment, the names of the tensors of a batch that it reads
        data_bytes: size of each tensor of a batch for one microbatch
        buffer_bytes: for each segment, bytes of its buffers
        tied: for each parameter that several segments use, those segments, ascending
        parameter_bytes: size of what a rank holds of each trained parameter
    """

    parts: tuple[tuple[Op, ...], ...]
    microbatch: int
    loss: int
    forward: tuple[Pair, ...]
    backward: tuple[Pair, ...]
    data: tuple[tuple[str, ...], ...]
    data_bytes: Mapping[str, int]
    buffer_bytes: tuple[int, ...]
    tied: Mapping[str, tuple[int, ...]]
    parameter_bytes: Mapping[str, int]


def partition_graph(
    graph: Graph, parts: Sequence[Sequence[Op]], *, microbatch: int, shards: Mapping[str, int] | None = None
) -> Partition:
    """Split a graph into any segments.

    Args:
        graph: the graph
        parts: the operations of each segment (`segment_ops`)
        microbatch: samples of a microbatch
        shards: bytes that one rank holds of each parameter of which it holds a share

    Returns:
        What crosses between the segments, with its size.
    """
    crossing = graph.exchanged(parts)
    loss = loss_segment(graph, parts)
    return Partition(
        parts=tuple(map(tuple, parts)),
        microbatch=microbatch,
        loss=loss,
        forward=tuple(crossing),
        backward=tuple(pair for pair, specs in crossing.items() if any(spec.requires_grad for spec in specs)),
        data=_data(graph, parts, loss),
        data_bytes={spec.name: round(spec.nbytes.at(microbatch)) for spec in graph.inputs},
        buffer_bytes=_buffer_bytes(graph, parts),
        tied=tied_segments(graph, parts),
        parameter_bytes={
            parameter.name: (shards or {}).get(parameter.name, parameter.nbytes)
            for parameter in graph.parameters
            if parameter.trainable
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRoute:
    """Tensors that go from a segment to another row for every microbatch.

    Attributes:
        producer: segment that makes the tensors
        consumer: first segment of the other row that reads them
        readers: all segments of that row that read any of them
        tensors: that go there; the gradients of those that need one come back
    """

    producer: int
    consumer: int
    readers: tuple[int, ...]
    tensors: tuple[TensorSpec, ...]

    def nbytes(self, microbatch: int, *, forward: bool) -> int:
        """Size of the activations, or of the gradients that come back; 0: none does [bytes].

        Args:
            microbatch: samples of a microbatch
            forward: of the activations
        """
        crossing = [spec for spec in self.tensors if forward or spec.requires_grad]
        return sum(round(spec.nbytes.at(microbatch)) for spec in crossing)


def routes_of(graph: Graph, parts: Sequence[Sequence[Op]], rows: Sequence[int]) -> tuple[TensorRoute, ...]:
    """Routes from each segment to each other row: a tensor that several segments of a row read goes there once.

    It goes to the first of those segments, and the others read it there. On the way back, the gradients that all of
    them add to a tensor are summed on their row and go back once.

    Args:
        graph: the graph
        parts: the operations of each segment
        rows: row of each segment

    Returns:
        One route for each producer and first consumer on different rows.
    """
    first: set[tuple[str, int]] = set()
    readers: dict[tuple[str, int], list[int]] = {}
    found: dict[Pair, list[TensorSpec]] = {}
    crossing = graph.exchanged(parts)
    for (producer, consumer), specs in sorted(crossing.items(), key=lambda entry: entry[0][::-1]):
        if rows[producer] == rows[consumer]:
            continue
        for spec in specs:
            key = (spec.name, rows[consumer])
            readers.setdefault(key, []).append(consumer)
            if key not in first:
                first.add(key)
                found.setdefault((producer, consumer), []).append(spec)
    return tuple(
        TensorRoute(
            producer=producer,
            consumer=consumer,
            readers=tuple(sorted({reader for spec in specs for reader in readers[spec.name, rows[consumer]]})),
            tensors=tuple(specs),
        )
        for (producer, consumer), specs in sorted(found.items())
    )


def loss_segment(graph: Graph, parts: Sequence[Sequence[Op]]) -> int:
    """The number of the segment that computes the loss, which is the last operation of the graph."""
    last = graph.ops[-1].id
    return next((number for number, ops in enumerate(parts) if any(op.id == last for op in ops)), len(parts) - 1)


def tied_segments(graph: Graph, parts: Sequence[Sequence[Op]]) -> dict[str, tuple[int, ...]]:
    """The trained parameters that several segments use, with those segments.

    The k-th of them is what `AR#tie<k>` reduces, where the segments are on several ranks.

    Args:
        graph: the graph
        parts: the operations of each segment

    Returns:
        Segments, ascending, by parameter, in the order of `graph.parameters`.
    """
    users: dict[str, list[int]] = {}
    for segment, ops in enumerate(parts):
        for name in dict.fromkeys(name for op in ops for name in op.parameters):
            users.setdefault(name, []).append(segment)
    return {
        parameter.name: tuple(users[parameter.name])
        for parameter in graph.parameters
        if parameter.trainable and len(users.get(parameter.name, ())) > 1
    }


def _data(graph: Graph, parts: Sequence[Sequence[Op]], loss: int) -> tuple[tuple[str, ...], ...]:
    read = [{name for op in ops for name in op.inputs} for ops in parts]
    # The loss is computed where its segment is, and nothing else reads the targets.
    read[loss].update(graph.targets)
    return tuple(tuple(spec.name for spec in graph.inputs if spec.name in names) for names in read)


def _buffer_bytes(graph: Graph, parts: Sequence[Sequence[Op]]) -> tuple[int, ...]:
    if len(parts) == 1:
        # The user's own model, with the buffers that no captured operation reads.
        return (sum(graph.buffers.values()),)
    used = [{name for op in ops for name in op.buffers} for ops in parts]
    return tuple(sum(size for name, size in graph.buffers.items() if name in names) for names in used)


# ---------------------------------------------------------------------------------------------------------------------
# Which operations each segment of a strategy holds: a chain split at boundaries, or the parts of a placement


def segment_ops(graph: Graph, strategy: Strategy) -> tuple[tuple[Op, ...], ...]:
    """The operations of each segment, in the order of the graph.

    Args:
        graph: the network
        strategy: where it is split, or placed

    Raises:
        InputError: a part names an operation that the graph does not have
    """
    if not strategy.parts:
        return graph.parts(strategy.boundaries)
    known = {op.id: op for op in graph.ops}
    unknown = next((name for part in strategy.parts for name in part.ops if name not in known), None)
    if unknown is not None:
        raise InputError(
            f"a part of the placement names {unknown!r}, which {graph.name} does not have",
            code="parts.unknown-operation",
            op=unknown,
        )
    return tuple(tuple(known[name] for name in part.ops) for part in strategy.parts)
