"""Where to cut a network into pipeline stages.

The problem: operations 1..n in the order in which the model runs them, each with a time; a set of legal cuts between
them; K stages. Choose K - 1 cuts so that the largest stage time is smallest, and among those choices the fewest bytes
cross.

    T(k, j) = min over legal cuts i < j of max(T(k-1, i), t(i, j)),      t(i, j) = time of operations i+1..j

Contiguous stages only: a placement that is not a chain is another problem. The recurrence is exact for its objective;
what the schedule makes of the stages is for the simulator to say.
"""

from collections.abc import Mapping, Sequence

from trimaran.errors import InfeasibleError
from trimaran.graph import Graph


def partition(graph: Graph, seconds: Mapping[str, float], *, stages: int) -> tuple[str, ...]:
    """Cut a graph into the given number of stages of the most equal time.

    Args:
        graph: the network
        seconds: time of each operation, forward and backward together, by operation id [s]
        stages: number of stages, at least 1

    Returns:
        The last operation of every stage but the last.

    Raises:
        InfeasibleError: the graph has fewer legal cuts than that needs
    """
    if stages == 1:
        return ()
    if len(graph.cuts) < stages - 1:
        reason = f": {graph.notes[0]}" if graph.notes else ""
        raise InfeasibleError(
            f"{graph.name} can be cut in {len(graph.cuts)} places, {stages} stages need {stages - 1}{reason}",
            cuts=len(graph.cuts),
            stages=stages,
        )
    ends = _positions(graph)
    work = _cumulated(graph, seconds)
    crossing = _bytes_at(graph, ends)
    return tuple(graph.ops[ends[index] - 1].id for index in _best_cuts(ends, work, crossing, stages))


def _positions(graph: Graph) -> list[int]:
    order = {op.id: index + 1 for index, op in enumerate(graph.ops)}
    return [order[cut] for cut in graph.cuts]


def _cumulated(graph: Graph, seconds: Mapping[str, float]) -> list[float]:
    work = [0.0]
    for op in graph.ops:
        work.append(work[-1] + seconds[op.id])
    return work


def _bytes_at(graph: Graph, ends: Sequence[int]) -> list[float]:
    """Bytes a sample that cross each cut [bytes]."""
    made: dict[str, tuple[int, float]] = {}
    last_use: dict[str, int] = {}
    for index, op in enumerate(graph.ops):
        for name in op.inputs:
            last_use[name] = index
        for spec in op.outputs:
            made[spec.name] = (index, spec.nbytes.at(1))
    return [sum(size for name, (index, size) in made.items() if index < end <= last_use.get(name, -1)) for end in ends]


def _best_cuts(ends: Sequence[int], work: Sequence[float], crossing: Sequence[float], stages: int) -> list[int]:
    # best[i]: (largest stage so far, bytes so far, cuts so far) of the first k stages that end at cut i.
    best = {index: (work[end], crossing[index], [index]) for index, end in enumerate(ends)}
    for _ in range(stages - 2):
        best = {
            index: min(
                (max(largest, work[end] - work[ends[cuts[-1]]]), nbytes + crossing[index], [*cuts, index])
                for before, (largest, nbytes, cuts) in best.items()
                if before < index
            )
            for index, end in enumerate(ends)
            if any(before < index for before in best)
        }
    total = work[-1]
    return min((max(largest, total - work[ends[cuts[-1]]]), nbytes, cuts) for largest, nbytes, cuts in best.values())[2]
