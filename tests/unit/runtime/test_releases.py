"""Which sends a receive shows to have been received."""

from hypothesis import given
from hypothesis import strategies as st
from tests import builders
from tests.graphs import boundaries, chain

from trimaran.program.lowering.lower import lower
from trimaran.program.strategy import Strategy
from trimaran.program.types import SENDS, Instruction, Kind, Program
from trimaran.runtime.interpreter import released_sends

STRATEGIES = st.builds(
    lambda pp, schedule, microbatches: builders.strategy(
        pp=pp, schedule=schedule, microbatches=microbatches, boundaries=boundaries(pp)
    ),
    pp=st.integers(2, 4),
    schedule=st.sampled_from(["gpipe", "1f1b"]),
    microbatches=st.integers(1, 6),
)


def program_of(strategy: Strategy) -> Program:
    graph = chain(5, skips=[(0, 3), (1, 5)])
    return lower(graph, strategy, batch=strategy.microbatches)


def test_the_gradient_of_a_microbatch_shows_that_its_activations_arrived() -> None:
    """Stage 0 of two sends three activations, and gets their gradients back in order."""
    program = program_of(builders.strategy(pp=2, schedule="gpipe", microbatches=3, boundaries=boundaries(2)))
    released = released_sends(program, 0)
    assert released["0RECV_B0<1"] == ("0SEND_F0>1", "0SEND_F1>1", "0SEND_F2>1")
    assert sum(map(len, released.values())) == 3


def test_1f1b_keeps_no_more_gradients_in_flight_than_there_are_stages() -> None:
    """The last of two stages, 8 microbatches: gradients that were sent and not yet known to have arrived."""
    program = program_of(builders.strategy(pp=2, schedule="1f1b", microbatches=8, boundaries=boundaries(2)))
    released = released_sends(program, 1)
    in_flight: set[str] = set()
    most = 0
    for instruction in program.ranks[1]:
        in_flight -= {send for token in instruction.after for send in released.get(token, ())}
        if instruction.kind is Kind.SEND_BACKWARD:
            in_flight.add(instruction.token)
        most = max(most, len(in_flight))
    assert most <= 3


@given(STRATEGIES)
def test_a_send_is_released_only_after_the_peer_has_posted_its_receive(strategy: Strategy) -> None:
    """Waiting for it then cannot wait for anything that this rank has yet to do."""
    program = program_of(strategy)
    for rank, instructions in enumerate(program.ranks):
        by_token = {instruction.token: instruction for instruction in instructions}
        order = list(by_token)
        for receive, sends in released_sends(program, rank).items():
            waited = next(i for i in instructions if receive in i.after)
            for send in sends:
                assert order.index(send) < order.index(waited.token)
                peer = program.ranks[by_token[send].peer]  # type: ignore[index]
                assert place(peer, by_token[send]) < place(peer, by_token[receive])


@given(STRATEGIES)
def test_no_send_is_released_twice(strategy: Strategy) -> None:
    program = program_of(strategy)
    for rank, instructions in enumerate(program.ranks):
        released = [send for sends in released_sends(program, rank).values() for send in sends]
        assert len(released) == len(set(released))
        assert set(released) <= {instruction.token for instruction in instructions if instruction.kind in SENDS}


def place(peer: tuple[Instruction, ...], own: Instruction) -> int:
    """Where the other end of a message stands in the list of the peer."""
    forward = own.kind in (Kind.SEND_FORWARD, Kind.RECEIVE_FORWARD)
    if own.kind in SENDS:
        kind = Kind.RECEIVE_FORWARD if forward else Kind.RECEIVE_BACKWARD
    else:
        kind = Kind.SEND_FORWARD if forward else Kind.SEND_BACKWARD
    wanted = (kind, own.peer_segment, own.segment, own.microbatch)
    return [(i.kind, i.segment, i.peer_segment, i.microbatch) for i in peer].index(wanted)
