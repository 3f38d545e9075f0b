"""When a rank needs things for the last time."""

from trimaran.program.types import Instruction, Kind
from trimaran.runtime.interpreter import find_uses


def step(kind: Kind, segment: int, microbatch: int) -> Instruction:
    return Instruction(kind=kind, rank=0, segment=segment, microbatch=microbatch)


def test_what_two_segments_read_is_kept_until_the_second() -> None:
    """Segments 0 and 2 of the rank read "x"; it is sent, too, before the second one runs."""
    send = Instruction(kind=Kind.SEND_FORWARD, rank=0, segment=0, microbatch=0, peer=1, peer_segment=1)
    found = find_uses(
        [step(Kind.FORWARD, 0, 0), send, step(Kind.FORWARD, 2, 0), step(Kind.BACKWARD, 2, 0)],
        {0: ["x"], 2: ["x"]},
        lambda instruction: ["x", "y"],
    )
    assert found.values == {"2F0": ["x"], "0SEND_F0>1": ["y"]}
    assert found.batches == {"2F0"}


def test_the_last_backward_of_each_segment_completes_its_gradients() -> None:
    found = find_uses(
        [
            *(step(Kind.FORWARD, segment, microbatch) for segment in (0, 1) for microbatch in (0, 1)),
            step(Kind.BACKWARD_INPUT, 1, 0),
            step(Kind.BACKWARD_INPUT, 1, 1),
            step(Kind.BACKWARD_WEIGHT, 1, 1),
            step(Kind.BACKWARD_WEIGHT, 1, 0),
            step(Kind.BACKWARD, 0, 0),
            step(Kind.BACKWARD, 0, 1),
        ],
        {},
        lambda instruction: (),
    )
    assert found.completing == {1: [1, 0], 0: [0, 1]}
    assert found.split == {1}
    assert found.batches == {"1F0", "1F1"}
