"""The event engine: tasks and costs in, start and end of each out.

A heap of `(time, priority, task, version)` and one `step()`. A task starts at the instant its last prerequisite is met;
there is nothing to choose, so the result is a function of the program and its costs alone. While a task runs, its next
event is where its progress reaches the next mark, or its end. When its rate changes, its progress is settled, the
version of its event grows and a new event is pushed; an event of an older version is void.

    transfer   start ──latency──▶ FLOWS ──work at the rate of `Resources`──▶ REACHES (its end)
    compute    start ──work──▶ REACHES (a mark) ──work──▶ REACHES (its end)
"""

from heapq import heappop, heappush

from trimaran.costs.types import ProgramCosts
from trimaran.program.types import Program
from trimaran.simulator.columns import Tasks
from trimaran.simulator.deadlock import deadlock
from trimaran.simulator.memory_curves import live_bytes
from trimaran.simulator.resources import Resources
from trimaran.simulator.tasks import build_tasks
from trimaran.timeline import Columns, Timeline

REACHES = 0
FLOWS = 1


def simulate(program: Program, costs: ProgramCosts) -> Timeline:
    """What a step of the program takes.

    Args:
        program: what each rank does; a group may have members that it lacks, which are taken to be like those it has
            (`program.lower_replica`)
        costs: what it costs

    Returns:
        A span for every instruction; both ends of a message and all members of a collective have the span of the
        transfer. Live bytes of each rank, where `costs` has any.

    Raises:
        InputError: an instruction without a cost, or a program that deadlocks, with who waits for whom

    Example:
        >>> from trimaran.costs.types import Cost
        >>> from trimaran.program.types import Instruction, Kind
        >>> forward = Instruction(kind=Kind.FORWARD, rank=0, segment=0, microbatch=0)
        >>> backward = Instruction(kind=Kind.BACKWARD, rank=0, segment=0, microbatch=0)
        >>> seconds = {forward.id: Cost(1.0, 1.0, 1.0, "example"), backward.id: Cost(2.0, 2.0, 2.0, "example")}
        >>> program = Program(ranks=((forward, backward),), segments=1, microbatches=1)
        >>> simulate(program, ProgramCosts(compute=seconds)).makespan_s
        3.0
    """
    tasks = build_tasks(program, costs)
    engine = Engine(tasks, Resources(ranks=len(program.ranks), links=tasks.links, interference=costs.interference))
    engine.run()
    instructions = list(program)
    starts_s = [engine.start_s[task] for task in tasks.first]
    ends_s = [engine.end_s[task] for task in tasks.number]
    columns = Columns(
        rank=[instruction.rank for instruction in instructions],
        stream=[instruction.stream for instruction in instructions],
        start_s=starts_s,
        end_s=ends_s,
        instruction=list(tasks.identifiers),
        nbytes=[instruction.nbytes for instruction in instructions],
        step=[0] * len(instructions),
    )
    if not costs.resident_bytes and not costs.memory:
        return Timeline.from_columns(columns)
    memory = live_bytes(program, costs, identifiers=tasks.identifiers, starts_s=starts_s, ends_s=ends_s)
    return Timeline.from_columns(columns, memory)


class Engine:
    """Runs tasks.

    Args:
        tasks: the tasks with their prerequisites; used up by the run
        resources: how fast they run beside each other

    Attributes:
        now_s: the clock [s]
        start_s: start of each task, -1 before it started [s]
        end_s: end of each task, -1 before it ended [s]
        taken_after: for each transfer that waited in a line for a worker, the one whose end set the worker free
    """

    def __init__(self, tasks: Tasks, resources: Resources) -> None:
        size = len(tasks.members)
        self._tasks = tasks
        self._resources = resources
        self._heap: list[tuple[float, int, int, int]] = []
        # Progress of a task: `left` at the time `since`, shrinking at `rate`; its event is due when `goal` is left.
        self._left = list(tasks.work_s)
        self._since = [0.0] * size
        self._rate = [0.0] * size
        self._goal = [0.0] * size
        self._version = [0] * size
        self.now_s = 0.0
        self.start_s = [-1.0] * size
        self.end_s = [-1.0] * size
        self.taken_after: dict[int, int] = {}

    def run(self) -> None:
        """Run every task.

        Raises:
            InputError: some tasks wait for each other in a circle
        """
        for task in [task for task, waits in enumerate(self._tasks.waits) if not waits]:
            self._start(task)
        while self.step():
            pass
        if any(self._tasks.waits):
            raise deadlock(self._tasks)

    def step(self) -> bool:
        """Let the next event happen; False when there is none."""
        heap = self._heap
        if self._resources.changed and (not heap or heap[0][0] > self.now_s):
            self._set_rates()
        if not heap:
            return False
        time_s, event, task, version = heappop(heap)
        if version == self._version[task]:
            self.now_s = time_s
            if event == FLOWS:
                self._flow(task)
            else:
                self._reach(task)
        return True

    def _start(self, task: int) -> None:
        now_s = self.now_s
        tasks = self._tasks
        self.start_s[task] = now_s
        if tasks.flow[task] is not None:
            if tasks.latency_s[task]:
                heappush(self._heap, (now_s + tasks.latency_s[task], FLOWS, task, 0))
            else:
                self._flow(task)
            return
        if task in tasks.marks:
            self._goal[task] = self._next_goal(task)
        if self._is_slowed(task):
            self._resources.start_compute(task, tasks.lane[task])
        else:
            self._since[task] = now_s
            self._rate[task] = 1.0
            heappush(self._heap, (now_s + self._left[task] - self._goal[task], REACHES, task, 0))

    def _flow(self, task: int) -> None:
        flow = self._tasks.flow[task]
        if flow is not None and self._left[task]:
            self._resources.start_flow(task, flow)
        else:
            heappush(self._heap, (self.now_s, REACHES, task, 0))

    def _is_slowed(self, task: int) -> bool:
        """Whether a task has to be entered as compute: it has a lane, takes time, and anything depends on it."""
        return self._resources.interferes and self._tasks.lane[task] >= 0 and self._tasks.work_s[task] > 0.0

    def _reach(self, task: int) -> None:
        tasks = self._tasks
        left = self._left[task] = self._goal[task]
        self._since[task] = self.now_s
        if task in tasks.marks:
            self._pass_marks(task)
            if left:
                self._goal[task] = self._next_goal(task)
                due_s = self.now_s + (left - self._goal[task]) / self._rate[task]
                heappush(self._heap, (due_s, REACHES, task, self._version[task]))
                return
        self.end_s[task] = self.now_s
        if tasks.flow[task] is not None:
            if tasks.work_s[task]:
                self._resources.end_flow(task)
            self._take_next(task)
        elif self._is_slowed(task):
            self._resources.end_compute(task)
        self._release(tasks.followers[task])

    def _take_next(self, ended: int) -> None:
        """Let the worker of a transfer that has ended take the next one in its line."""
        number = self._tasks.queue.get(ended)
        if number is not None and self._tasks.queued[number]:
            task = self._tasks.queued[number].pop()
            self.taken_after[task] = ended
            self._release([task])

    def _next_goal(self, task: int) -> float:
        """Work that is left at the next mark of a task, or at its end [s]."""
        places = self._tasks.marks[task]
        return (1.0 - places[-1][0]) * self._tasks.work_s[task] if places else 0.0

    def _pass_marks(self, task: int) -> None:
        places = self._tasks.marks[task]
        while places and self._next_goal(task) >= self._left[task]:
            self._release(places.pop()[1])

    def _release(self, followers: list[int]) -> None:
        waits = self._tasks.waits
        for follower in followers:
            waits[follower] -= 1
            if not waits[follower]:
                self._start(follower)

    def _set_rates(self) -> None:
        """Settle the progress of what changed its rate and push its next event."""
        now_s = self.now_s
        for task in self._resources.changed:
            rate = self._resources.rate(task)
            if rate == self._rate[task]:
                continue
            done = (now_s - self._since[task]) * self._rate[task]
            left = self._left[task] = max(self._left[task] - done, self._goal[task])
            self._since[task] = now_s
            self._rate[task] = rate
            self._version[task] += 1
            due_s = now_s + (left - self._goal[task]) / rate
            heappush(self._heap, (due_s, REACHES, task, self._version[task]))
        self._resources.changed.clear()
