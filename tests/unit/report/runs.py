"""A pipeline of two ranks and one microbatch: the program, a prediction, and a measurement worked by hand.

measured, one step of 10 s (the same figures in every step):

rank 0  host/compute  IN 0─1  F 1─3                    B 7.5─9  U 9─9.5
        wait                        RECV_B 3.5─7.5
        posted                SEND_F 3─9.75      RECV_B 3─7.5
rank 1  compute                          F 4─5  B 5─6.5   U 8─9
        wait          RECV_F 0─4                   SEND_B 9─9.25
        posted        RECV_F 0─4                 SEND_B 6.5─9.25

The forward message flows from 3, when the send is posted, to 4. The backward message flows from 6.5 to 7.5, when the
receiver, which stands still for it, has it.
"""

from trimaran.base.timeline import COMMUNICATION, COMPUTE, HOST, WAIT, Span, Timeline
from trimaran.program.types import Instruction, Kind, Program

STEP_S = 10.0


def _message(kind: Kind, rank: int, after: tuple[str, ...] = ()) -> Instruction:
    return Instruction(
        kind=kind,
        rank=rank,
        segment=rank,
        microbatch=0,
        stream=COMMUNICATION,
        peer=1 - rank,
        peer_segment=1 - rank,
        nbytes=4096,
        after=after,
    )


LOAD = Instruction(kind=Kind.LOAD, rank=0, microbatch=0, stream=HOST, nbytes=64)
FORWARDS = [Instruction(kind=Kind.FORWARD, rank=rank, segment=rank, microbatch=0) for rank in (0, 1)]
BACKWARDS = [Instruction(kind=Kind.BACKWARD, rank=rank, segment=rank, microbatch=0) for rank in (0, 1)]
UPDATES = [Instruction(kind=Kind.UPDATE, rank=rank) for rank in (0, 1)]
SEND_F, RECV_F = _message(Kind.SEND_FORWARD, 0, ("0F0",)), _message(Kind.RECEIVE_FORWARD, 1)
SEND_B, RECV_B = _message(Kind.SEND_BACKWARD, 1, ("1B0",)), _message(Kind.RECEIVE_BACKWARD, 0)

PROGRAM = Program(
    ranks=(
        (LOAD, FORWARDS[0], SEND_F, RECV_B, BACKWARDS[0], UPDATES[0]),
        (RECV_F, FORWARDS[1], BACKWARDS[1], SEND_B, UPDATES[1]),
    ),
    segments=2,
    microbatches=1,
)


def span(instruction: Instruction, start_s: float, end_s: float, *, step: int = 0, stream: str | None = None) -> Span:
    return Span(
        rank=instruction.rank,
        stream=stream or instruction.stream,
        start_s=start_s,
        end_s=end_s,
        instruction=instruction.id,
        nbytes=0 if stream == WAIT else instruction.nbytes,
        step=step,
    )


def measured_step(step: int = 0, *, start_s: float = 0.0, factor: float = 1.0) -> list[Span]:
    """The step that is drawn above, later and `factor` times as long."""
    rows = [
        (LOAD, 0.0, 1.0, HOST),
        (FORWARDS[0], 1.0, 3.0, COMPUTE),
        (SEND_F, 3.0, 9.75, COMMUNICATION),
        (SEND_F, 9.7, 9.75, WAIT),
        (RECV_B, 3.0, 7.5, COMMUNICATION),
        (RECV_B, 3.5, 7.5, WAIT),
        (BACKWARDS[0], 7.5, 9.0, COMPUTE),
        (UPDATES[0], 9.0, 9.5, COMPUTE),
        (RECV_F, 0.0, 4.0, COMMUNICATION),
        (RECV_F, 0.0, 4.0, WAIT),
        (FORWARDS[1], 4.0, 5.0, COMPUTE),
        (BACKWARDS[1], 5.0, 6.5, COMPUTE),
        (SEND_B, 6.5, 9.25, COMMUNICATION),
        (UPDATES[1], 8.0, 9.0, COMPUTE),
        (SEND_B, 9.0, 9.25, WAIT),
    ]
    return [
        span(instruction, start_s + factor * begin, start_s + factor * end, step=step, stream=stream)
        for instruction, begin, end, stream in rows
    ]


def measured(steps: int = 3) -> Timeline:
    """Steps of 10 s that follow each other; the last one ends at 9.75 s of its own."""
    return Timeline([item for step in range(steps) for item in measured_step(step, start_s=STEP_S * step)])


def predicted() -> Timeline:
    """One step of 9 s: what the simulator would draw, with messages of 0.5 s and nothing between instructions."""
    return Timeline(
        [
            span(LOAD, 0.0, 1.0),
            span(FORWARDS[0], 1.0, 3.0),
            span(SEND_F, 3.0, 3.5),
            span(RECV_F, 3.0, 3.5),
            span(FORWARDS[1], 3.5, 4.5),
            span(BACKWARDS[1], 4.5, 6.0),
            span(SEND_B, 6.0, 6.5),
            span(RECV_B, 6.0, 6.5),
            span(UPDATES[1], 6.0, 7.0),
            span(BACKWARDS[0], 6.5, 8.0),
            span(UPDATES[0], 8.0, 9.0),
        ],
        memory=[[(0.0, 100), (1.0, 150), (8.0, 100)], [(0.0, 200), (3.5, 260), (6.0, 200)]],
    )
