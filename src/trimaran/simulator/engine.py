"""The event engine: tasks and costs in, start and end of each out.

A heap of `(time, priority, task, version)` and one `step()`. A task starts at the instant its last prerequisite is met;
there is nothing to choose, so the result is a function of the program and its costs alone. While a task runs, its next
event is where its progress reaches the next mark, or its end. When its rate changes, its progress is settled, the
version of its event grows and a new event is pushed; an event of an older version is void.

    transfer   start ──latency──▶ FLOWS ──bytes──▶ REACHES (its end)      both at the rates of `Resources`
    compute    start ──work──▶ REACHES (a mark) ──work──▶ REACHES (its end)

Rates of tasks that run at the same time: compute lanes and links as fluid resources.

Every running task has work left and a rate, the seconds of work that it does a second.

- Compute on a lane runs at rate 1, or `1 / interference.compute` while bytes of a transfer or a copy of its rank flow.
  Programs have one task at a time on a lane. Streams of a script have several: with `shares` each of k runs at 1 / k,
  for large kernels leave no room on a device for others.
- A transfer or a copy whose bytes flow runs at rate `1 / k`, where k is the largest number of flows on one of its
  links, itself included; while compute runs on any of its ranks it is slower by `interference.communication` on top.
- The latency of a transfer takes `interference.latency` times as long while compute runs on any of its ranks. It slows
  nothing down. It waits for a core first and does its work then: where compute ends before, all of the work that the
  wait has kept is still to be done.

Compute is what occupies the compute lane of a rank: the stream "compute", and with `host_blocks` the stream "host" too.
What runs on other streams neither slows anything down nor is slowed down.

Changes of the same instant are collected and rates follow from what runs at its end: compute that starts as other
compute ends does not change the flows.

Waiting for data that other processes make: where a batch comes once in a period that is longer than the step.

    rank 0   IN0 ▒▒▒▒▒▒▒▒▒▒ F0 ████ B0 ████████ U ██    with its data there, a step takes less than the period
             └ period - step ┘

Steps repeat. Data are made all the time, also during messages and other ranks' compute, so a step waits for the period
less the whole step. It waits for its first microbatch: later ones were made meanwhile.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import NamedTuple

from trimaran.base.arguments import told_of_classes
from trimaran.base.errors import InputError
from trimaran.base.timeline import Columns, Timeline
from trimaran.pricing.types import Cost, Interference, ProgramCosts
from trimaran.program.overlap import steps_of, unroll
from trimaran.program.types import Kind, Program
from trimaran.simulator.tasks import Tasks, build_tasks

# ---------------------------------------------------------------------------------------------------------------------
# Who waits for whom in a deadlock


def deadlock(tasks: Tasks) -> InputError:
    """The error for tasks that wait for each other.

    Args:
        tasks: after a run that deadlocked; `waits` is not zero for those that could not start

    Returns:
        An error that names one circle of tasks, each with the one that it waits for.
    """
    prerequisite: dict[int, int] = {}
    for task, followers in enumerate(tasks.followers):
        if not tasks.waits[task]:
            continue
        waiting = followers + [follower for _, marked in tasks.marks.get(task, ()) for follower in marked]
        for follower in waiting:
            prerequisite.setdefault(follower, task)
    for task, number in tasks.queue.items():
        # All workers of a line are held by transfers that cannot start, or the next one would have been taken.
        if tasks.waits[task] and task not in tasks.queued[number]:
            for waiting_task in tasks.queued[number]:
                prerequisite.setdefault(waiting_task, task)
    # Every task that could not start waits for another one that could not, so the walk ends in a circle.
    walk = [next(task for task, waits in enumerate(tasks.waits) if waits)]
    while prerequisite[walk[-1]] not in walk:
        walk.append(prerequisite[walk[-1]])
    circle = walk[walk.index(prerequisite[walk[-1]]) :]
    names = [tasks.name(task) for task in circle]
    return InputError(
        "the program deadlocks: "
        + ", ".join(f"{name} waits for {other}" for name, other in zip(names, [*names[1:], names[0]], strict=True))
        + "; list sends, receives and collectives in an order that lets one of these go first",
        code="program.deadlock",
        circle=tuple(names),
    )


class Resources:
    """Tasks that run on lanes and flow on links.

    Args:
        ranks: number of ranks
        links: number of links
        interference: slowdowns of compute and communication side by side
        shares: a lane may have several tasks at once, which share it

    Attributes:
        interferes: whether anything slows compute or communication down at all
        changed: running tasks whose rate may have changed since the engine last asked

    Raises:
        InputError: a factor that is not positive
    """

    def __init__(self, *, ranks: int, links: int, interference: Interference, shares: bool = False) -> None:
        factors = (interference.compute, interference.communication, interference.latency)
        if min(factors) <= 0.0:
            raise InputError(
                f"factors of interference must be positive, got {interference}", code="simulator.bad-interference"
            )
        self.interferes = shares or factors != (1.0, 1.0, 1.0)
        self._compute, self._communication, self._latency = factors
        self._computing: list[set[int]] = [set() for _ in range(ranks)]
        self._flowing: list[set[int]] = [set() for _ in range(ranks)]
        self._starting: list[set[int]] = [set() for _ in range(ranks)]
        self._on_link: list[set[int]] = [set() for _ in range(links)]
        self._flows: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self._on_rank: dict[int, int] = {}
        self._in_latency: dict[int, tuple[int, ...]] = {}
        # Work of a latency when it began to wait for a core.
        self._kept: dict[int, float] = {}
        self.changed: set[int] = set()

    def start_compute(self, task: int, rank: int) -> None:
        """Occupy the lane of a rank, or a part of it."""
        self._computing[rank].add(task)
        self._on_rank[task] = rank
        self._touch_lane(rank)

    def end_compute(self, task: int) -> None:
        """Leave the lane."""
        rank = self._on_rank.pop(task)
        self._computing[rank].remove(task)
        self.changed.discard(task)
        self._touch_lane(rank)

    def _touch_lane(self, rank: int) -> None:
        self.changed |= self._computing[rank]
        if self._communication != 1.0:
            self.changed |= self._flowing[rank]
        self.changed |= self._starting[rank]

    def start_latency(self, task: int, ranks: tuple[int, ...]) -> bool:
        """Let the latency of a transfer between ranks begin; False where nothing lengthens it."""
        if self._latency == 1.0:
            return False
        self._in_latency[task] = ranks
        for rank in ranks:
            self._starting[rank].add(task)
        self.changed.add(task)
        return True

    def end_latency(self, task: int) -> bool:
        """The latency of a transfer is over; False where the task is in none."""
        ranks = self._in_latency.pop(task, None)
        if ranks is None:
            return False
        for rank in ranks:
            self._starting[rank].remove(task)
        self.changed.discard(task)
        return True

    def left_at(self, task: int, left: float, *, rate: float, next_rate: float) -> float:
        """Work that is left of a task whose rate changes: of a latency, all that a wait for a core has kept.

        Args:
            task: that runs
            left: by the rates that it had [s]
            rate: that it had; 0: it starts
            next_rate: that it has now

        Example:
            A latency of 1 s takes 8 s next to compute: 7 s of waiting, then its work. Left after 4 s and after 7.5 s:

            >>> resources = Resources(ranks=1, links=0, interference=Interference(latency=8.0))
            >>> resources.start_latency(0, (0,)), resources.left_at(0, 1.0, rate=0.0, next_rate=0.125)
            (True, 1.0)
            >>> [resources.left_at(0, left, rate=0.125, next_rate=1.0) for left in (0.5, 0.0625)]
            [1.0, 0.5]
        """
        if task not in self._in_latency:
            return left
        if 0.0 < rate < next_rate:
            return min(self._kept[task], left * next_rate / rate)
        self._kept[task] = left
        return left

    def start_flow(self, task: int, flow: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
        """Let bytes flow between ranks over links."""
        self._flows[task] = flow
        for link in flow[1]:
            self._on_link[link].add(task)
        for rank in flow[0]:
            self._flowing[rank].add(task)
        self.changed.add(task)
        self._touch(flow)

    def end_flow(self, task: int) -> None:
        """Bytes have arrived."""
        flow = self._flows.pop(task)
        for link in flow[1]:
            self._on_link[link].remove(task)
        for rank in flow[0]:
            self._flowing[rank].remove(task)
        self.changed.discard(task)
        self._touch(flow)

    def _touch(self, flow: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
        for link in flow[1]:
            self.changed |= self._on_link[link]
        if self._compute != 1.0:
            for rank in flow[0]:
                self.changed |= self._computing[rank]

    def rate(self, task: int) -> float:
        """Seconds of work that a running task does a second, with all that runs now."""
        flow = self._flows.get(task)
        if flow is None:
            starting = self._in_latency.get(task)
            if starting is not None:
                return 1.0 / (self._latency if any(self._computing[rank] for rank in starting) else 1.0)
            rank = self._on_rank[task]
            return 1.0 / (len(self._computing[rank]) * (self._compute if self._flowing[rank] else 1.0))
        slowdown = 1.0
        for link in flow[1]:
            slowdown = max(slowdown, float(len(self._on_link[link])))
        if self._communication != 1.0 and any(self._computing[rank] for rank in flow[0]):
            slowdown *= self._communication
        return 1.0 / slowdown


# ---------------------------------------------------------------------------------------------------------------------
# Live bytes of each rank over time


def live_bytes(
    program: Program,
    costs: ProgramCosts,
    *,
    identifiers: Sequence[str],
    starts_s: Sequence[float],
    ends_s: Sequence[float],
) -> tuple[tuple[tuple[float, int], ...], ...]:
    """Follow what lives on each rank.

    What lives from the start of an instruction on is counted at its start, what dies at its end is dropped at its end.
    At one instant, what ends frees first, then what starts allocates, in the order of the list; an instruction that
    takes no time allocates and frees at its place in the list.

    Args:
        program: what each rank does
        costs: its resident bytes, and the bytes that live and die with its instructions
        identifiers: id of each instruction, rank after rank
        starts_s: start of each instruction, rank after rank [s]
        ends_s: end of each instruction, rank after rank [s]

    Returns:
        For each rank, `(time [s], live bytes)`: the resident bytes at time 0, then every change.

    Raises:
        InputError: more dies than lives
    """
    memory = costs.memory
    first = 0
    curves = []
    for rank, instructions in enumerate(program.ranks):
        events = []
        for position in range(first, first + len(instructions)):
            identifier = identifiers[position]
            if identifier in memory:
                born, died = memory[identifier]
                start_s, end_s = starts_s[position], ends_s[position]
                if born:
                    events.append((start_s, 1, position, 0, born, identifier))
                if died:
                    events.append((end_s, int(end_s == start_s), position, 1, -died, identifier))
        first += len(instructions)
        live = costs.resident_bytes[rank] if rank < len(costs.resident_bytes) else 0
        curve = [(0.0, live)]
        for time_s, _, _, _, change, identifier in sorted(events):
            live += change
            if live < 0:
                raise InputError(
                    f"{identifier} frees {-change} bytes at {time_s} s and leaves {live} on rank {rank}: "
                    f"ProgramCosts.memory must not let more die than lives",
                    code="simulator.frees-too-much",
                    instruction=identifier,
                    rank=rank,
                )
            curve.append((time_s, live))
        curves.append(tuple(curve))
    return tuple(curves)


REACHES = 0
FLOWS = 1


@told_of_classes
def simulate(program: Program, costs: ProgramCosts) -> Timeline:
    """Simulate a step of the program.

    Args:
        program: what each rank does; a group may have members that it lacks, which are taken to be like those it has
            (`program.lowering.lower.lower_replica`)
        costs: what it costs

    Returns:
        A span for every instruction; both ends of a message and all members of a collective have the span of the
        transfer. Live bytes of each rank, where `costs` has any. Where steps overlap, one in the middle of many, and
        the period of them.

    Raises:
        InputError: an instruction without a cost, or a program that deadlocks, with who waits for whom

    Example:
        >>> from trimaran.pricing.types import Cost
        >>> from trimaran.program.types import Instruction, Kind
        >>> forward = Instruction(kind=Kind.FORWARD, rank=0, segment=0, microbatch=0)
        >>> backward = Instruction(kind=Kind.BACKWARD, rank=0, segment=0, microbatch=0)
        >>> seconds = {forward.id: Cost(1.0, 1.0, 1.0, "example"), backward.id: Cost(2.0, 2.0, 2.0, "example")}
        >>> program = Program(ranks=((forward, backward),), segments=1, microbatches=1)
        >>> simulate(program, ProgramCosts(compute=seconds)).makespan_s
        3.0
    """
    if program.behind:
        return _simulate_overlapping(program, costs)
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
    after_s, waits_s = after_step(program, costs, starts_s=starts_s, ends_s=ends_s)
    if not costs.resident_bytes and not costs.memory:
        return Timeline.from_columns(columns, after_s=after_s, waits_s=waits_s)
    memory = live_bytes(program, costs, identifiers=tasks.identifiers, starts_s=starts_s, ends_s=ends_s)
    return Timeline.from_columns(columns, memory, after_s=after_s, waits_s=waits_s)


STEADY_STEPS = 24
"""Steps that overlap are simulated at least so often, more of them where the pipeline is longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steady:
    """Several steps that overlap, as far as they repeat.

    Attributes:
        program: written out
        tasks: of it
        engine: that has run them
        period_s: from a step to the next one [s]
        fill_s: what many steps take in addition to as many periods, to fill the pipeline and to empty it [s]
        middle: for each instruction of one step, rank after rank, its number in the written out program in a step of
            the middle
        origins: for each instruction of the written out program, that of the step
        memory: live bytes as in `Timeline`, of all steps
    """

    program: Program
    tasks: Tasks
    engine: "Engine"
    period_s: float
    fill_s: float
    middle: tuple[int, ...]
    origins: tuple[str, ...]
    memory: tuple[tuple[tuple[float, int], ...], ...] = ()


def steady(program: Program, costs: ProgramCosts) -> Steady:
    """Run steps that overlap until they repeat.

    A rank that is quicker than the others runs ahead until it lacks something of them, which may take many steps; the
    slowest rank has the period of all.

    Args:
        program: whose steps overlap
        costs: of it

    Raises:
        InputError: as of `simulate`
    """
    behind = program.behind
    steps = STEADY_STEPS + 4 * behind
    long = unroll(program, steps)
    places = [(rank, *place) for rank, items in enumerate(program.ranks) for place in steps_of(items, steps, behind)]
    origins = tuple(f"r{rank}/{token}" for rank, _, token, _ in places)
    known = {item.id: origin for item, origin in zip(long, origins, strict=True)}
    costs = replace(
        costs,
        compute={name: costs.compute[origin] for name, origin in known.items() if origin in costs.compute},
        transfers={name: costs.transfers[origin] for name, origin in known.items() if origin in costs.transfers},
        handling={name: costs.handling[origin] for name, origin in known.items() if origin in costs.handling},
        memory={name: costs.memory[origin] for name, origin in known.items() if origin in costs.memory},
    )
    tasks = build_tasks(long, costs)
    engine = Engine(tasks, Resources(ranks=len(long.ranks), links=tasks.links, interference=costs.interference))
    engine.run()
    starts_s, ends_s = [engine.start_s[task] for task in tasks.first], [engine.end_s[task] for task in tasks.number]
    ended: dict[tuple[int, int], float] = {}
    for (rank, step, _, _), end_s in zip(places, ends_s, strict=True):
        ended[rank, step] = max(end_s, ended.get((rank, step), 0.0))
    last, first = steps - 1, steps - 1 - STEADY_STEPS // 2
    period_s = max(ended[rank, last] - ended[rank, first] for rank in range(len(program.ranks))) / (last - first)
    followed = bool(costs.resident_bytes or costs.memory)
    return Steady(
        program=long,
        tasks=tasks,
        engine=engine,
        period_s=period_s,
        fill_s=max(0.0, max(ends_s) - min(starts_s) - steps * period_s),
        middle=tuple(number for number, (_, step, _, _) in enumerate(places) if step == last - 1),
        origins=origins,
        memory=live_bytes(long, costs, identifiers=tasks.identifiers, starts_s=starts_s, ends_s=ends_s)
        if followed
        else (),
    )


def _simulate_overlapping(program: Program, costs: ProgramCosts) -> Timeline:
    """One step in the middle of many that overlap."""
    found = steady(program, costs)
    first, number = found.tasks.first, found.tasks.number
    starts_s = [found.engine.start_s[first[at]] for at in found.middle]
    ends_s = [found.engine.end_s[number[at]] for at in found.middle]
    origin_s, end_s = min(starts_s, default=0.0), max(ends_s, default=0.0)
    instructions = list(program)
    columns = Columns(
        rank=[instruction.rank for instruction in instructions],
        stream=[instruction.stream for instruction in instructions],
        start_s=[start_s - origin_s for start_s in starts_s],
        end_s=[end_s - origin_s for end_s in ends_s],
        instruction=[instruction.id for instruction in instructions],
        nbytes=[instruction.nbytes for instruction in instructions],
        step=[0] * len(instructions),
    )
    after_s, waits_s = after_step(program, costs, starts_s=starts_s, ends_s=ends_s)
    return Timeline.from_columns(
        columns,
        tuple(_during(changes, origin_s, end_s) for changes in found.memory),
        after_s=after_s,
        waits_s=waits_s,
        period_s=found.period_s,
    )


def _during(changes: Sequence[tuple[float, int]], start_s: float, end_s: float) -> tuple[tuple[float, int], ...]:
    """The part of live bytes that lies in an interval, from its start on."""
    before = [nbytes for time_s, nbytes in changes if time_s < start_s]
    within = [(time_s - start_s, nbytes) for time_s, nbytes in changes if start_s <= time_s <= end_s]
    return ((0.0, before[-1] if before else 0), *within)


_STRAGGLES = frozenset(
    {Kind.FORWARD, Kind.BACKWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT, Kind.RECOMPUTE, Kind.EVALUATE}
)


class AfterStep(NamedTuple):
    """What follows the last instruction of a step.

    Attributes:
        after_s: what no instruction shows, and the wait for the slowest rank [s]
        waits_s: the wait alone [s]
    """

    after_s: float = 0.0
    waits_s: float = 0.0


def after_step(
    program: Program, costs: ProgramCosts, *, starts_s: Sequence[float], ends_s: Sequence[float]
) -> AfterStep:
    """What follows the last instruction of a step, of the rank that has most of it.

    Args:
        program: what each rank does
        costs: says what is between instructions, and what share of a rank's compute all wait for the slowest
        starts_s: start of each instruction, rank after rank [s]
        ends_s: end of each instruction, rank after rank [s]
    """
    if not costs.straggling and not any(costs.between_s):
        return AfterStep()
    first, longest = 0, AfterStep()
    for rank, instructions in enumerate(program.ranks):
        spans = zip(instructions, starts_s[first:], ends_s[first:], strict=False)
        compute_s = sum(end_s - start_s for item, start_s, end_s in spans if item.kind in _STRAGGLES)
        between_s = costs.between_s[rank] if rank < len(costs.between_s) else 0.0
        waits_s = costs.straggling * compute_s
        longest = max(longest, AfterStep(between_s + waits_s, waits_s))
        first += len(instructions)
    return longest


class Engine:
    """Runs tasks.

    Args:
        tasks: the tasks with their prerequisites; used up by the run
        resources: their rates while others run

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
        flow = tasks.flow[task]
        if flow is not None:
            if not tasks.latency_s[task]:
                self._flow(task)
            elif self._resources.start_latency(task, flow[0]):
                self._left[task] = tasks.latency_s[task]
            else:
                heappush(self._heap, (now_s + tasks.latency_s[task], FLOWS, task, 0))
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
            heappush(self._heap, (self.now_s, REACHES, task, self._version[task]))

    def _is_slowed(self, task: int) -> bool:
        """Whether a task has to be entered as compute: it has a lane, takes time, and anything depends on it."""
        return self._resources.interferes and self._tasks.lane[task] >= 0 and self._tasks.work_s[task] > 0.0

    def _reach(self, task: int) -> None:
        tasks = self._tasks
        if self._resources.end_latency(task):
            self._left[task], self._rate[task] = tasks.work_s[task], 0.0
            self._flow(task)
            return
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
            left = max(self._left[task] - done, self._goal[task])
            left = self._left[task] = self._resources.left_at(task, left, rate=self._rate[task], next_rate=rate)
            self._since[task] = now_s
            self._rate[task] = rate
            self._version[task] += 1
            due_s = now_s + (left - self._goal[task]) / rate
            heappush(self._heap, (due_s, REACHES, task, self._version[task]))
        self._resources.changed.clear()


def with_waits(program: Program, costs: ProgramCosts) -> ProgramCosts:
    """The costs of a program with what its first loads wait.

    Args:
        program: one step
        costs: perhaps with a period

    Returns:
        Costs without a period: the first load of each rank is longer by the wait. The same costs where there is none.

    Example:
        >>> from trimaran.program.types import Instruction
        >>> load = Instruction(kind=Kind.LOAD, rank=0, microbatch=0, stream="host")
        >>> program = Program(ranks=((load,),), segments=1, microbatches=1)
        >>> one, three = (Cost(seconds, seconds, seconds, "example") for seconds in (1.0, 3.0))
        >>> with_waits(program, ProgramCosts(compute={load.id: one}, period=three)).compute[load.id].seconds
        3.0
    """
    period = costs.period
    if period is None:
        return costs
    costs = replace(costs, period=None)
    alone_s = simulate(program, costs).makespan_s
    wait_s = period.seconds - alone_s
    if wait_s <= 0.0:
        return costs
    low_s, high_s = max(0.0, period.low - alone_s), max(wait_s, period.high - alone_s)
    compute = dict(costs.compute)
    for instructions in program.ranks:
        first = next((item for item in instructions if item.kind == Kind.LOAD), None)
        if first is not None:
            known = compute[first.id]
            compute[first.id] = Cost(known.seconds + wait_s, known.low + low_s, known.high + high_s, known.source)
    return replace(costs, compute=compute)
