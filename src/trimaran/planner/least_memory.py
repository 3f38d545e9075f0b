"""What lives at least at once on each rank of a strategy, from two of its microbatches."""

from trimaran.costs import ProgramCosts
from trimaran.program import Kind, Program, Strategy


def smallest_peaks(program: Program, costs: ProgramCosts, strategy: Strategy) -> tuple[int, ...]:
    """What lives at least at once on each rank [bytes].

    A microbatch lives from its forward to its backward; how many do at once follows from the schedule.

    Args:
        program: a training step with some of the microbatches of the strategy
        costs: of it
        strategy: with all of them
    """
    peaks = []
    for rank, instructions in enumerate(program.ranks):
        first = [item for item in instructions if item.microbatch == 0]
        born: dict[Kind, int] = {}
        for item in first:
            born[item.kind] = born.get(item.kind, 0) + costs.memory.get(item.id, (0, 0))[0]
        passing = sum(costs.memory.get(item.id, (0, 0))[1] for item in first if item.kind == Kind.FORWARD)
        received, forward = born.get(Kind.RECEIVE_FORWARD, 0), born.get(Kind.FORWARD, 0)
        alive = received + forward - passing
        backward = born.get(Kind.RECEIVE_BACKWARD, 0) + born.get(Kind.BACKWARD, 0)
        most = _at_once(strategy, rank % strategy.pp)
        peak = max((most - 1) * alive + received + forward, most * alive + backward)
        peaks.append((costs.resident_bytes[rank] if costs.resident_bytes else 0) + peak)
    return tuple(peaks)


def _at_once(strategy: Strategy, stage: int) -> int:
    """Microbatches that live at once on a stage."""
    if strategy.pp == 1:
        return 1
    if strategy.schedule == "gpipe":
        return strategy.microbatches
    return min(strategy.pp - stage, strategy.microbatches)
