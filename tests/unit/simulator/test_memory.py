"""Live bytes over time."""

from tests.raising import raises
from tests.unit.simulator.building import backward, costs, forward, program, transfer

from trimaran.base.timeline import COPY
from trimaran.program.types import Instruction, Kind
from trimaran.simulator.engine import simulate


def test_bytes_live_from_the_start_of_one_to_the_end_of_another() -> None:
    """100 resident; F0 (0 to 1) and F1 (1 to 2) bring 10 each, B0 (2 to 4) and B1 (4 to 6) take them."""
    work = [forward(0, 0), forward(0, 1), backward(0, 0), backward(0, 1)]
    memory = {work[0].id: (10, 0), work[1].id: (10, 0), work[2].id: (0, 10), work[3].id: (0, 10)}
    timeline = simulate(
        program(tuple(work)),
        costs(dict(zip(work, (1.0, 1.0, 2.0, 2.0), strict=True)), resident_bytes=(100,), memory=memory),
    )
    assert timeline.memory == (((0.0, 100), (0.0, 110), (1.0, 120), (4.0, 110), (6.0, 100)),)
    assert timeline.peak_bytes(0) == 120


def test_at_one_instant_what_ends_frees_before_what_starts_allocates() -> None:
    """F0 works with 10 bytes until 1, F1 with 10 from 1 on: the peak is 10."""
    work = [forward(0, 0), forward(0, 1)]
    timeline = simulate(
        program(tuple(work)), costs(dict.fromkeys(work, 1.0), memory={item.id: (10, 10) for item in work})
    )
    assert timeline.memory == (((0.0, 0), (0.0, 10), (1.0, 0), (1.0, 10), (2.0, 0)),)
    assert timeline.peak_bytes(0) == 10


def test_an_instruction_that_takes_no_time_holds_its_bytes_for_an_instant() -> None:
    """10 bytes come and go at 0."""
    work = forward(0)
    timeline = simulate(program((work,)), costs({work: 0.0}, memory={work.id: (10, 10)}))
    assert timeline.memory == (((0.0, 0), (0.0, 10), (0.0, 0)),)


def test_memory_is_empty_where_costs_have_none() -> None:
    assert simulate(program((forward(0),)), costs({forward(0): 1.0})).memory == ()


def test_freeing_more_than_lives_is_refused() -> None:
    work = forward(0)
    with raises("simulator.frees-too-much", match=r"\b11\b.*1.0.*-1\b", instruction="r0/0F0", rank=0):
        simulate(program((work,)), costs({work: 1.0}, memory={work.id: (10, 11)}))


def test_what_ends_frees_first_wherever_it_is_listed() -> None:
    """A copy holds 10 bytes from 0 to 1. F1, listed before it, starts at 1 with 10 bytes: the peak is 10."""
    first, second = forward(0, 0), forward(0, 1)
    copy = Instruction(kind=Kind.OFFLOAD, rank=0, microbatch=0, stream=COPY)
    timeline = simulate(
        program((first, second, copy)),
        costs(
            {first: 1.0, second: 1.0, copy: transfer(1.0)},
            memory={second.id: (10, 10), copy.id: (10, 10)},
            host_blocks=False,
        ),
    )
    assert timeline.peak_bytes(0) == 10
