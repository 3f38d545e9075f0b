"""Laws of programs and of the simulator where a network is divided: placements, interleaved and zero-bubble pipelines,
sharded tensors and state.

`ends` is a second, independent reading of the rules, as in `test_program_laws`; here a step may stand still at marks.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from tests import builders
from tests.graphs import boundaries, chain, dag, microbatches_of, paired
from tests.property.test_program_laws import sent_bytes
from tests.property.test_simulator_laws import TOLERANCE, alone, random_costs
from tests.raising import raises

from trimaran.base.timeline import COMPUTE
from trimaran.graph.types import Graph
from trimaran.pricing.types import ProgramCosts
from trimaran.program.lowering.lower import lower, lower_evaluation
from trimaran.program.lowering.schedules import (
    Compute,
    Order,
    interleaved,
    one_forward_one_backward,
    start_times,
    zero_bubble,
)
from trimaran.program.lowering.tensor_parallel import find_shards
from trimaran.program.rules.against_graph import check_against_graph
from trimaran.program.rules.check import check_program
from trimaran.program.rules.deadlock import match_collectives, match_messages
from trimaran.program.strategy import Part, Strategy
from trimaran.program.text import format_program, parse_program
from trimaran.program.types import RECEIVES, SENDS, Instruction, Kind, Program
from trimaran.simulator.engine import simulate


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A graph and a strategy that divides it."""

    graph: Graph
    strategy: Strategy
    clip: bool

    @property
    def batch(self) -> int:
        return 2 * self.strategy.dp * self.strategy.microbatches

    def lower(self) -> Program:
        return lower(self.graph, self.strategy, batch=self.batch, clip=self.clip)


@st.composite
def placements(draw: st.DrawFn) -> Case:
    """Any graph of a few operations in any parts, listed in any order in which they can run."""
    length = draw(st.integers(2, 7))
    reads = [
        sorted(draw(st.sets(st.integers(0, number - 1), max_size=3))) if number else [] for number in range(length)
    ]
    tied = [sorted(draw(st.sets(st.integers(0, length - 1), min_size=2, max_size=3)))] if draw(st.booleans()) else []
    graph = dag(reads, tied=tied)
    rows = draw(st.integers(1, min(3, length)))
    row_of = [draw(st.integers(0, rows - 1)) for _ in range(length)]
    for row in range(rows):
        row_of[row] = row
    # The last operation is in one part with the loss, which reads all that nothing else reads.
    order = list(draw(st.permutations(range(length - 1))))
    listed: list[int] = []
    while len(listed) < length - 1:
        listed.append(next(one for one in order if one not in listed and set(reads[one]) <= set(listed)))
    listed.append(length - 1)
    parts: list[list[int]] = []
    for number in listed:
        if parts and row_of[parts[-1][-1]] == row_of[number] and draw(st.booleans()):
            parts[-1].append(number)
        else:
            parts.append([number])
    made = [Part(ops=tuple(f"op{number}" for number in sorted(part)), row=row_of[part[0]]) for part in parts]
    made[-1] = dataclasses.replace(made[-1], ops=(*made[-1].ops, "loss"))
    strategy = builders.strategy(
        dp=draw(st.integers(1, 2)),
        pp=rows,
        parts=tuple(made),
        microbatches=draw(st.integers(1, 4)),
        bucket_bytes=draw(st.sampled_from([1, 60, 10_000])),
    )
    if draw(st.booleans()):
        strategy = dataclasses.replace(strategy, backward_order=_backward_order(draw, graph, strategy))
    return Case(graph=graph, strategy=strategy, clip=draw(st.booleans()))


def _backward_order(draw: st.DrawFn, graph: Graph, strategy: Strategy) -> tuple[int, ...]:
    known = {op.id: op for op in graph.ops}
    crossing = graph.exchanged([[known[name] for name in part.ops] for part in strategy.parts])
    needs = {segment: {b for a, b in crossing if a == segment} for segment in range(strategy.segments)}
    order: list[int] = []
    while len(order) < strategy.segments:
        ready = [one for one in needs if one not in order and needs[one] <= set(order)]
        order.append(draw(st.sampled_from(ready)))
    return tuple(order)


@st.composite
def pipelines(draw: st.DrawFn) -> Case:
    """Interleaved and zero-bubble pipelines of a chain with long skips and tied weights."""
    stages = draw(st.integers(2, 4))
    chunks = draw(st.integers(2, 3)) if draw(st.booleans()) else 1
    segments = stages * chunks
    ends = st.tuples(st.integers(0, segments - 1), st.integers(0, segments))
    graph = chain(
        segments,
        skips=[(a, b) for a, b in draw(st.lists(ends, max_size=3, unique=True)) if b > a + 1],
        tied=[[0, segments - 1]] if draw(st.booleans()) else [],
        buffers=draw(st.booleans()),
    )
    strategy = builders.strategy(
        dp=draw(st.integers(1, 2)),
        pp=stages,
        chunks=chunks,
        boundaries=boundaries(segments),
        schedule="interleaved" if chunks > 1 else "zero-bubble",
        microbatches=draw(st.integers(1, 7)),
        bucket_bytes=draw(st.sampled_from([1, 60, 10_000])),
    )
    return Case(graph=graph, strategy=strategy, clip=draw(st.booleans()))


@st.composite
def sharded(draw: st.DrawFn) -> Case:
    """Sharded tensors, in pipelines and replicas, or sharded state."""
    pairs = draw(st.integers(1, 3))
    graph = paired(pairs)
    microbatches, dp = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    zero = draw(st.sampled_from([0, 0, 1, 2, 3]))
    if zero > 1:
        strategy = builders.strategy(dp=2, zero=zero, microbatches=microbatches)  # type: ignore[arg-type]
        return Case(graph=graph, strategy=strategy, clip=draw(st.booleans()))
    stages = draw(st.integers(1, pairs))
    strategy = builders.strategy(
        dp=2 if zero else dp,
        pp=stages,
        tp=2,
        zero=zero,  # type: ignore[arg-type]
        shards=find_shards(graph, 2),
        boundaries=tuple(f"op{2 * number + 1}" for number in range(stages - 1)),
        schedule=draw(st.sampled_from(["gpipe", "1f1b", "zero-bubble"])),
        microbatches=microbatches,
    )
    return Case(graph=graph, strategy=strategy, clip=draw(st.booleans()))


CASES = placements() | pipelines() | sharded()


def ends(program: Program) -> bool:
    """Whether the program runs to its end without buffers, where every host blocks and steps stand still at marks."""
    ended: set[tuple[int, str]] = set()
    posted: set[tuple[int, str]] = set()
    passed: dict[tuple[int, str], list[str]] = defaultdict(list)
    queues = [
        [tuple((spot.rank, program.ranks[spot.rank][spot.position].token) for spot in meeting) for meeting in queue]
        for queue in (*match_messages(program), *match_collectives(program))
    ]

    def met(rank: int, name: str) -> bool:
        token, _, mark = name.partition("!")
        return (rank, token) in ended or (bool(mark) and mark in passed[rank, token])

    def advance(instruction: Instruction) -> None:
        """Pass marks until one has to be waited for."""
        key = instruction.rank, instruction.token
        done = passed[key]
        for number, mark in enumerate(instruction.marks):
            if number == len(done):
                done.append(mark.name)
            if mark.waits_for and (instruction.rank, mark.waits_for) not in ended:
                return
        ended.add(key)

    before = -1
    while before != (before := len(ended) + len(posted) + sum(map(len, passed.values()))):
        for rank, instructions in enumerate(program.ranks):
            blocked = False
            for instruction in instructions:
                key = rank, instruction.token
                if key in ended or key in posted:
                    continue
                issued = not blocked or any("!" in name for name in instruction.after)
                if not issued or not all(met(rank, name) for name in instruction.after):
                    blocked = blocked or not instruction.communicates
                    continue
                if instruction.communicates:
                    posted.add(key)
                else:
                    advance(instruction)
                    blocked = key not in ended
        for queue in queues:
            while queue and all(member in posted for member in queue[0]):
                ended.update(queue.pop(0))
    return len(ended) == sum(map(len, program.ranks))


@given(CASES)
def test_a_divided_network_becomes_a_legal_program_that_ends(case: Case) -> None:
    program = case.lower()
    check_program(program)
    assert ends(program)
    check_program(lower_evaluation(case.graph, case.strategy, batch=case.batch))


@given(CASES)
def test_a_lowered_program_is_what_its_graph_asks_for(case: Case) -> None:
    check_against_graph(case.lower(), case.graph, case.strategy, batch=case.batch)


@given(CASES, st.data())
def test_a_program_that_loses_an_instruction_is_refused(case: Case, data: st.DataObject) -> None:
    """On one rank or on all of them, with all that waited for it."""
    program = case.lower()
    lost = data.draw(st.sampled_from([item for item in program if item.kind is not Kind.CLIP]))
    everywhere = data.draw(st.booleans())
    ranks = tuple(
        tuple(
            dataclasses.replace(item, after=tuple(name for name in item.after if name.partition("!")[0] != lost.token))
            for item in instructions
            if item.token != lost.token
        )
        if everywhere or rank == lost.rank
        else instructions
        for rank, instructions in enumerate(program.ranks)
    )
    with raises("program.illegal"):
        check_both(dataclasses.replace(program, ranks=ranks), case)


def check_both(program: Program, case: Case) -> None:
    check_program(program)
    check_against_graph(program, case.graph, case.strategy, batch=case.batch)


@given(CASES)
def test_a_divided_program_reads_back(case: Case) -> None:
    program = case.lower()
    assert parse_program(format_program(program)) == program


@given(CASES)
def test_bytes_sent_are_bytes_received_once_for_each_row_that_reads(case: Case) -> None:
    program = case.lower()
    assert sent_bytes(program, SENDS) == sent_bytes(program, RECEIVES)
    strategy = case.strategy
    segment_of = {name: number for number, part in enumerate(strategy.parts) for name in part.ops}
    if not strategy.parts:
        return
    makers = {spec.name: segment_of[op.id] for op in case.graph.ops for spec in op.outputs}
    arrivals = {
        (name, strategy.rows[segment_of[op.id]])
        for op in case.graph.ops
        for name in op.inputs
        if name in makers and strategy.rows[makers[name]] != strategy.rows[segment_of[op.id]]
    }
    forward = sum(item.nbytes for item in program if item.kind is Kind.SEND_FORWARD)
    # Every tensor has 4 bytes a sample, and every replica its share of the batch.
    assert forward == 4 * case.batch * len(arrivals)


@given(CASES, st.integers(0, 2**32 - 1), st.booleans())
def test_a_step_is_as_long_as_its_busiest_rank_or_longest_chain_at_least(case: Case, seed: int, blocks: bool) -> None:
    program = case.lower()
    costs = random_costs(program, seed, shared=True, interference=builders.interference(), host_blocks=blocks)
    makespan_s = simulate(program, costs).makespan_s
    for instructions in program.ranks:
        busy_s = sum(costs.compute[item.id].seconds for item in instructions if item.stream == COMPUTE)
        assert makespan_s >= busy_s - TOLERANCE
    assert makespan_s >= longest_chain(program, costs) - TOLERANCE


def longest_chain(program: Program, costs: ProgramCosts) -> float:
    """Longest chain of steps of compute and what they name whole, each as long as it is alone [s]."""
    ends_s: dict[str, float] = {}
    changed = True
    while changed:
        changed = False
        for rank, instructions in enumerate(program.ranks):
            last = 0.0
            for item in instructions:
                named = [ends_s.get(f"r{rank}/{name}", 0.0) for name in item.after if "!" not in name]
                start_s = max([0.0 if item.stream != COMPUTE else last, *named])
                end_s = start_s + alone(item, costs)
                if item.stream == COMPUTE:
                    last = end_s
                if end_s > ends_s.get(item.id, -1.0):
                    ends_s[item.id] = end_s
                    changed = True
    return max(ends_s.values())


@given(CASES, st.integers(0, 2**32 - 1))
def test_what_stands_still_takes_its_own_time_and_what_it_waits_for_in_addition(case: Case, seed: int) -> None:
    """A step that waits at the start of each collective lasts as long as it computes, and they, at least."""
    program = case.lower()
    costs = random_costs(program, seed, shared=False, interference=builders.interference(), host_blocks=False)
    spans = {span.instruction: span for span in simulate(program, costs)}
    for item in program:
        awaited = [mark.waits_for for mark in item.marks if mark.waits_for and mark.name in mark.waits_for]
        inside_s = sum(alone_of(program, item.rank, token, costs) for token in awaited if _starts_there(item, token))
        span = spans[item.id]
        assert span.end_s - span.start_s >= alone(item, costs) + inside_s - TOLERANCE
        for mark in item.marks:
            if mark.waits_for:
                assert spans[f"r{item.rank}/{mark.waits_for}"].end_s <= span.end_s + TOLERANCE


def alone_of(program: Program, rank: int, token: str, costs: ProgramCosts) -> float:
    return alone(next(item for item in program.ranks[rank] if item.token == token), costs)


def _starts_there(item: Instruction, token: str) -> bool:
    """Whether the mark that waits for a collective also starts it."""
    label = token.rpartition("#")[2]
    return any(mark.name == label and mark.waits_for == token for mark in item.marks)


@given(st.integers(2, 6), st.integers(1, 4), st.integers(2, 4))
def test_the_bubble_of_interleaved_pipelines_has_its_closed_form(stages: int, groups: int, chunks: int) -> None:
    """2vM units of work among 2(vM + K - 1): a share of (K - 1) / (vM + K - 1) is idle, on every stage."""
    order = interleaved(stages, stages * groups, chunks)
    assert idle_of(order) == [2 * (stages - 1)] * stages


@given(st.integers(2, 6), st.integers(0, 8))
def test_the_bubble_of_zero_bubble_pipelines_has_its_closed_form(stages: int, more: int) -> None:
    """3M units of work among 3M + K - 1, a third of what 1F1B idles with backwards of two units: 3(K - 1)."""
    assert idle_of(zero_bubble(stages, stages + more)) == [stages - 1] * stages


@given(st.integers(2, 6), st.integers(1, 12))
def test_a_zero_bubble_pipeline_keeps_no_more_than_the_first_stage_of_1f1b(stages: int, microbatches: int) -> None:
    most = min(stages, microbatches)
    for row in zero_bubble(stages, microbatches):
        assert max(kept(row, Kind.BACKWARD_WEIGHT)) <= most
    assert max(kept(one_forward_one_backward(stages, microbatches)[0], Kind.BACKWARD)) == most


@given(st.integers(1, 6), st.integers(1, 12), st.integers(1, 4))
def test_every_schedule_is_complete(stages: int, microbatches: int, chunks: int) -> None:
    assert microbatches_of(zero_bubble(stages, microbatches)) == microbatches
    assert microbatches_of(interleaved(stages, microbatches, chunks)) == microbatches


def idle_of(order: Order) -> Sequence[float]:
    """`idle_units` of a chain that may have several segments a row."""
    segments = 1 + max(step.segment for row in order for step in row)
    pairs = [(segment, segment + 1) for segment in range(segments - 1)]
    starts = start_times(order, forward=pairs, backward=pairs)
    return [1 + max(starts.values()) - len(row) for row in order]


def kept(row: Sequence[Compute], freeing: Kind) -> list[int]:
    """Microbatches in flight after each step of a row."""
    counts, now = [], 0
    for step in row:
        now += (step.kind is Kind.FORWARD) - (step.kind is freeing)
        counts.append(now)
    return counts
