"""Laws of the simulator, on programs that are lowered from random strategies and priced at random.

The programs are chains of segments with skips and tied weights, in replicas or not, with every kind of instruction that
`lower` knows. Costs are drawn by instruction.
"""

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests import builders
from tests.graphs import boundaries, chain
from tests.raising import raises

from trimaran.base.errors import InputError
from trimaran.base.timeline import COMPUTE, HOST, Timeline
from trimaran.pricing.types import Cost, Interference, ProgramCosts, Transfer
from trimaran.program.lowering.lower import lower, lower_evaluation
from trimaran.program.rules.check import check_program
from trimaran.program.rules.deadlock import Meeting, match_collectives, match_messages
from trimaran.program.strategy import Schedule, Strategy
from trimaran.program.types import RECEIVES, SENDS, Instruction, Kind, Program
from trimaran.report.breakdown import utilization
from trimaran.simulator.engine import simulate

# Sums and differences of tens of floats near 1, in another order than the engine's.
TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What a program and its costs are made from; small, so that a counterexample can be read."""

    strategy: Strategy
    length: int
    skips: tuple[tuple[int, int], ...]
    tied: bool
    buffers: bool
    clip: bool
    evaluates: bool
    seed: int
    shared: bool
    interference: Interference
    host_blocks: bool

    def build(self) -> tuple[Program, ProgramCosts]:
        graph = chain(
            self.length,
            buffers=self.buffers,
            tied=((0, self.length - 1),) if self.tied and self.length > 1 else (),
            skips=self.skips,
        )
        batch = 2 * self.strategy.dp * self.strategy.microbatches
        if self.evaluates:
            program = lower_evaluation(graph, self.strategy, batch=batch)
        else:
            program = lower(graph, self.strategy, batch=batch, clip=self.clip)
        return program, random_costs(
            program,
            self.seed,
            shared=self.shared,
            interference=self.interference,
            host_blocks=self.host_blocks,
        )


@st.composite
def cases(
    draw: st.DrawFn, *, most_stages: int = 4, most_replicas: int = 3, shared: bool = True, interferes: bool = True
) -> Case:
    stages = draw(st.integers(1, most_stages))
    length = draw(st.integers(stages, stages + 2))
    ends = st.tuples(st.integers(0, length), st.integers(0, length))
    factors = st.sampled_from([1.0, 1.25, 2.0, 3.0] if interferes else [1.0])
    return Case(
        strategy=builders.strategy(
            dp=draw(st.integers(1, most_replicas)),
            pp=stages,
            boundaries=boundaries(stages),
            schedule=draw(st.sampled_from(["gpipe", "1f1b"])),
            microbatches=draw(st.integers(1, 5)),
            bucket_bytes=draw(st.sampled_from([1, 60, 10_000])),
        ),
        length=length,
        skips=tuple((source, target) for source, target in draw(st.lists(ends, max_size=3)) if target > source + 1),
        tied=draw(st.booleans()),
        buffers=draw(st.booleans()),
        clip=draw(st.booleans()),
        evaluates=draw(st.sampled_from([False, False, False, True])),
        seed=draw(st.integers(0, 2**32 - 1)),
        shared=shared,
        interference=builders.interference(compute=draw(factors), communication=draw(factors), latency=draw(factors)),
        host_blocks=draw(st.booleans()),
    )


def random_costs(
    program: Program, seed: int, *, shared: bool, interference: Interference, host_blocks: bool
) -> ProgramCosts:
    """Costs between 0 and 2 s, some of them 0; with `shared`, at most three links for all transfers."""
    numbers = random.Random(seed)

    def seconds() -> float:
        return numbers.choice([0.0, 1.0, numbers.uniform(0.0, 2.0)])

    compute, memory, marks = {}, {}, {}
    transfers: dict[str, Transfer] = {}
    for instruction in program:
        if not instruction.communicates:
            value = seconds()
            compute[instruction.id] = Cost(value, value, value, "drawn")
            memory[instruction.id] = bytes_of(instruction)
        places = sorted(numbers.choice([0.0, 1.0, numbers.random()]) for _ in instruction.marks)
        marks |= {(instruction.id, mark.name): place for mark, place in zip(instruction.marks, places, strict=True)}
    for number, meeting in enumerate(meetings(program)):
        links = tuple(f"wire{link}" for link in numbers.sample(range(3), numbers.randint(0, 2)))
        latency_s, flow_s = seconds() / 4, seconds()
        entry = Transfer(
            latency_s=latency_s,
            flow_s=flow_s,
            links=links if shared else (f"wire{number}",),
            low=latency_s + flow_s,
            high=latency_s + flow_s,
            source="drawn",
        )
        transfers |= {instruction.id: entry for instruction in meeting}
    return ProgramCosts(
        compute=compute,
        transfers=transfers,
        marks=marks,
        interference=interference,
        host_blocks=host_blocks,
        resident_bytes=tuple(100 * (rank + 1) for rank in range(len(program.ranks))),
        memory=memory,
    )


def bytes_of(instruction: Instruction) -> tuple[int, int]:
    """A microbatch's activations live from its forward to its backward; other work needs room only while it runs."""
    nbytes = 8 * (1 + (instruction.microbatch or 0))
    return {Kind.FORWARD: (nbytes, 0), Kind.BACKWARD: (0, nbytes)}.get(instruction.kind, (nbytes, nbytes))


def meetings(program: Program) -> list[list[Instruction]]:
    """The instructions that meet in each transfer."""
    return [
        on_ranks(program, meeting)
        for queue in (*match_messages(program), *match_collectives(program))
        for meeting in queue
    ]


def on_ranks(program: Program, meeting: Meeting) -> list[Instruction]:
    return [program.ranks[spot.rank][spot.position] for spot in meeting]


def alone(instruction: Instruction, costs: ProgramCosts) -> float:
    """What an instruction takes when nothing runs beside it [s]."""
    if instruction.id in costs.compute:
        return costs.compute[instruction.id].seconds
    transfer = costs.transfers[instruction.id]
    return transfer.latency_s + transfer.flow_s


def critical_path(program: Program, costs: ProgramCosts) -> float:
    """Longest chain of what must follow each other [s].

    Compute and host work in the order of their stream, transfers in that of their channel or group, `after`; what meets
    is one. Relaxation until nothing changes: an algorithm that shares nothing with the engine.
    """
    met = {instruction.id: meeting for meeting in meetings(program) for instruction in meeting}
    before = {
        later.id: earlier.id
        for queue in (*match_messages(program), *match_collectives(program))
        for first, second in pairwise(queue)
        for earlier, later in zip(*(on_ranks(program, meeting) for meeting in (first, second)), strict=True)
    }
    ends = {instruction.id: 0.0 for instruction in program}
    changed = True
    while changed:
        changed = False
        for instructions in program.ranks:
            last: dict[str, float] = {}
            for instruction in instructions:
                ready = 0.0 if instruction.communicates else last.get(instruction.stream, 0.0)
                for member in met.get(instruction.id, [instruction]):
                    ready = max([ready, *(reached(member.rank, name, ends, costs) for name in member.after)])
                    ready = max(ready, ends.get(before.get(member.id, ""), 0.0))
                end = ready + alone(instruction, costs)
                if end > ends[instruction.id] + TOLERANCE:
                    ends[instruction.id] = end
                    changed = True
                last[instruction.stream] = ends[instruction.id]
    return max(ends.values(), default=0.0)


def reached(rank: int, name: str, ends: dict[str, float], costs: ProgramCosts) -> float:
    token, _, mark = name.partition("!")
    before = f"r{rank}/{token}"
    if not mark:
        return ends[before]
    return ends[before] - (1.0 - costs.marks[before, mark]) * costs.compute[before].seconds


def spans_by_id(timeline: Timeline) -> dict[str, tuple[float, float]]:
    columns = timeline.columns
    return {
        name: (start_s, end_s)
        for name, start_s, end_s in zip(columns.instruction, columns.start_s, columns.end_s, strict=True)
    }


@given(cases(most_stages=1, most_replicas=1))
def test_one_device_takes_the_sum_of_its_instructions(case: Case) -> None:
    program, costs = case.build()
    total = sum(alone(instruction, costs) for instruction in program)
    makespan_s = simulate(program, replace(costs, host_blocks=True)).makespan_s
    assert makespan_s == pytest.approx(total, rel=TOLERANCE, abs=TOLERANCE)


@given(cases())
def test_every_instruction_has_one_span_no_shorter_than_its_cost(case: Case) -> None:
    program, costs = case.build()
    timeline = simulate(program, costs)
    spans = spans_by_id(timeline)
    assert len(timeline) == len(spans) == sum(map(len, program.ranks))
    for instruction in program:
        start_s, end_s = spans[instruction.id]
        assert start_s >= 0.0
        assert end_s - start_s >= alone(instruction, costs) - TOLERANCE


@given(cases())
def test_the_makespan_is_at_least_the_critical_path(case: Case) -> None:
    program, costs = case.build()
    assert simulate(program, costs).makespan_s >= critical_path(program, costs) - TOLERANCE


@given(cases(shared=False, interferes=False))
def test_a_host_that_runs_ahead_reaches_the_critical_path(case: Case) -> None:
    """Without sharing and interference, and with a host that never blocks, nothing else is waited for."""
    program, costs = case.build()
    makespan_s = simulate(program, replace(costs, host_blocks=False)).makespan_s
    assert makespan_s == pytest.approx(critical_path(program, costs), rel=TOLERANCE, abs=TOLERANCE)


@given(cases())
def test_the_makespan_is_at_least_the_busiest_resource(case: Case) -> None:
    program, costs = case.build()
    busy: dict[object, float] = defaultdict(float)
    for instruction in program:
        if instruction.stream == COMPUTE or (instruction.stream == HOST and costs.host_blocks):
            busy[instruction.rank] += costs.compute[instruction.id].seconds
    for meeting in meetings(program):
        for link in costs.transfers[meeting[0].id].links:
            busy[link] += costs.transfers[meeting[0].id].flow_s
    assert simulate(program, costs).makespan_s >= max(busy.values(), default=0.0) - TOLERANCE


@given(cases(shared=False, interferes=False), st.floats(0.0, 1.0), st.sampled_from([1, 2]), st.data())
def test_a_faster_link_never_slows_a_program_down(case: Case, factor: float, at_once: int, data: st.DataObject) -> None:
    """Order is fixed, nothing is shared, nothing interferes; some transfers take `factor` of their time."""
    program, costs = case.build()
    costs = replace(costs, at_once=at_once)
    names = sorted({link for transfer in costs.transfers.values() for link in transfer.links})
    faster = set(data.draw(st.lists(st.sampled_from(names), min_size=1))) if names else set()
    transfers = {
        name: replace(transfer, flow_s=transfer.flow_s * factor, latency_s=transfer.latency_s * factor)
        if faster & set(transfer.links)
        else transfer
        for name, transfer in costs.transfers.items()
    }
    before = simulate(program, costs).makespan_s
    assert simulate(program, replace(costs, transfers=transfers)).makespan_s <= before + TOLERANCE


@given(cases())
def test_live_bytes_are_never_negative_and_return_to_the_resident_ones(case: Case) -> None:
    program, costs = case.build()
    evaluates = any(instruction.kind is Kind.EVALUATE for instruction in program)
    for rank, curve in enumerate(simulate(program, costs).memory):
        times = [time_s for time_s, _ in curve]
        assert times == sorted(times)
        assert min(nbytes for _, nbytes in curve) >= costs.resident_bytes[rank]
        assert curve[0] == (0.0, costs.resident_bytes[rank])
        assert curve[-1][1] == costs.resident_bytes[rank]
        assert evaluates or max(nbytes for _, nbytes in curve) > costs.resident_bytes[rank]


@given(cases())
def test_bytes_sent_are_bytes_received_at_the_same_time(case: Case) -> None:
    program, costs = case.build()
    instructions = {instruction.id: instruction for instruction in program}
    sent: dict[tuple[int, int], list[tuple[float, float, int]]] = defaultdict(list)
    received: dict[tuple[int, int], list[tuple[float, float, int]]] = defaultdict(list)
    for span in simulate(program, costs):
        instruction = instructions[span.instruction]
        peer = instruction.peer if instruction.peer is not None else -1
        if instruction.kind in SENDS:
            sent[instruction.rank, peer].append((span.start_s, span.end_s, span.nbytes))
        elif instruction.kind in RECEIVES:
            received[peer, instruction.rank].append((span.start_s, span.end_s, span.nbytes))
    assert {channel: sorted(spans) for channel, spans in sent.items()} == {
        channel: sorted(spans) for channel, spans in received.items()
    }


@given(cases())
def test_what_runs_on_one_lane_or_channel_does_not_overlap(case: Case) -> None:
    program, costs = case.build()
    spans = spans_by_id(simulate(program, costs))
    queues: dict[object, list[tuple[float, float]]] = defaultdict(list)
    for instruction in program:
        lane = COMPUTE if costs.host_blocks and instruction.stream == HOST else instruction.stream
        if instruction.group or instruction.peer is not None:
            continue
        queues[instruction.rank, lane].append(spans[instruction.id])
    for number, queue in enumerate((*match_messages(program), *match_collectives(program))):
        for meeting in queue:
            spot = meeting[0]
            queues[number].append(spans[program.ranks[spot.rank][spot.position].id])
    for queued in queues.values():
        assert all(before[1] <= after[0] for before, after in pairwise(queued))


@given(cases(most_replicas=4), st.integers(2, 3))
def test_of_the_collectives_of_a_group_no_more_are_under_way_than_may_be(case: Case, at_once: int) -> None:
    program, costs = case.build()
    spans = spans_by_id(simulate(program, replace(costs, at_once=at_once)))
    for queue in match_collectives(program):
        members = [on_ranks(program, meeting)[0].id for meeting in queue]
        for number, name in enumerate(members[at_once:], start=at_once):
            before = sorted(spans[earlier][1] for earlier in members[:number])
            assert before[-at_once] <= spans[name][0]


@given(cases(shared=False, interferes=False), st.sampled_from([2, 3]))
def test_more_workers_never_slow_a_program_down_where_nothing_is_shared(case: Case, at_once: int) -> None:
    program, costs = case.build()
    one = simulate(program, costs).makespan_s
    assert simulate(program, replace(costs, at_once=at_once)).makespan_s <= one + TOLERANCE


@given(cases())
def test_nothing_starts_before_what_it_is_after(case: Case) -> None:
    program, costs = case.build()
    spans = spans_by_id(simulate(program, costs))
    for instruction in program:
        for name in instruction.after:
            token, _, mark = name.partition("!")
            begin_s, end_s = spans[f"r{instruction.rank}/{token}"]
            earliest_s = begin_s if mark else end_s
            assert spans[instruction.id][0] >= earliest_s


@given(cases())
def test_the_same_program_and_costs_give_the_same_timeline(case: Case) -> None:
    program, costs = case.build()
    assert simulate(program, costs) == simulate(program, costs)


def equal_stages(
    schedule: Schedule, stages: int, microbatches: int, *, forward_s: float, backward_s: float
) -> tuple[Program, ProgramCosts]:
    """A pipeline whose stages take the same time, and in which nothing else takes any."""
    strategy = builders.strategy(pp=stages, boundaries=boundaries(stages), schedule=schedule, microbatches=microbatches)
    program = lower(chain(stages), strategy, batch=microbatches)
    length = {Kind.FORWARD: forward_s, Kind.BACKWARD: backward_s}
    free = Transfer(latency_s=0.0, flow_s=0.0, links=(), low=0.0, high=0.0, source="example")
    compute = {}
    for instruction in program:
        value = length.get(instruction.kind, 0.0)
        compute[instruction.id] = Cost(value, value, value, "example")
    transfers = {instruction.id: free for instruction in program if instruction.communicates}
    return program, ProgramCosts(compute=compute, transfers=transfers)


@given(
    st.sampled_from(["gpipe", "1f1b"]), st.integers(2, 6), st.integers(1, 12), st.floats(0.1, 3.0), st.floats(0.1, 3.0)
)
def test_the_bubble_of_a_pipeline_is_its_closed_form(
    schedule: Schedule, stages: int, microbatches: int, forward_s: float, backward_s: float
) -> None:
    """(K - 1) / (M + K - 1) on every device, for GPipe and 1F1B."""
    program, costs = equal_stages(schedule, stages, microbatches, forward_s=forward_s, backward_s=backward_s)
    devices = utilization(program, simulate(program, costs))
    bubble = (stages - 1) / (microbatches + stages - 1)
    assert [device.bubble for device in devices] == pytest.approx([bubble] * stages, rel=TOLERANCE)
    assert [device.busy for device in devices] == pytest.approx([1 - bubble] * stages, rel=TOLERANCE)
    assert [device.wait for device in devices] == [0.0] * stages


@given(st.integers(2, 6), st.floats(0.1, 3.0), st.floats(0.1, 3.0))
def test_steps_that_overlap_have_no_bubble(stages: int, forward_s: float, backward_s: float) -> None:
    """Stages of equal time: a step takes one forward and one backward, however long the pipeline is."""
    program, costs = equal_stages("pipedream", stages, 1, forward_s=forward_s, backward_s=backward_s)
    timeline = simulate(program, costs)
    assert timeline.makespan_s == pytest.approx(forward_s + backward_s, rel=1e-9)
    for device in utilization(program, timeline):
        assert device.busy == pytest.approx(1.0, rel=1e-9)
        assert device.bubble == pytest.approx(0.0, abs=1e-9)


@given(st.integers(2, 6), st.integers(0, 5), st.floats(1.1, 4.0))
def test_of_steps_that_overlap_the_slowest_stage_has_the_time(stages: int, slow: int, factor: float) -> None:
    program, costs = equal_stages("pipedream", stages, 1, forward_s=1.0, backward_s=2.0)
    compute = {
        one.id: costs.compute[one.id].scaled(factor if one.rank == slow % stages else 1.0)
        for one in program
        if one.id in costs.compute
    }
    timeline = simulate(program, replace(costs, compute=compute))
    assert timeline.makespan_s == pytest.approx(3.0 * factor, rel=1e-9)


@given(st.integers(2, 6))
def test_of_steps_that_overlap_a_stage_has_as_many_under_way_as_stages_from_it_on(stages: int) -> None:
    assert peaks("pipedream", stages, 1) == [stages - stage for stage in range(stages)]


def peaks(schedule: Schedule, stages: int, microbatches: int) -> Sequence[int]:
    program, costs = equal_stages(schedule, stages, microbatches, forward_s=1.0, backward_s=2.0)
    memory = {
        instruction.id: {Kind.FORWARD: (1, 0), Kind.BACKWARD: (0, 1)}[instruction.kind]
        for instruction in program
        if instruction.kind in (Kind.FORWARD, Kind.BACKWARD)
    }
    timeline = simulate(program, replace(costs, memory=memory))
    return [timeline.peak_bytes(rank) for rank in range(stages)]


@given(st.integers(1, 6), st.integers(1, 10))
def test_microbatches_in_flight_are_those_of_the_schedule(stages: int, microbatches: int) -> None:
    """GPipe keeps all M microbatches on every stage, 1F1B at most K - k on stage k of K."""
    assert peaks("1f1b", stages, microbatches) == [min(stages - stage, microbatches) for stage in range(stages)]
    if stages > 1:
        assert peaks("gpipe", stages, microbatches) == [microbatches] * stages


def moved(program: Program, seed: int) -> Program:
    """The program with some receives listed earlier and some sends and collectives later; often illegal."""
    numbers = random.Random(seed)
    ranks = [list(instructions) for instructions in program.ranks]
    for _ in range(numbers.randint(1, 3)):
        instructions = numbers.choice(ranks)
        places = [place for place, instruction in enumerate(instructions) if instruction.communicates]
        if places:
            place = numbers.choice(places)
            instruction = instructions.pop(place)
            distance = numbers.randint(1, 6) * (-1 if instruction.kind in RECEIVES else 1)
            instructions.insert(max(0, place + distance), instruction)
    return replace(program, ranks=tuple(map(tuple, ranks)))


def broken_rule(program: Program) -> int | None:
    try:
        check_program(program)
    except InputError as error:
        return int(str(error.figures["rule"]))
    return None


@given(cases(most_stages=3, most_replicas=2), st.integers(0, 2**32 - 1))
@settings(suppress_health_check=[HealthCheck.filter_too_much])
def test_a_program_deadlocks_exactly_when_the_rule_says_so(case: Case, seed: int) -> None:
    """Rule 13 takes a host that blocks; a program that keeps it ends on a host that runs ahead, too."""
    program = moved(case.build()[0], seed)
    rule = broken_rule(program)
    assume(rule in (None, 13))
    costs = random_costs(program, seed, shared=True, interference=case.interference, host_blocks=True)
    if rule is None:
        assert len(simulate(program, costs)) == sum(map(len, program.ranks))
        assert len(simulate(program, replace(costs, host_blocks=False))) == sum(map(len, program.ranks))
    else:
        with raises("program.deadlock"):
            simulate(program, costs)
