"""Where to cut a network into pipeline stages.

The problem: operations 1..n in the order in which the model runs them, each with a time; a set of legal cuts between
them; K segments. Choose K - 1 cuts so that the largest time of a segment is smallest, and among those choices the
fewest bytes cross; only such segments count as are admitted, for their memory, or because an operation is kept on a
row.

    T(k, j) = min over legal cuts i < j, with i+1..j admitted as segment k, of max(T(k-1, i), t(i, j)),
    t(i, j) = time of operations i+1..j

Contiguous segments only: a placement that is not a chain is another problem. The recurrence is exact for its objective;
what the schedule makes of the segments is for the simulator to say. With several segments a row, each must be admitted
by itself (`stage_memory.py` gives each its part of a device).
"""

from collections.abc import Callable, Mapping, Sequence

from trimaran.errors import InfeasibleError
from trimaran.graph import Graph

Admit = Callable[[int, int, int], bool]
"""Whether operations [first, last) may be the segment of some number: `admit(segment, first, last)`."""


def partition(
    graph: Graph, seconds: Mapping[str, float], *, stages: int, admit: Admit | None = None
) -> tuple[str, ...]:
    """Cut a graph into the given number of stages of the most equal time.

    Args:
        graph: the network
        seconds: time of each operation, forward and backward together, by operation id [s]
        stages: number of stages, at least 1
        admit: which segments count; None: all

    Returns:
        The last operation of every stage but the last.

    Raises:
        InfeasibleError: the graph has fewer legal cuts than that needs, or not all segments can be admitted at once
    """
    if stages == 1:
        return ()
    if len(graph.cuts) < stages - 1:
        reason = f": {graph.notes[0]}" if graph.notes else ""
        raise InfeasibleError(
            f"{graph.name} can be cut in {len(graph.cuts)} places, {stages} stages need {stages - 1}{reason}",
            code="plan.too-few-cuts",
            cuts=len(graph.cuts),
            stages=stages,
        )
    ends = _positions(graph)
    work = _cumulated(graph, seconds)
    crossing = _bytes_at(graph, ends)
    best = _best_cuts(ends, work, crossing, stages, admit or _admit_all)
    if best is None:
        raise InfeasibleError(
            f"no way to cut {graph.name} into {stages} stages gives each what its device can hold and what is kept "
            "there",
            code="plan.no-cut-fits",
            cuts=len(graph.cuts),
            stages=stages,
        )
    return tuple(graph.ops[ends[index] - 1].id for index in best)


def _admit_all(segment: int, first: int, last: int) -> bool:
    return True


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


def _best_cuts(
    ends: Sequence[int], work: Sequence[float], crossing: Sequence[float], stages: int, admit: Admit
) -> list[int] | None:
    # best[i]: (largest stage so far, bytes so far, cuts so far) of the first k stages that end at cut i.
    best = {index: (work[end], crossing[index], [index]) for index, end in enumerate(ends) if admit(0, 0, end)}
    for stage in range(1, stages - 1):
        following = {}
        for index, end in enumerate(ends):
            ways = _extended(best, index, end, ends, work)
            chosen = next((way for way in ways if admit(stage, ends[way[2][-1]], end)), None)
            if chosen is not None:
                following[index] = (chosen[0], chosen[1] + crossing[index], [*chosen[2], index])
        best = following
    last = _extended(best, len(ends), len(work) - 1, ends, work)
    found = next((way for way in last if admit(stages - 1, ends[way[2][-1]], len(work) - 1)), None)
    return None if found is None else found[2]


_Way = tuple[float, float, list[int]]


def _extended(best: Mapping[int, _Way], index: int, end: int, ends: Sequence[int], work: Sequence[float]) -> list[_Way]:
    """The ways to go on from each earlier cut to one more segment that ends at `end`, best first."""
    return sorted(
        (max(largest, work[end] - work[ends[cuts[-1]]]), nbytes, cuts)
        for before, (largest, nbytes, cuts) in best.items()
        if before < index
    )
