"""A program and its costs as a graph of tasks, which is what the engine runs.

A task is one instruction that a rank does alone, or one transfer: the two ends of a message, or all members of a
collective, which start and end together. Every rule about *order* becomes an edge here, so that the engine only has to
start a task when its last prerequisite is met:

- instructions of one lane run in the order of the list; with `host_blocks` the streams "compute" and "host" of a rank
  are one lane, because one thread does both;
- `after` waits for the end of an instruction, or for a mark inside it;
- transfers on one channel, or of one group, run one at a time in order;
- with `host_blocks`, what is not on that lane (a transfer, a copy) is issued when everything on the lane before it in
  the list has ended. What waits for a mark is issued by that mark instead: a hook inside the instruction does it;
- with `host_blocks`, the handling of a transfer is a task of that lane of its own, between what is before it in the
  list and the transfer. It belongs to no instruction's span.

How *fast* a task runs depends on what runs beside it; `resources` says that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

from trimaran.costs.types import ProgramCosts, Transfer
from trimaran.errors import InputError
from trimaran.program.matching import match_collectives, match_messages
from trimaran.program.types import Instruction, Program
from trimaran.timeline import COMPUTE, HOST


@dataclass(slots=True, kw_only=True)
class Tasks:
    """Columns: the first two have one entry an instruction, the others one a task. Transfers come first.

    Attributes:
        identifiers: id of the instruction
        number: task of the instruction
        members: positions of the instructions that the task is made of
        latency_s: part of a transfer that nothing lengthens; 0 for others [s]
        work_s: the rest of the duration, when nothing runs beside it [s]
        lane: rank whose compute lane the task occupies, or -1
        flow: ranks, and numbers of the links, of a transfer or a copy; else None
        waits: number of prerequisites
        followers: the tasks that wait for the end of this one, once for each reason
        marks: where tasks wait for marks inside this one: `(fraction, waiting tasks)`, descending
        links: number of different links
    """

    identifiers: Sequence[str]
    number: Sequence[int]
    members: list[tuple[int, ...]]
    latency_s: list[float] = field(default_factory=list)
    work_s: list[float] = field(default_factory=list)
    lane: list[int] = field(default_factory=list)
    flow: list[tuple[tuple[int, ...], tuple[int, ...]] | None] = field(default_factory=list)
    waits: list[int] = field(default_factory=list)
    followers: list[list[int]] = field(default_factory=list)
    marks: dict[int, list[tuple[float, list[int]]]] = field(default_factory=dict)
    links: int = 0

    def name(self, task: int) -> str:
        """The instructions of a task, for people."""
        return " = ".join(self.identifiers[position] for position in self.members[task])


def build_tasks(program: Program, costs: ProgramCosts) -> Tasks:
    """The tasks of a program, with every rule of order as an edge.

    Args:
        program: what each rank does
        costs: what it costs

    Returns:
        The tasks; edges may form a cycle, which the engine finds.

    Raises:
        InputError: an instruction without a cost, twice the same id, `after` or a mark that does not exist, ends of a
            transfer that do not belong together
    """
    instructions = list(program)
    queues = _transfers(program)
    members = [positions for queue in queues for positions in queue]
    transfers = len(members)
    number = [-1] * len(instructions)
    for task, positions in enumerate(members):
        for position in positions:
            number[position] = task
    for position, task in enumerate(number):
        if task < 0:
            number[position] = len(members)
            members.append((position,))
    tasks = Tasks(
        identifiers=[instruction.id for instruction in instructions],
        number=number,
        members=members,
        waits=[0] * len(members),
        followers=[[] for _ in members],
    )
    _price(tasks, instructions, costs, transfers=transfers)
    _connect(tasks, program, costs)
    for queue in queues:
        for before, after in pairwise(queue):
            _wait(tasks, number[after[0]], number[before[0]])
    return tasks


def _transfers(program: Program) -> list[list[tuple[int, ...]]]:
    """For each channel and group, in order, the positions in the whole program of the instructions that meet."""
    first = [0, *accumulate(len(instructions) for instructions in program.ranks)]
    return [
        [tuple(first[spot.rank] + spot.position for spot in meeting) for meeting in queue]
        for queue in (*match_messages(program), *match_collectives(program))
    ]


def _price(tasks: Tasks, instructions: Sequence[Instruction], costs: ProgramCosts, *, transfers: int) -> None:
    links: dict[str, int] = {}
    for task, positions in enumerate(tasks.members):
        identifier = tasks.identifiers[positions[0]]
        transfer = costs.transfers.get(identifier)
        if transfer is not None:
            for position in positions[1:]:
                _check_equal(transfer, costs.transfers.get(tasks.identifiers[position]), tasks, task)
            ranks = tuple({instructions[position].rank: None for position in positions})
            numbers = tuple({links.setdefault(link, len(links)): None for link in transfer.links})
            latency_s, work_s, lane, flow = transfer.latency_s, transfer.flow_s, -1, (ranks, numbers)
        else:
            cost = None if task < transfers else costs.compute.get(identifier)
            if cost is None:
                column = "transfers" if task < transfers else "compute"
                raise InputError(f"{identifier} has no cost: add it to ProgramCosts.{column}", instruction=identifier)
            stream = instructions[positions[0]].stream
            on_lane = stream == COMPUTE or (stream == HOST and costs.host_blocks)
            lane = instructions[positions[0]].rank if on_lane else -1
            latency_s, work_s, flow = 0.0, cost.seconds, None
        if not (0.0 <= latency_s < _FOREVER and 0.0 <= work_s < _FOREVER):
            raise InputError(
                f"{identifier} costs {latency_s} s + {work_s} s: a duration must be finite and not negative",
                instruction=identifier,
            )
        tasks.latency_s.append(latency_s)
        tasks.work_s.append(work_s)
        tasks.lane.append(lane)
        tasks.flow.append(flow)
    tasks.links = len(links)


_FOREVER = float("inf")


def _check_equal(transfer: Transfer, other: Transfer | None, tasks: Tasks, task: int) -> None:
    if other is not transfer and other != transfer:
        raise InputError(
            f"{tasks.name(task)} is one transfer, but its members have different costs: {transfer} and {other}",
            instruction=tasks.identifiers[tasks.members[task][0]],
        )


def _wait(tasks: Tasks, task: int, prerequisite: int) -> None:
    tasks.followers[prerequisite].append(task)
    tasks.waits[task] += 1


def _connect(tasks: Tasks, program: Program, costs: ProgramCosts) -> None:
    position_of = {identifier: position for position, identifier in enumerate(tasks.identifiers)}
    if len(position_of) < len(tasks.identifiers):
        twice = next(name for position, name in enumerate(tasks.identifiers) if position_of[name] != position)
        raise InputError(f"{twice} is there twice: ids are unique within a program", instruction=twice)
    position = 0
    for instructions in program.ranks:
        lanes: dict[str, int] = {}
        for instruction in instructions:
            task = tasks.number[position]
            stream = instruction.stream
            blocks = stream in (COMPUTE, HOST)
            issued_by_mark = _wait_for_named(tasks, position, instruction, position_of, costs)
            if instruction.peer is None and not instruction.group:
                lane = _BLOCKING_LANE if blocks and costs.host_blocks else stream
                if lane in lanes:
                    _wait(tasks, task, lanes[lane])
                lanes[lane] = task
            if costs.host_blocks and not blocks and not issued_by_mark:
                handling_s = costs.handling.get(instruction.id, 0.0)
                if handling_s > 0.0:
                    lanes[_BLOCKING_LANE] = _handle(tasks, position, instruction, handling_s, lanes, position_of)
                if _BLOCKING_LANE in lanes:
                    _wait(tasks, task, lanes[_BLOCKING_LANE])
            position += 1


_BLOCKING_LANE = "compute and host"


def _handle(
    tasks: Tasks,
    position: int,
    instruction: Instruction,
    seconds: float,
    lanes: Mapping[str, int],
    position_of: Mapping[str, int],
) -> int:
    """Add the work of a rank's thread for a transfer; it needs what the transfer needs of its own rank."""
    task = len(tasks.members)
    tasks.members.append((position,))
    tasks.waits.append(0)
    tasks.followers.append([])
    tasks.latency_s.append(0.0)
    tasks.work_s.append(seconds)
    tasks.lane.append(instruction.rank)
    tasks.flow.append(None)
    if _BLOCKING_LANE in lanes:
        _wait(tasks, task, lanes[_BLOCKING_LANE])
    for name in instruction.after:
        if "!" not in name:
            _wait(tasks, task, tasks.number[position_of[f"r{instruction.rank}/{name}"]])
    return task


def _wait_for_named(
    tasks: Tasks, position: int, instruction: Instruction, position_of: dict[str, int], costs: ProgramCosts
) -> bool:
    """Add the edges of `after`; return whether one of them is a mark."""
    task = tasks.number[position]
    issued_by_mark = False
    for name in instruction.after:
        token, _, mark = name.partition("!")
        prerequisite = f"r{instruction.rank}/{token}"
        if prerequisite not in position_of:
            raise InputError(
                f'{instruction.id} is after "{name}", which rank {instruction.rank} does not have',
                instruction=instruction.id,
                after=name,
            )
        before = tasks.number[position_of[prerequisite]]
        if mark:
            issued_by_mark = True
            _wait_for_mark(tasks, task, before, mark, costs.marks.get((prerequisite, mark)))
        else:
            _wait(tasks, task, before)
    return issued_by_mark


def _wait_for_mark(tasks: Tasks, task: int, before: int, mark: str, fraction: float | None) -> None:
    name = f"{tasks.name(before)}!{mark}"
    if fraction is None or not 0.0 <= fraction <= 1.0:
        raise InputError(
            f"{tasks.name(task)} waits for the mark {name}, whose place in ProgramCosts.marks is {fraction}: "
            f"expected a fraction of the instruction between 0 and 1",
            mark=name,
            fraction=fraction,
        )
    if tasks.flow[before] is not None:
        raise InputError(f"the mark {name} is inside a transfer: only computation has marks", mark=name)
    tasks.waits[task] += 1
    places = tasks.marks.setdefault(before, [])
    for place, waiting in places:
        if place == fraction:
            waiting.append(task)
            return
    places.append((fraction, [task]))
    places.sort(key=lambda entry: -entry[0])
