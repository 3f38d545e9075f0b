"""A program and its costs as a graph of tasks, which is what the engine runs.

A task is one instruction that a rank does alone, or a piece of one, or one transfer: the two ends of a message, or all
members of a collective, which start and end together. Every rule about *order* but one becomes an edge here, so that
the engine only has to start a task when its last prerequisite is met:

- instructions of one lane run in the order of the list; with `host_blocks` the streams "compute" and "host" of a rank
  are one lane, because one thread does both;
- `after` waits for the end of an instruction, or for a mark inside it;
- transfers on one channel, or of one group, run one at a time in order. With `at_once` above 1 the collectives of a
  group wait in one line for that number of workers: the next one is taken when any of those in progress has ended. The
  engine finds which one that is, so this alone is no edge;
- with `host_blocks`, what is not on that lane (a transfer, a copy) is issued when everything on the lane before it in
  the list has ended. What waits for a mark is issued by that mark instead: a hook inside the instruction does it. A
  sum across nodes is issued by the end of the sum within the node;
- with `host_blocks`, the handling of a transfer is a separate task of that lane, between what is before it in the
  list and the transfer. It belongs to no instruction's span;
- a collective of two sums is two transfers; the second is issued by a mark of what makes its terms out of the first
  sum, or before anything that names it, after that work of the rank's thread;
- an instruction that blocks at marks is a chain of tasks, one up to each such mark and one to the end. Its span
  is from the start of the first to the end of the last.

How *fast* a task runs depends on the tasks that run with it; `Resources` gives the rates.

Instructions that block at marks, as chains of tasks.

0F0     ├── piece 0 ──┤          ├── piece 1 ──────┤          └ one span, from the first start to the last end
f0 ════════╝

Programs that have only one replica of several.

Replicas that do the same at the same time arrive together, so a collective over all of them starts when those of its
members arrive that are there. Its price is that of the whole group.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise

from trimaran.base.errors import InputError
from trimaran.base.timeline import COMPUTE, HOST
from trimaran.pricing.types import ProgramCosts, Transfer
from trimaran.program.layout import is_chained
from trimaran.program.rules.deadlock import match_collectives, match_messages
from trimaran.program.rules.positions import Spot
from trimaran.program.types import Instruction, Mark, Program

# ---------------------------------------------------------------------------------------------------------------------
# The tasks of a program as columns, which the engine runs on


@dataclass(slots=True, kw_only=True)
class Tasks:
    """Columns: the first three have one entry an instruction, the others one a task. Transfers come first.

    Attributes:
        identifiers: id of the instruction
        first: task that the instruction starts with
        number: task that the instruction ends with
        members: positions of the instructions that the task is made of
        latency_s: part of a transfer before its bytes flow; 0 for others [s]
        work_s: the rest of the duration, when nothing else runs [s]
        lane: rank whose compute lane the task occupies, or -1
        flow: ranks, and numbers of the links, of a transfer or a copy; else None
        waits: number of prerequisites
        followers: the tasks that wait for the end of this one, once for each reason
        marks: where tasks wait for marks inside this one: `(fraction, waiting tasks)`, descending
        queue: number of the queue of a task that is in one with several workers
        queued: for each such queue, the tasks that no worker has taken yet, the next one last
        links: number of different links
    """

    identifiers: Sequence[str]
    first: Sequence[int]
    number: list[int]
    members: list[tuple[int, ...]]
    latency_s: list[float] = field(default_factory=list)
    work_s: list[float] = field(default_factory=list)
    lane: list[int] = field(default_factory=list)
    flow: list[tuple[tuple[int, ...], tuple[int, ...]] | None] = field(default_factory=list)
    waits: list[int] = field(default_factory=list)
    followers: list[list[int]] = field(default_factory=list)
    marks: dict[int, list[tuple[float, list[int]]]] = field(default_factory=dict)
    queue: dict[int, int] = field(default_factory=dict)
    queued: list[list[int]] = field(default_factory=list)
    links: int = 0

    def name(self, task: int) -> str:
        """The instructions of a task, for people."""
        return " = ".join(self.identifiers[position] for position in self.members[task])

    def add(self, position: int, *, work_s: float, lane: int) -> int:
        """Add a task of one instruction, and return its number."""
        self.members.append((position,))
        self.waits.append(0)
        self.followers.append([])
        self.latency_s.append(0.0)
        self.work_s.append(work_s)
        self.lane.append(lane)
        self.flow.append(None)
        return len(self.members) - 1


def wait(tasks: Tasks, task: int, prerequisite: int) -> None:
    """Let a task wait for the end of another."""
    tasks.followers[prerequisite].append(task)
    tasks.waits[task] += 1


def line_up(tasks: Tasks, line: Sequence[int], workers: int) -> None:
    """Let transfers wait in one line for several workers.

    The first of them have a worker from the beginning on. Whenever one ends, its worker takes the next in the line: it
    may start when all else that it waits for has happened.

    Args:
        tasks: the tasks; those of the line wait for one thing more, until they are taken
        line: the transfers, in the order of their issue
        workers: how many are under way at once
    """
    number = len(tasks.queued)
    tasks.queue.update(dict.fromkeys(line, number))
    waiting = list(line[workers:])
    for task in waiting:
        tasks.waits[task] += 1
    tasks.queued.append(waiting[::-1])


Places = Mapping[tuple[str, str], tuple[int, float]]
"""Where the marks of split instructions are, by id and name: the piece, and the fraction of it."""


def split(tasks: Tasks, program: Program, costs: ProgramCosts, position_of: Mapping[str, int]) -> Places:
    """Split instructions that block at marks; each piece after the first waits for what its mark names.

    Args:
        tasks: priced; gets a task for each further piece
        program: what each rank does
        costs: where the marks are
        position_of: position of each instruction by its id

    Returns:
        Where the marks of the split instructions are.

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


# ---------------------------------------------------------------------------------------------------------------------
# Order as edges between tasks: lanes, what an instruction names, marks, the issue of what is not compute


def connect(tasks: Tasks, program: Program, costs: ProgramCosts, second_of: Mapping[int, int]) -> None:
    """Add the edges that the lists, `after` and marks make; those between transfers are added later.

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
    # Marks wait for the first of two sums, all else for the second.
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
            if second is not None and second.second_sum is not None:
                start = places[second.second_sum.instruction, second.second_sum.start]
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
    """Add the work on results that an instruction is the first to name; all instructions that name them wait for it.

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
        costs: of the work between its sums
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
    """Add the work of a rank's thread for a transfer; it needs what the transfer needs of this rank."""
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


# ---------------------------------------------------------------------------------------------------------------------
# Collectives of two sums: a second transfer for all members, and who starts it when (`costs.two_rounds`)


def with_marks(program: Program, costs: ProgramCosts) -> Program:
    """The program with marks where an instruction waits for a first sum, and where it starts the second one.

    Args:
        program: one step
        costs: of it
    """
    if not costs.second_rounds:
        return program
    return replace(program, ranks=tuple(_with_marks(instructions, costs) for instructions in program.ranks))


def _with_marks(instructions: Sequence[Instruction], costs: ProgramCosts) -> tuple[Instruction, ...]:
    added: dict[tuple[str, str], tuple[Mark, Mark]] = {}
    for item in instructions:
        second = costs.second_rounds.get(item.id)
        if second is not None and second.second_sum is not None:
            marked = second.second_sum
            marks = Mark(name=marked.pause, op="", waits_for=item.token), Mark(name=marked.start, op="")
            added[marked.instruction, marked.before] = marks

    def turning(item: Instruction) -> Instruction:
        marks = [one for mark in item.marks for one in (*added.get((item.id, mark.name), ()), mark)]
        return replace(item, marks=tuple(marks)) if len(marks) > len(item.marks) else item

    return tuple(map(turning, instructions))


def add_second_rounds(
    tasks: Tasks, collectives: Iterable[Sequence[tuple[int, ...]]], costs: ProgramCosts
) -> dict[int, int]:
    """Add a task for each second sum, which waits for its first one.

    Args:
        tasks: priced
        collectives: of each group in order, the positions of the instructions that meet
        costs: of the program

    Returns:
        The task of the second sum by that of the first.
    """
    found: dict[int, int] = {}
    if not costs.second_rounds:
        return found
    for positions in (meeting for queue in collectives for meeting in queue):
        second = costs.second_rounds.get(tasks.identifiers[positions[0]])
        if second is not None:
            first = tasks.number[positions[0]]
            task = found[first] = tasks.add(positions[0], work_s=second.transfer.flow_s, lane=-1)
            tasks.members[task], tasks.flow[task] = tasks.members[first], tasks.flow[first]
            tasks.latency_s[task] = second.transfer.latency_s
            wait(tasks, task, first)
    return found


def in_line(queue: Sequence[tuple[int, ...]], number: Sequence[int], second_of: Mapping[int, int]) -> list[int]:
    """The transfers of a group in the order of their issue; a second sum follows its first, as later ones wait for it.

    Args:
        queue: positions of the instructions that meet, in order
        number: task of each position
        second_of: made by `add_second_rounds`
    """
    line = []
    for meeting in queue:
        first = number[meeting[0]]
        line += [first, second_of[first]] if first in second_of else [first]
    return line


def of_those_there(program: Program) -> Program:
    """The program with its groups restricted to the ranks that it has; itself where all are there.

    Args:
        program: what each rank does, or what the ranks of one replica do
    """
    there = len(program.ranks)
    if all(not item.group or item.group[-1] < there for item in program):
        return program
    groups: dict[tuple[int, ...], tuple[int, ...]] = {}
    ranks = []
    for instructions in program.ranks:
        listed = []
        for item in instructions:
            if item.group and item.group[-1] >= there:
                if item.group not in groups:
                    groups[item.group] = tuple(rank for rank in item.group if rank < there)
                item = replace(item, group=groups[item.group])
            listed.append(item)
        ranks.append(tuple(listed))
    return replace(program, ranks=tuple(ranks))


def build_tasks(program: Program, costs: ProgramCosts) -> Tasks:
    """The tasks of a program, with every rule of order as an edge.

    Args:
        program: what each rank does; members of groups that it lacks are taken to be like those it has
        costs: what it costs

    Returns:
        The tasks; edges may form a cycle, which the engine finds.

    Raises:
        InputError: an instruction without a cost, twice the same id, `after` or a mark that does not exist, ends of a
            transfer that do not belong together
    """
    program = with_marks(of_those_there(program), costs)
    instructions = list(program)
    messages, collectives = _transfers(program)
    queues = [*messages, *collectives]
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
        first=list(number),
        number=number,
        members=members,
        waits=[0] * len(members),
        followers=[[] for _ in members],
    )
    _price(tasks, instructions, costs, transfers=transfers)
    second_of = add_second_rounds(tasks, collectives, costs)
    connect(tasks, program, costs, second_of)
    for queue, at_once in (*((one, 1) for one in messages), *((one, costs.at_once) for one in collectives)):
        line = in_line(queue, tasks.first, second_of)
        if at_once > 1:
            line_up(tasks, line, at_once)
            continue
        for before, after in pairwise(line):
            wait(tasks, after, before)
    return tasks


_Queue = list[tuple[int, ...]]


def _transfers(program: Program) -> tuple[list[_Queue], list[_Queue]]:
    """For each channel, and for each group, in order, the positions in the whole program of instructions that meet."""
    first = [0, *accumulate(len(instructions) for instructions in program.ranks)]

    def placed(queues: Iterable[Sequence[Sequence[Spot]]]) -> list[_Queue]:
        return [[tuple(first[spot.rank] + spot.position for spot in meeting) for meeting in queue] for queue in queues]

    return placed(match_messages(program)), placed(match_collectives(program))


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
                raise InputError(
                    f"{identifier} has no cost: add it to ProgramCosts.{column}",
                    code="simulator.no-cost",
                    instruction=identifier,
                )
            stream = instructions[positions[0]].stream
            on_lane = stream == COMPUTE or (stream == HOST and costs.host_blocks)
            lane = instructions[positions[0]].rank if on_lane else -1
            latency_s, work_s, flow = 0.0, cost.seconds, None
        if not (0.0 <= latency_s < _FOREVER and 0.0 <= work_s < _FOREVER):
            raise InputError(
                f"{identifier} costs {latency_s} s + {work_s} s: a duration must be finite and not negative",
                code="simulator.bad-duration",
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
            code="simulator.transfer-costs-differ",
            instruction=tasks.identifiers[tasks.members[task][0]],
        )


ROUNDING = 1e-9
"""Relative differences of sums of floats that are nothing."""


def prerequisites(tasks: Tasks) -> list[list[tuple[int, float | None]]]:
    """For each task, those that it waits for, and at which mark inside them (a fraction); None: for their end."""
    before: list[list[tuple[int, float | None]]] = [[] for _ in tasks.members]
    for task, followers in enumerate(tasks.followers):
        for follower in followers:
            before[follower].append((task, None))
    for task, places in tasks.marks.items():
        for fraction, waiting in places:
            for follower in waiting:
                before[follower].append((task, fraction))
    return before


def released_by(
    start_s: float,
    before: Sequence[tuple[int, float | None]],
    times: Sequence[tuple[float, float]],
    tasks: Tasks,
) -> tuple[int | None, float, float]:
    """Why a task did not start earlier: one step back on the chain that makes a run as long as it is.

    Args:
        start_s: of the task [s]
        before: its prerequisites
        times: start and end of each task [s]
        tasks: that were run

    Returns:
        The prerequisite that was met last, when [s], and how much of it was done then (a fraction).
    """
    ended = [(times[task][1], tasks.flow[task] is None, -task) for task, mark in before if mark is None]
    # A mark at the very start or end of an instruction may be off by a rounding.
    slack_s = ROUNDING * start_s
    passed = [
        (times[task][1], -task, mark)
        for task, mark in before
        if mark is not None and times[task][0] - slack_s <= start_s <= times[task][1] + slack_s
    ]
    latest = max(ended, default=None)
    if passed and (latest is None or latest[0] < start_s):
        # The mark that was passed at this instant. Of several, that of the instruction which ends last.
        _, number, mark = max(passed)
        return -number, start_s, mark
    if latest is None:
        return None, 0.0, 1.0
    return -latest[2], latest[0], 1.0
