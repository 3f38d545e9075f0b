"""Order as edges between tasks: lanes, what an instruction names, marks, the issue of what is not compute."""

from collections.abc import Mapping

from trimaran.costs.types import ProgramCosts
from trimaran.errors import InputError
from trimaran.program.nodes import is_chained
from trimaran.program.types import Instruction, Program
from trimaran.simulator.columns import Tasks, wait
from trimaran.simulator.pieces import Places, no_place, split
from trimaran.timeline import COMPUTE, HOST


def connect(tasks: Tasks, program: Program, costs: ProgramCosts, second_of: Mapping[int, int]) -> None:
    """Add the edges that the lists, `after` and marks make; those between transfers are not among them.

    Args:
        tasks: priced, without edges
        program: what each rank does
        costs: where the marks are, and whether hosts block
        second_of: the task of a second sum by that of its first

    Raises:
        InputError: twice the same id, `after` or a mark that does not exist
    """
    position_of = {identifier: position for position, identifier in enumerate(tasks.identifiers)}
    if len(position_of) < len(tasks.identifiers):
        twice = next(name for position, name in enumerate(tasks.identifiers) if position_of[name] != position)
        raise InputError(
            f"{twice} is there twice: ids are unique within a program",
            code="simulator.instruction-twice",
            instruction=twice,
        )
    places = split(tasks, program, costs, position_of)
    # Turns wait for the first of two sums, all else for the second.
    tasks.number = [second_of.get(task, task) for task in tasks.number]
    position = 0
    for instructions in program.ranks:
        lanes: dict[str, int] = {}
        decoded: dict[str, int] = {}
        unfinished: Instruction | None = None
        for instruction in instructions:
            task = tasks.first[position]
            stream = instruction.stream
            blocks = stream in (COMPUTE, HOST)
            if unfinished is not None and unfinished.token in instruction.after:
                _go_on(tasks, unfinished, costs, lanes, position_of)
                unfinished = None
            second = costs.second_rounds.get(instruction.id)
            if second is not None and second.turn is not None:
                start = places[second.turn.instruction, second.turn.start]
                _wait_for_place(tasks, tasks.number[position], *start)
            elif second is not None:
                unfinished = instruction
            if costs.decoding:
                _decode(tasks, instruction, costs, lanes, decoded, position_of)
            issued_by_mark = _wait_for_named(tasks, position, instruction, position_of, places, costs)
            # What follows a collective by itself is issued by its end, and not by what the host does meanwhile.
            issued_by_mark = issued_by_mark or is_chained(instruction)
            if instruction.peer is None and not instruction.group:
                lane = _BLOCKING_LANE if blocks and costs.host_blocks else stream
                if lane in lanes:
                    wait(tasks, task, lanes[lane])
                lanes[lane] = tasks.number[position]
            if costs.host_blocks and not blocks and not issued_by_mark:
                handling_s = costs.handling.get(instruction.id, 0.0)
                if handling_s > 0.0:
                    lanes[_BLOCKING_LANE] = _handle(tasks, position, instruction, handling_s, lanes, position_of)
                if _BLOCKING_LANE in lanes:
                    wait(tasks, task, lanes[_BLOCKING_LANE])
            position += 1


_BLOCKING_LANE = "compute and host"


def _decode(
    tasks: Tasks,
    instruction: Instruction,
    costs: ProgramCosts,
    lanes: dict[str, int],
    decoded: dict[str, int],
    position_of: Mapping[str, int],
) -> None:
    """Add the work on results that an instruction is the first to name; whoever names them waits for it.

    Args:
        tasks: get a task for each result
        instruction: names results
        costs: of that work
        lanes: the last task of each lane of the rank
        decoded: for each result, by its token, the task that works on it
        position_of: position of each instruction by its id
    """
    lane = _BLOCKING_LANE if costs.host_blocks else COMPUTE
    for token in instruction.after:
        result = f"r{instruction.rank}/{token}"
        cost = costs.decoding.get(result)
        if cost is None or result not in position_of:
            continue
        if token not in decoded:
            position = position_of[result]
            task = tasks.add(position, work_s=cost.seconds, lane=instruction.rank)
            wait(tasks, task, tasks.number[position])
            if lane in lanes:
                wait(tasks, task, lanes[lane])
            decoded[token] = lanes[lane] = task
        wait(tasks, tasks.first[position_of[instruction.id]], decoded[token])


def _go_on(
    tasks: Tasks,
    unfinished: Instruction,
    costs: ProgramCosts,
    lanes: dict[str, int],
    position_of: Mapping[str, int],
) -> None:
    """Start the second sum of a collective that is about to be named.

    Args:
        tasks: have the second sum
        unfinished: the collective
        costs: of what lies between its sums
        lanes: the last task of each lane of the rank
        position_of: position of each instruction by its id
    """
    position = position_of[unfinished.id]
    first, second = tasks.first[position], tasks.number[position]
    lane = _BLOCKING_LANE if costs.host_blocks else COMPUTE
    between_s = costs.second_rounds[unfinished.id].between.seconds
    task = tasks.add(position, work_s=between_s, lane=unfinished.rank)
    wait(tasks, task, first)
    if lane in lanes:
        wait(tasks, task, lanes[lane])
    lanes[lane] = task
    wait(tasks, second, task)


def _handle(
    tasks: Tasks,
    position: int,
    instruction: Instruction,
    seconds: float,
    lanes: Mapping[str, int],
    position_of: Mapping[str, int],
) -> int:
    """Add the work of a rank's thread for a transfer; it needs what the transfer needs of its own rank."""
    task = tasks.add(position, work_s=seconds, lane=instruction.rank)
    if _BLOCKING_LANE in lanes:
        wait(tasks, task, lanes[_BLOCKING_LANE])
    for name in instruction.after:
        if "!" not in name:
            wait(tasks, task, tasks.number[position_of[f"r{instruction.rank}/{name}"]])
    return task


def _wait_for_named(
    tasks: Tasks,
    position: int,
    instruction: Instruction,
    position_of: Mapping[str, int],
    places: Places,
    costs: ProgramCosts,
) -> bool:
    """Add the edges of `after`; return whether one of them is a mark."""
    task = tasks.first[position]
    issued_by_mark = False
    for name in instruction.after:
        token, _, mark = name.partition("!")
        prerequisite = f"r{instruction.rank}/{token}"
        if prerequisite not in position_of:
            raise InputError(
                f'{instruction.id} is after "{name}", which rank {instruction.rank} does not have',
                code="simulator.unknown-predecessor",
                instruction=instruction.id,
                after=name,
            )
        before = tasks.number[position_of[prerequisite]]
        if not mark:
            wait(tasks, task, before)
            continue
        issued_by_mark = True
        place = places.get((prerequisite, mark))
        if place is None:
            place = before, _fraction(tasks, task, before, mark, costs.marks.get((prerequisite, mark)))
        _wait_for_place(tasks, task, *place)
    return issued_by_mark


def _fraction(tasks: Tasks, task: int, before: int, mark: str, fraction: float | None) -> float:
    if tasks.flow[before] is not None:
        name = f"{tasks.name(before)}!{mark}"
        raise InputError(f"the mark {name} is inside a transfer: only computation has marks", mark=name)
    if fraction is None or not 0.0 <= fraction <= 1.0:
        raise no_place(fraction, f"{tasks.name(before)}!{mark}", tasks.name(task))
    return fraction


def _wait_for_place(tasks: Tasks, task: int, before: int, fraction: float) -> None:
    tasks.waits[task] += 1
    places = tasks.marks.setdefault(before, [])
    for place, waiting in places:
        if place == fraction:
            waiting.append(task)
            return
    places.append((fraction, [task]))
    places.sort(key=lambda entry: -entry[0])
