"""Where units are recomputed, and what that asks of those that their recipes read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trimaran.planner.memory.problem import MemoryProblem

# A choice is a number: recomputing in the second way is RECOMPUTE + 1.
KEEP, OFFLOAD, RECOMPUTE = 0, 1, 2

_ROUNDS = 2


@dataclass(slots=True, kw_only=True)
class Remakes:
    """What recomputing asks of units.

    Attributes:
        deadline: by unit, the place by which it must be back
        remade: by recomputed unit, its place and way
        late: by source that is read after its own last use, who reads it then
        prolonged: (from, to, bytes) of lives that are longer for it
    """

    deadline: list[int]
    remade: dict[int, tuple[int, int]] = field(default_factory=dict)
    late: dict[int, list[int]] = field(default_factory=dict)
    prolonged: list[tuple[int, int, int]] = field(default_factory=list)


def remakes_of(problem: MemoryProblem, choice: Sequence[int]) -> Remakes:
    """Where units are recomputed, by when others must be back, and which lives are prolonged.

    A source that is read after its own last use would have to stay. Where what reads it is smaller, that is made
    before the source goes.
    """
    chosen = [unit for unit, decision in enumerate(choice) if decision >= RECOMPUTE]
    # What reads is made after what it reads, so going down each deadline is final when its unit is reached.
    chosen.sort(key=lambda unit: -problem.units[unit].made)
    early: dict[int, int] = {}
    found = _remakes_by(problem, choice, chosen, early)
    for _ in range(_ROUNDS):
        known = len(early)
        for source, readers in found.late.items():
            one = problem.units[source]
            place = problem.tick_before[one.over - 1]
            if sum(problem.units[reader].nbytes for reader in readers) < one.nbytes and place >= one.use:
                fitting = [reader for reader in readers if problem.units[reader].gone < place]
                early.update(dict.fromkeys(fitting, place))
        if len(early) == known:
            break
        found = _remakes_by(problem, choice, chosen, early)
    return found


def _remakes_by(
    problem: MemoryProblem, choice: Sequence[int], chosen: Sequence[int], early: Mapping[int, int]
) -> Remakes:
    units = problem.units
    found = Remakes(deadline=[unit.use for unit in units])
    last_read: dict[int, int] = {}
    for unit in chosen:
        place, number = min(found.deadline[unit], early.get(unit, found.deadline[unit])), choice[unit] - RECOMPUTE
        way = units[unit].ways[number]
        found.remade[unit] = (place, number)
        for source in way.sources:
            if place > units[source].packed:
                found.deadline[source] = min(found.deadline[source], place)
            if place >= units[source].over:
                found.late.setdefault(source, []).append(unit)
                last_read[source] = max(last_read.get(source, -1), place)
        found.prolonged += [(over, place + 1, nbytes) for over, nbytes in way.held if over <= place]
    found.prolonged += [(units[source].over, place + 1, units[source].nbytes) for source, place in last_read.items()]
    return found
