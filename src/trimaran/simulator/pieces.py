"""Instructions that stand still at marks, as chains of tasks.

0F0     ├── piece 0 ──┤          ├── piece 1 ──────┤          └ one span, from the first start to the last end
f0 ════════╝
"""

from collections.abc import Mapping, Sequence

from trimaran.costs.types import ProgramCosts
from trimaran.errors import InputError
from trimaran.program.types import Instruction, Mark, Program
from trimaran.simulator.columns import Tasks, wait

Places = Mapping[tuple[str, str], tuple[int, float]]
"""Where the marks of divided instructions are, by id and name: the piece, and the fraction of it."""


def split(tasks: Tasks, program: Program, costs: ProgramCosts, position_of: Mapping[str, int]) -> Places:
    """Divide what stands still at marks; each piece after the first waits for what its mark names.

    Args:
        tasks: priced; gets a task for each further piece
        program: what each rank does
        costs: where the marks are
        position_of: position of each instruction by its id

    Returns:
        Where the marks of the divided instructions are.

    Raises:
        InputError: a mark without a place, or one that waits for what its rank does not have
    """
    places: dict[tuple[str, str], tuple[int, float]] = {}
    for position, instruction in enumerate(program):
        if any(mark.waits_for for mark in instruction.marks):
            _split(tasks, position, instruction, costs, position_of, places)
    return places


def no_place(fraction: float | None, name: str, waiting: str) -> InputError:
    """The error for a mark whose place is no fraction.

    Args:
        fraction: what there is
        name: of the mark, for people
        waiting: what waits for it, for people
    """
    return InputError(
        f"{waiting} waits for the mark {name}, whose place in ProgramCosts.marks is {fraction}: "
        f"expected a fraction of the instruction between 0 and 1",
        code="simulator.mark-without-place",
        mark=name,
        fraction=fraction,
    )


def _split(
    tasks: Tasks,
    position: int,
    instruction: Instruction,
    costs: ProgramCosts,
    position_of: Mapping[str, int],
    places: dict[tuple[str, str], tuple[int, float]],
) -> None:
    task = tasks.number[position]
    if tasks.flow[task] is not None:
        raise InputError(f"{instruction.id} is a transfer: only computation has marks", instruction=instruction.id)
    whole_s, lane = tasks.work_s[task], tasks.lane[task]
    reached = _reached(instruction, costs)
    start = 0.0
    inside: list[tuple[Mark, float]] = []
    for mark, fraction in [*reached, (None, 1.0)]:
        if mark is not None:
            inside.append((mark, fraction))
            if not mark.waits_for:
                continue
        tasks.work_s[task] = (fraction - start) * whole_s
        for passed, at in inside:
            share = (at - start) / (fraction - start) if fraction > start else 1.0
            places[instruction.id, passed.name] = task, min(1.0, share)
        if mark is None:
            break
        awaited = position_of.get(f"r{instruction.rank}/{mark.waits_for}")
        if awaited is None:
            raise InputError(
                f"{instruction.id}!{mark.name} waits for {mark.waits_for}, which rank {instruction.rank} does not have",
                mark=mark.name,
            )
        following = tasks.add(position, work_s=0.0, lane=lane)
        wait(tasks, following, task)
        wait(tasks, following, tasks.number[awaited])
        task, start, inside = following, fraction, []
    tasks.number[position] = task


def _reached(instruction: Instruction, costs: ProgramCosts) -> Sequence[tuple[Mark, float]]:
    """The marks of an instruction with their fractions, in the order in which it passes them."""
    found = []
    for mark in instruction.marks:
        fraction = costs.marks.get((instruction.id, mark.name))
        if fraction is None or not 0.0 <= fraction <= 1.0:
            raise no_place(fraction, f"{instruction.id}!{mark.name}", mark.waits_for or "something")
        found.append((mark, fraction))
    return sorted(found, key=lambda entry: entry[1])
