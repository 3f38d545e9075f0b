"""The tasks of a program as columns, which the engine runs on."""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Tasks:
    """Columns: the first three have one entry an instruction, the others one a task. Transfers come first.

    Attributes:
        identifiers: id of the instruction
        first: task that the instruction starts with
        number: task that the instruction ends with
        members: positions of the instructions that the task is made of
        latency_s: part of a transfer that nothing lengthens; 0 for others [s]
        work_s: the rest of the duration, when nothing runs beside it [s]
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
    may start when all that it waits for has happened besides.

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
