"""What keeps a simulated step from being shorter.

On the rank that computes longest, the step is compute plus the time in which it waits. Waiting is put down to the
collective that is under way, else to the pipeline (its bubble, or stages of unequal time).
"""

from collections.abc import Iterable

from trimaran.program import COLLECTIVES, Kind, Program
from trimaran.timeline import COMMUNICATION, Span, Timeline
from trimaran.units import format_seconds

# Below this share of the step, waiting is not what to work on.
NEGLIGIBLE_SHARE = 0.05
# Below this share of the step, loading is not what limits it.
LOADING_SHARE = 0.25


def limiter(program: Program, timeline: Timeline) -> str:
    """Name what limits a step, with its share.

    Args:
        program: one step
        timeline: the simulation of it

    Returns:
        A short phrase for people, such as "compute" or "gradient exchange, 3.10 ms exposed (22 %)".
    """
    kinds = {instruction.id: instruction.kind for instruction in program}
    step_s = timeline.makespan_s
    by_rank: dict[int, list[Span]] = {}
    for span in timeline:
        by_rank.setdefault(span.rank, []).append(span)
    busy = {rank: covered(span for span in spans if span.stream != COMMUNICATION) for rank, spans in by_rank.items()}
    rank = max(busy, key=lambda one: (busy[one], -one))
    waiting = step_s - busy[rank]
    load_s = covered(span for span in by_rank[rank] if kinds[span.instruction] == Kind.LOAD)
    if load_s > max(waiting, LOADING_SHARE * step_s):
        return f"loading, {format_seconds(load_s)} ({load_s / step_s:.0%})"
    if waiting < NEGLIGIBLE_SHARE * step_s:
        return "compute"
    exchange = [span for span in by_rank[rank] if kinds[span.instruction] in COLLECTIVES]
    compute = [span for span in by_rank[rank] if span.stream != COMMUNICATION]
    exposed = covered([*exchange, *compute]) - busy[rank]
    if exposed >= waiting / 2:
        return f"gradient exchange, {format_seconds(exposed)} exposed ({exposed / step_s:.0%})"
    work = {one: sum(span.seconds for span in by_rank[one] if _is_work(kinds[span.instruction])) for one in by_rank}
    least, most = min(work.values()), max(work.values())
    # A row of a placement, or of an interleaved pipeline, has several segments: it is no stage.
    several = program.segments > len(by_rank)
    if most > 0 and (most - least) / most > waiting / step_s:
        what = "uneven rows" if several else "uneven stages"
        return f"{what}, {format_seconds(least)} against {format_seconds(most)}"
    return f"pipeline bubble and transfers, {waiting / step_s:.0%} idle"


def covered(spans: Iterable[Span]) -> float:
    """Time during which at least one of the spans is under way [s]."""
    total, reach = 0.0, float("-inf")
    for start, end in sorted((span.start_s, span.end_s) for span in spans):
        total += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    return total


def _is_work(kind: Kind) -> bool:
    return kind in {Kind.FORWARD, Kind.BACKWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT}
