"""Critical path of a simulated step, followed backwards from the end.

Every instruction starts at the instant its last prerequisite is met, so from the one that ends last a chain of them
leads back to the start of the step without a gap: each begins where the one before it ended, or passed a mark. The
chain is the critical path; its pieces, put into classes, sum to the step.

    rank 0  0F0 ██──send──┐                     ┌──0B0 ███ U █
    rank 1                └─1F0 ██████ 1B0 █████████
    chain       bubble  messages    compute   messages bubble update

Where a rank computes during a collective on the chain, that time counts as its compute: a faster exchange leaves it
there. The rest is what the step waits for.

The stage that computes longest on the chain is the bottleneck: no other order saves its compute. Compute of other
stages on the chain is the pipeline's filling and draining: its bubble. The places of a placement are no stages: they
compute side by side, so that compute on the chain is compute, on whichever of them.

Bottleneck of a simulated step.

On the rank that computes longest, the step is compute plus the time in which it waits. Waiting is put down to the
collective that is under way, else to the pipeline (its bubble, or stages of unequal time). It is the largest part, not
the one whose halving saves most: that needs a simulation for each part, and its name changes with the size of the
change. What a change saves is priced by planning again (`what_if.py`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from trimaran.base.timeline import COMMUNICATION, Span
from trimaran.base.units import format_seconds
from trimaran.pricing.types import ProgramCosts
from trimaran.program.strategy import Strategy
from trimaran.program.types import COLLECTIVES, Instruction, Kind, Program
from trimaran.simulator.engine import Engine, Resources, after_step, steady
from trimaran.simulator.tasks import ROUNDING, Tasks, build_tasks, prerequisites, released_by


class TimeClass(StrEnum):
    """A class of time on the critical path; values are for people."""

    LOAD = "loading"
    FORWARD = "forward"
    BACKWARD = "backward"
    SLOWED = "slowed by communication"
    EXCHANGE = "exchange"
    MESSAGES = "messages"
    BUBBLE = "bubble"
    UPDATE = "update"
    AFTER = "copies of gradients and stragglers"
    LOOP = "overhead of the loop"
    WAIT = "waiting"


class Meanwhile(NamedTuple):
    """Compute of a rank during a collective: how much of its time, and what that would be alone [s]."""

    instruction: Instruction
    seconds: float
    alone_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Leg:
    """A piece of the critical path.

    Attributes:
        instruction: that runs, or that the host works for; None: none, or the time after the step's last one
        start_s: start of the piece [s]
        end_s: end of the piece, which is the start of the next one [s]
        alone_s: its duration if nothing else ran at the same time [s]
        meanwhile: of a collective: what its rank computes during it
    """

    instruction: Instruction | None
    start_s: float
    end_s: float
    alone_s: float
    meanwhile: tuple["Meanwhile", ...] = ()

    @property
    def seconds(self) -> float:
        """Length of the piece [s]."""
        return self.end_s - self.start_s


def critical_path(program: Program, costs: ProgramCosts) -> tuple[Leg, ...]:
    """The chain of instructions that makes a simulated step as long as it is.

    Of several prerequisites that were met at the same instant, compute comes before transfers, then the lower rank.

    Args:
        program: one step
        costs: by which it is simulated

    Returns:
        From the start of the step to its end, without gaps; none for a step of nothing. Where steps overlap, of one
        period.
    """
    instructions = {instruction.id: instruction for instruction in program}
    if not instructions:
        return ()
    if program.behind:
        return _period(program, costs)
    tasks = build_tasks(program, costs)
    times, taken_after = _run(program, costs)
    after_s, _ = after_step(
        program,
        costs,
        starts_s=[times[task][0] for task in tasks.first],
        ends_s=[times[task][1] for task in tasks.number],
    )
    last = max(range(len(times)), key=lambda one: (times[one][1], -one))
    end_s = times[last][1]
    legs = list(_back_from(last, tasks, times, taken_after, instructions, tasks.identifiers))
    if after_s > 0.0:
        legs.append(Leg(instruction=None, start_s=end_s, end_s=end_s + after_s, alone_s=after_s))
    return tuple(legs)


def _period(program: Program, costs: ProgramCosts) -> tuple[Leg, ...]:
    """The last period of the chain that leads to an update in the middle of many steps that overlap."""
    found = steady(program, costs)
    times = list(zip(found.engine.start_s, found.engine.end_s, strict=True))
    busy = [0.0] * len(program.ranks)
    ends = [0] * len(program.ranks)
    for at, item in zip(found.middle, program, strict=True):
        if item.stream != COMMUNICATION:
            busy[item.rank] += times[found.tasks.number[at]][1] - times[found.tasks.first[at]][0]
            ends[item.rank] = found.tasks.number[at]
    # The rank that has most to do has the period of all.
    last = ends[max(range(len(busy)), key=lambda rank: (busy[rank], -rank))]
    instructions = {instruction.id: instruction for instruction in program}
    whole = _back_from(last, found.tasks, times, found.engine.taken_after, instructions, found.origins)
    end_s = times[last][1]
    begin_s = end_s - found.period_s
    legs = []
    for leg in whole:
        if leg.end_s > begin_s:
            start_s = max(leg.start_s, begin_s)
            share = (leg.end_s - start_s) / leg.seconds if leg.seconds else 1.0
            legs.append(
                replace(
                    leg,
                    start_s=start_s - begin_s,
                    end_s=leg.end_s - begin_s,
                    alone_s=leg.alone_s * share,
                    meanwhile=tuple(Meanwhile(one[0], one[1] * share, one[2] * share) for one in leg.meanwhile),
                )
            )
    middle = found.middle
    after_s, _ = after_step(
        program,
        costs,
        starts_s=[times[found.tasks.first[at]][0] for at in middle],
        ends_s=[times[found.tasks.number[at]][1] for at in middle],
    )
    if after_s > 0.0:
        legs.append(Leg(instruction=None, start_s=found.period_s, end_s=found.period_s + after_s, alone_s=after_s))
    return tuple(legs)


def _back_from(
    last: int,
    tasks: Tasks,
    times: Sequence[tuple[float, float]],
    taken_after: Mapping[int, int],
    instructions: Mapping[str, Instruction],
    names: Sequence[str],
) -> tuple[Leg, ...]:
    """The chain of tasks that leads to one, from the start on.

    Args:
        last: the task
        tasks: after a run
        times: start and end of each [s]
        taken_after: after which others those that waited in lines were taken
        instructions: by id
        names: id of the instruction of each member of a task
    """
    before = prerequisites(tasks)
    for task, ended in taken_after.items():
        before[task].append((ended, None))
    computing: dict[int, list[int]] = {}
    for task, rank in enumerate(tasks.lane):
        computing.setdefault(rank, []).append(task)
    legs: list[Leg] = []
    at: int | None = last
    at_s, done = times[last][1], 1.0
    while at is not None:
        start_s = min(times[at][0], at_s)
        instruction = instructions[names[tasks.members[at][0]]]
        alone_s = min(at_s - start_s, tasks.latency_s[at] + tasks.work_s[at] * done)
        meanwhile = []
        for task in computing.get(instruction.rank, ()) if instruction.kind in COLLECTIVES else ():
            began_s, ended_s = times[task]
            seconds = min(ended_s, at_s) - max(began_s, start_s)
            if seconds > 0.0:
                share = seconds / (ended_s - began_s)
                one = instructions[names[tasks.members[task][0]]]
                meanwhile.append(Meanwhile(one, seconds, share * (tasks.latency_s[task] + tasks.work_s[task])))
        legs.append(
            Leg(instruction=instruction, start_s=start_s, end_s=at_s, alone_s=alone_s, meanwhile=tuple(meanwhile))
        )
        at, released_s, done = released_by(times[at][0], before[at], times, tasks)
        at_s = min(released_s, start_s)
        if at_s < start_s:
            legs.append(Leg(instruction=None, start_s=at_s, end_s=start_s, alone_s=0.0))
    return tuple(reversed(legs))


def parts_of(program: Program, legs: Sequence[Leg], *, placed: bool = False) -> dict[TimeClass, float]:
    """The time of each class on a critical path [s]; the classes sum to the step.

    Args:
        program: one step
        legs: its critical path
        placed: ranks are the places of a placement, and no stages
    """
    binding = None if placed else binding_segments(program, legs)
    parts = dict.fromkeys(TimeClass, 0.0)

    def count(part: TimeClass, seconds: float, alone_s: float) -> None:
        slowed_s = seconds - alone_s if part in _SLOWED_APART and seconds - alone_s > ROUNDING * seconds else 0.0
        parts[part] += seconds - slowed_s
        parts[TimeClass.SLOWED] += slowed_s

    for leg in legs:
        if leg.instruction is None and leg.alone_s > 0.0 and len(program.ranks) == 1:
            # One device copies nothing into buffers, and waits for nobody.
            parts[TimeClass.LOOP] += leg.seconds
            continue
        covered_s = sum(one.seconds for one in leg.meanwhile)
        count(_part(leg.instruction, leg.alone_s, binding), max(0.0, leg.seconds - covered_s), leg.alone_s)
        for one in leg.meanwhile:
            count(_part(one.instruction, one.alone_s, binding), one.seconds, one.alone_s)
    return parts


def binding_segments(program: Program, legs: Sequence[Leg]) -> frozenset[int]:
    """The segments that the rank which computes longest on a critical path holds; of equal ones the first.

    Args:
        program: one step
        legs: its critical path
    """
    held = [frozenset(item.segment for item in rank if item.segment is not None) for rank in program.ranks]
    spent = dict.fromkeys(held, 0.0)
    for leg in legs:
        for instruction, seconds, _ in ((leg.instruction, leg.seconds, 0.0), *leg.meanwhile):
            if instruction is not None and _PART_OF.get(instruction.kind) in (TimeClass.FORWARD, TimeClass.BACKWARD):
                spent[held[instruction.rank]] += seconds
    return max(spent, key=lambda segments: (spent[segments], -min(segments, default=0)), default=frozenset())


def _run(program: Program, costs: ProgramCosts) -> tuple[list[tuple[float, float]], Mapping[int, int]]:
    """Start and end of each task [s], and after which others those that waited in lines were taken.

    Some tasks, such as the host's part of a transfer, have no span in a timeline.
    """
    tasks = build_tasks(program, costs)
    engine = Engine(tasks, Resources(ranks=len(program.ranks), links=tasks.links, interference=costs.interference))
    engine.run()
    return list(zip(engine.start_s, engine.end_s, strict=True)), engine.taken_after


# Kinds of compute, which communication at the same time slows down.
_SLOWED_APART = frozenset({TimeClass.LOAD, TimeClass.FORWARD, TimeClass.BACKWARD, TimeClass.UPDATE})

_PART_OF: Mapping[Kind, TimeClass] = {
    Kind.LOAD: TimeClass.LOAD,
    Kind.FORWARD: TimeClass.FORWARD,
    Kind.EVALUATE: TimeClass.FORWARD,
    Kind.BACKWARD: TimeClass.BACKWARD,
    Kind.BACKWARD_INPUT: TimeClass.BACKWARD,
    Kind.BACKWARD_WEIGHT: TimeClass.BACKWARD,
    Kind.RECOMPUTE: TimeClass.BACKWARD,
    Kind.UPDATE: TimeClass.UPDATE,
    Kind.CLIP: TimeClass.UPDATE,
}


def _part(instruction: Instruction | None, alone_s: float, binding: frozenset[int] | None) -> TimeClass:
    if instruction is None:
        return TimeClass.AFTER if alone_s > 0.0 else TimeClass.WAIT
    if instruction.kind in COLLECTIVES:
        return TimeClass.EXCHANGE
    part = _PART_OF.get(instruction.kind, TimeClass.MESSAGES)
    if part in (TimeClass.FORWARD, TimeClass.BACKWARD) and binding is not None and instruction.segment not in binding:
        return TimeClass.BUBBLE
    return part


INPUT_PIPELINE = "input pipeline"
"""Begin of the name of the bottleneck where the whole step waits for its data."""


GROUPS: Mapping[str, Sequence[TimeClass]] = {
    "compute": (TimeClass.FORWARD, TimeClass.BACKWARD, TimeClass.UPDATE),
    "communication": (TimeClass.EXCHANGE, TimeClass.MESSAGES, TimeClass.SLOWED, TimeClass.AFTER),
    "idle stages": (TimeClass.BUBBLE, TimeClass.WAIT),
    "loading": (TimeClass.LOAD,),
    "overhead of the loop": (TimeClass.LOOP,),
}
"""The classes of each group. Shortening what is not on the critical path changes nothing, and what a rank computes
during an exchange stays without it, so that the groups are the possible gains."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBottleneck:
    """The bottleneck of a step: the largest group of classes of its critical path.

    Attributes:
        subject: its name, such as "communication" or "compute of stage 1"
        groups: time of each group [s]; they sum to the step
        limiter: `subject` with its time and share, where it is not compute
    """

    subject: str
    groups: Mapping[str, float]
    limiter: str


def bottleneck(
    program: Program, legs: Sequence[Leg], strategy: Strategy, *, step_s: float, waits: bool = False
) -> StepBottleneck:
    """What limits a step: the one account that plans, tables and explanations give.

    Args:
        program: one step
        legs: its critical path
        strategy: of the program
        step_s: its time [s]
        waits: the whole step waits for its data, so that nothing else shortens it
    """
    parts = parts_of(program, legs, placed=bool(strategy.parts))
    groups = {name: sum(parts[part] for part in classes) for name, classes in GROUPS.items()}
    if len(program.ranks) == 1:
        groups = {name: spent for name, spent in groups.items() if spent or name in ("compute", "loading")}
    name = max(groups, key=lambda group: groups[group])
    seconds, subject = groups[name], name
    if waits and parts[TimeClass.LOAD] > 0.0:
        subject, seconds = INPUT_PIPELINE, parts[TimeClass.LOAD]
    elif name == "compute" and strategy.pp > 1 and not strategy.parts:
        rows = sorted({strategy.rows[segment] for segment in binding_segments(program, legs)})
        subject = f"compute of stage {', '.join(map(str, rows))}"
    return StepBottleneck(subject=subject, groups=groups, limiter=limiter_of(subject, seconds, step_s))


def limiter_of(subject: str, seconds: float, step_s: float) -> str:
    """A bottleneck in a phrase, with its time and share where it is not compute.

    Args:
        subject: its name
        seconds: its time [s]
        step_s: of the step [s]

    Example:
        >>> limiter_of("idle stages", 0.5, 2.0), limiter_of("compute of stage 1", 1.5, 2.0)
        ('idle stages, 500 ms (25%)', 'compute of stage 1')
    """
    share = seconds / step_s if step_s else 0.0
    return subject if subject.startswith("compute") else f"{subject}, {format_seconds(seconds)} ({share:.0%})"


def covered(spans: Iterable[Span]) -> float:
    """Time during which at least one of the spans is under way [s]."""
    total, reach = 0.0, float("-inf")
    for start, end in sorted((span.start_s, span.end_s) for span in spans):
        total += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    return total
