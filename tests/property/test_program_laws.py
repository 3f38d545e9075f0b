"""Laws of programs, on random graphs, cuts and orders.

The one that matters most: what the rules call legal runs to its end on the harshest transport, and what they refuse as
waiting for itself does not. The judge is a second, independent reading of the rules: `ends` plays a program with ranks
whose host blocks, sends without buffers, and channels and groups that do one thing at a time.
"""

import contextlib
import dataclasses
import itertools
from collections import Counter
from collections.abc import Sequence

from hypothesis import assume, given
from hypothesis import strategies as st
from tests import builders
from tests.graphs import boundaries, chain, lower_order

from trimaran.base.errors import InputError
from trimaran.graph.types import Graph
from trimaran.program.lowering.lower import lower, lower_evaluation
from trimaran.program.lowering.schedules import Compute, Order, gpipe, one_forward_one_backward, start_times
from trimaran.program.rules.check import check_program
from trimaran.program.text import format_program, parse_program
from trimaran.program.types import RECEIVES, SENDS, Instruction, Kind, Mark, Program


@st.composite
def graphs(draw: st.DrawFn, segments: int) -> Graph:
    """A chain with random long skips and random tied weights, one operation a segment and the loss."""
    skips = draw(
        st.lists(
            st.tuples(st.integers(0, segments - 1), st.integers(0, segments)).filter(lambda pair: pair[0] < pair[1]),
            max_size=4,
            unique=True,
        )
    )
    tied = draw(st.lists(st.lists(st.integers(0, segments - 1), min_size=1, max_size=3, unique=True), max_size=1))
    return chain(segments, skips=skips, tied=[sorted(group) for group in tied], buffers=draw(st.booleans()))


@st.composite
def lowered(draw: st.DrawFn) -> Program:
    """A program that `lower` makes."""
    pp = draw(st.integers(1, 5))
    sync = draw(st.sampled_from(["all-reduce", "p2p", "hierarchical"])) if pp == 1 else "all-reduce"
    nodes = draw(st.integers(2, 3)) if sync == "hierarchical" else 1
    strategy = builders.strategy(
        dp=draw(st.integers(1, 3)) if nodes == 1 else nodes * draw(st.integers(2, 3)),
        pp=pp,
        boundaries=boundaries(pp),
        schedule=draw(st.sampled_from(["gpipe", "1f1b"])),
        microbatches=draw(st.integers(1, 6)),
        bucket_bytes=draw(st.sampled_from([1, 50, 25 * 2**20])),
        sync=sync,
        nodes=nodes,
    )
    graph = draw(graphs(pp))
    batch = strategy.dp * strategy.microbatches * draw(st.integers(1, 3))
    if draw(st.booleans()):
        return lower_evaluation(graph, strategy, batch=batch)
    return lower(graph, strategy, batch=batch, clip=draw(st.booleans()))


@st.composite
def orders(draw: st.DrawFn, graph: Graph, segments: int) -> Order:
    """A random order of compute that can run: some rank's next step, chosen from all that are ready."""
    microbatches = draw(st.integers(1, 3))
    drawn = draw(st.lists(st.integers(0, draw(st.integers(1, segments)) - 1), min_size=segments, max_size=segments))
    rows = [sorted(set(drawn)).index(row) for row in drawn]
    split = draw(st.lists(st.booleans(), min_size=segments * microbatches, max_size=segments * microbatches))
    needs: dict[Compute, list[Compute]] = {}
    for segment in range(segments):
        for microbatch in range(microbatches):
            step = [Compute(kind, segment, microbatch) for kind in (Kind.FORWARD, Kind.BACKWARD)]
            if split[segment * microbatches + microbatch]:
                step[1:] = [Compute(kind, segment, microbatch) for kind in (Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)]
            needs[step[0]] = []
            for before, after in itertools.pairwise(step):
                needs[after] = [before]
    for producer, consumer in graph.crossing(boundaries(segments)):
        for microbatch in range(microbatches):
            needs[Compute(Kind.FORWARD, consumer, microbatch)].append(Compute(Kind.FORWARD, producer, microbatch))
            back = {
                segment: next(
                    step
                    for kind in (Kind.BACKWARD, Kind.BACKWARD_INPUT)
                    if (step := Compute(kind, segment, microbatch)) in needs
                )
                for segment in (producer, consumer)
            }
            needs[back[producer]].append(back[consumer])
    listed: list[list[Compute]] = [[] for _ in range(max(rows) + 1)]
    done: set[Compute] = set()
    while len(done) < len(needs):
        ready = [step for step in needs if step not in done and done.issuperset(needs[step])]
        step = draw(st.sampled_from(ready))
        done.add(step)
        listed[rows[step.segment]].append(step)
    return tuple(map(tuple, listed))


@st.composite
def changed(draw: st.DrawFn) -> Program:
    """A lowered program in which sends are listed later, or instructions also wait for an earlier one of their rank."""
    program = draw(lowered().filter(lambda program: len(program.ranks) > 1))
    ranks = [list(instructions) for instructions in program.ranks]
    for _ in range(draw(st.integers(1, 4))):
        listed = draw(st.sampled_from(ranks))
        sends = [position for position, instruction in enumerate(listed) if instruction.kind in SENDS]
        if sends and draw(st.booleans()):
            position = draw(st.sampled_from(sends))
            listed.insert(draw(st.integers(position, len(listed) - 1)), listed.pop(position))
        else:
            position = draw(st.integers(1, len(listed) - 1))
            earlier = listed[draw(st.integers(0, position - 1))].token
            waiting = listed[position]
            listed[position] = dataclasses.replace(waiting, after=(*waiting.after, earlier))
    return dataclasses.replace(program, ranks=tuple(map(tuple, ranks)))


NAMES = st.text("abcXYZ019_.-", min_size=1, max_size=5)
NUMBERS = st.integers(0, 10**12)


@st.composite
def arbitrary_instructions(draw: st.DrawFn, rank: int) -> Instruction:
    """Any instruction that can be written down, legal or not."""
    optional = st.none() | st.integers(0, 200)
    return Instruction(
        kind=draw(st.sampled_from(Kind)),
        rank=rank,
        segment=draw(optional),
        microbatch=draw(optional),
        stream=draw(NAMES),
        peer=draw(optional),
        peer_segment=draw(optional),
        group=tuple(draw(st.lists(st.integers(0, 200), max_size=4))),
        root=draw(optional),
        label=draw(st.just("") | NAMES),
        nbytes=draw(NUMBERS),
        after=tuple(
            draw(st.lists(st.from_regex(r"[0-9]?(F|SEND_F|AR)[0-9]?(#b0)?(![a-z]+)?", fullmatch=True), max_size=3))
        ),
        marks=tuple(draw(st.lists(st.builds(Mark, name=NAMES, op=st.text(max_size=6)), max_size=3))),
    )


@st.composite
def arbitrary_programs(draw: st.DrawFn) -> Program:
    ranks = draw(st.integers(0, 3))
    return Program(
        ranks=tuple(tuple(draw(st.lists(arbitrary_instructions(rank), max_size=4))) for rank in range(ranks)),
        segments=draw(NUMBERS),
        microbatches=draw(NUMBERS),
    )


def ends(program: Program) -> bool:
    """Whether the program runs to its end where nothing is buffered and every host blocks.

    Again and again, every rank walks its list from the top: a step of compute runs if all it names has ended, and ends
    at once; if it cannot run, the walk stops there, because the host waits. What communicates is posted on the way and
    ends when it is the first of its channel or group on every member, and each of them has posted it.
    """
    ended: set[tuple[int, str]] = set()
    posted: set[tuple[int, str]] = set()
    queues = _queues(program)
    progress = True
    while progress:
        progress = False
        for rank, instructions in enumerate(program.ranks):
            for instruction in instructions:
                if (rank, instruction.token) in ended | posted:
                    continue
                met = all((rank, name.partition("!")[0]) in ended for name in instruction.after)
                if met:
                    (posted if instruction.communicates else ended).add((rank, instruction.token))
                    progress = True
                elif not instruction.communicates:
                    break
        for queue in queues:
            while queue and all(member in posted for member in queue[0]):
                ended.update(queue.pop(0))
                progress = True
    return len(ended) == sum(map(len, program.ranks))


def _queues(program: Program) -> list[list[tuple[tuple[int, str], ...]]]:
    """What meets on each channel and in each group, in order."""
    listed: dict[object, dict[object, list[tuple[int, str]]]] = {}
    for instruction in program:
        member = (instruction.rank, instruction.token)
        if instruction.kind in SENDS:
            listed.setdefault((instruction.rank, instruction.peer, "channel"), {}).setdefault("send", []).append(member)
        elif instruction.kind in RECEIVES:
            key = (instruction.peer, instruction.rank, "channel")
            listed.setdefault(key, {}).setdefault("receive", []).append(member)
        elif instruction.group:
            listed.setdefault(instruction.group, {}).setdefault(instruction.rank, []).append(member)
    return [list(zip(*sides.values(), strict=True)) for sides in listed.values()]


def sent_bytes(program: Program, kinds: frozenset[Kind]) -> Counter[tuple[int, int]]:
    found: Counter[tuple[int, int]] = Counter()
    for instruction in program:
        if instruction.kind in kinds and instruction.peer is not None:
            ends_of = (instruction.rank, instruction.peer)
            found[ends_of if kinds == SENDS else ends_of[::-1]] += instruction.nbytes
    return found


@given(lowered())
def test_what_lower_makes_is_legal_and_ends(program: Program) -> None:
    check_program(program)
    assert ends(program)


@given(st.data(), st.integers(1, 5), st.integers(1, 2), st.booleans())
def test_any_order_that_can_run_becomes_a_legal_program_that_ends(
    data: st.DataObject, segments: int, dp: int, clip: bool
) -> None:
    graph = data.draw(graphs(segments))
    order = data.draw(orders(graph, segments))
    microbatches = 1 + max(step.microbatch for row in order for step in row)
    program = lower_order(graph, order, boundaries=boundaries(segments), batch=dp * microbatches, dp=dp, clip=clip)
    check_program(program)
    assert ends(program)


@given(changed())
def test_a_program_waits_for_itself_exactly_when_it_never_ends(program: Program) -> None:
    """Programs that break another rule are left out: then the question has no meaning."""
    try:
        check_program(program)
        legal = True
    except InputError as error:
        assume(error.figures["rule"] == 13)
        legal = False
    assert ends(program) == legal


@given(lowered())
def test_bytes_sent_are_bytes_received(program: Program) -> None:
    assert sent_bytes(program, SENDS) == sent_bytes(program, RECEIVES)


@given(lowered())
def test_replicas_do_the_same(program: Program) -> None:
    """Ranks that have the same segment have the same tokens, in the same order."""
    lists: dict[tuple[int | None, ...], set[tuple[str, ...]]] = {}
    for instructions in program.ranks:
        held = tuple(sorted({instruction.segment for instruction in instructions if instruction.segment is not None}))
        lists.setdefault(held, set()).add(tuple(instruction.token for instruction in instructions))
    assert all(len(found) == 1 for found in lists.values())


@given(lowered() | arbitrary_programs())
def test_text_reads_back(program: Program) -> None:
    assert parse_program(format_program(program)) == program


@given(st.text(max_size=200))
def test_any_text_is_a_program_or_an_input_error(text: str) -> None:
    with contextlib.suppress(InputError):
        parse_program(text)


def idle_units(order: Order) -> Sequence[int]:
    """For each row, the units of the logical clock in which it does nothing."""
    chain_pairs = [(row, row + 1) for row in range(len(order) - 1)]
    starts = start_times(order, forward=chain_pairs, backward=chain_pairs)
    length = 1 + max(starts.values())
    return [length - len(row) for row in order]


@given(st.integers(1, 6), st.integers(1, 8))
def test_the_bubble_of_gpipe_has_its_closed_form(stages: int, microbatches: int) -> None:
    """2M units of work among 2(M + K - 1): a share of (K - 1) / (M + K - 1) is idle, on every stage."""
    assert idle_units(gpipe(stages, microbatches)) == [2 * (stages - 1)] * stages


@given(st.integers(1, 6), st.integers(1, 8))
def test_the_bubble_of_1f1b_has_its_closed_form(stages: int, microbatches: int) -> None:
    """The same as that of GPipe: it only keeps fewer activations."""
    assert idle_units(one_forward_one_backward(stages, microbatches)) == [2 * (stages - 1)] * stages
