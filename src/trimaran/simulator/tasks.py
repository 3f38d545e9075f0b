"""A program and its costs as a graph of tasks, which is what the engine runs.

A task is one instruction that a rank does alone, or a piece of one, or one transfer: the two ends of a message, or all
members of a collective, which start and end together. Every rule about *order* but one becomes an edge here, so that
the engine only has to start a task when its last prerequisite is met:

- instructions of one lane run in the order of the list; with `host_blocks` the streams "compute" and "host" of a rank
  are one lane, because one thread does both;
- `after` waits for the end of an instruction, or for a mark inside it;
- transfers on one channel, or of one group, run one at a time in order. With `at_once` above 1 the collectives of a
  group wait in one line for so many workers: the next one is taken when any of those under way has ended. Which one
  that is the engine finds out, so this alone is no edge;
- with `host_blocks`, what is not on that lane (a transfer, a copy) is issued when everything on the lane before it in
  the list has ended. What waits for a mark is issued by that mark instead: a hook inside the instruction does it. A
  sum across nodes is issued by the end of the sum within the node;
- with `host_blocks`, the handling of a transfer is a task of that lane of its own, between what is before it in the
  list and the transfer. It belongs to no instruction's span;
- a collective of two sums is two transfers; the second is issued by a mark of what makes its terms out of the first
  sum, or before anything that names it, after that work of the rank's thread;
- an instruction that stands still at marks is a chain of tasks, one up to each such mark and one to the end. Its span
  is from the start of the first to the end of the last.

How *fast* a task runs depends on what runs beside it; `resources` says that.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

from trimaran.costs.types import ProgramCosts, Transfer
from trimaran.errors import InputError
from trimaran.program.grid import Spot
from trimaran.program.matching import match_collectives, match_messages
from trimaran.program.types import Instruction, Program
from trimaran.simulator.columns import Tasks, line_up, wait
from trimaran.simulator.edges import connect
from trimaran.simulator.folding import of_those_there
from trimaran.simulator.second_rounds import add_second_rounds, in_line, with_turns
from trimaran.timeline import COMPUTE, HOST


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
    program = with_turns(of_those_there(program), costs)
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
