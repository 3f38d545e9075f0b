"""Where a model may be cut.

A segment works on copies of what it receives, so no operation after a cut may write, in place, into a storage that was
made before it: `relu_(batch_norm(x))` stays together. State that is written (running statistics of a layer that is
called twice) must be used on one side only.

    operation    0     1     2     3     4
                conv  norm  relu_ conv  relu_         relu_ at 2 writes what norm made at 1: no cut after 1
    cuts             ^           ^                    relu_ at 4 writes what conv made at 3: no cut after 3
"""

from collections.abc import Sequence

from torch import fx

from trimaran.graph.walk import Walk


def legal_cuts(graph: fx.Graph, operations: Sequence[fx.Node], walk: Walk) -> list[bool]:
    """Whether the model may be cut after each operation, as far as in-place writing goes.

    Args:
        graph: of the flow
        operations: its nodes that are operations, in order
        walk: a run of the flow
    """
    legal = [True] * len(operations)
    inputs = {number for node in graph.nodes if node.op == "placeholder" for number in walk.storages[node]}
    made: dict[int, int] = {}
    touched: dict[int, list[int]] = {}
    written: dict[int, list[int]] = {}
    for position, node in enumerate(operations):
        if node.meta.get("constant"):
            continue  # a segment computes it again, with everything that writes it
        for number in walk.touches[node] | walk.storages[node]:
            made.setdefault(number, position)
            touched.setdefault(number, []).append(position)
        for number in walk.writes[node]:
            written.setdefault(number, []).append(position)
    for number, positions in written.items():
        if number in walk.state:
            first, last = touched[number][0], touched[number][-1]
        elif number in inputs:
            first, last = positions[0], touched[number][-1]
        else:
            first, last = made[number], positions[-1]
        legal[first:last] = [False] * (last - first)
    return legal


def mark_rewrites(graph: fx.Graph, walk: Walk) -> None:
    """Set `meta["rewrites"]` on operations that write constants in place: the nodes whose values they change.

    A segment that computes a constant again must also run what completes it, as in `mask = zeros(...); mask.fill_(1)`.
    """
    constants = [node for node in graph.nodes if node.meta.get("constant")]
    for node in constants:
        written = walk.writes.get(node, frozenset())
        if written:
            node.meta["rewrites"] = [
                other for other in constants if other is not node and walk.storages[other] & written
            ]


def choose_cuts(legal: Sequence[bool], costs: Sequence[bool], crossing: Sequence[float]) -> list[int]:
    """The positions worth cutting after: every segment between two of them has an operation that costs something.

    Of several positions that differ only by free operations, such as views, the one that least crosses is kept.

    Args:
        legal: for each operation, whether the model may be cut after it
        costs: for each operation, whether it costs anything
        crossing: for each operation, bytes that cross a cut after it [bytes]

    Example:
        >>> choose_cuts([True] * 4, [True, True, False, True], [9.0, 9.0, 3.0, 9.0])
        [0, 2]
    """
    best: dict[int, int] = {}
    done = 0
    for position, counts in enumerate(costs):
        done += counts
        if legal[position] and 0 < done < sum(costs):
            kept = best.setdefault(done, position)
            if crossing[position] < crossing[kept]:
                best[done] = position
    return [best[count] for count in sorted(best)]
