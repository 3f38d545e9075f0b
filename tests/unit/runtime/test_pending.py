"""Communication under way."""

from functools import partial

import torch

from trimaran.base.timeline import COMMUNICATION, WAIT
from trimaran.program.types import Instruction, Kind
from trimaran.runtime.communication.channels import InFlight
from trimaran.runtime.record import RunRecorder
from trimaran.runtime.streams import HostStreams


def ended() -> torch.futures.Future[None]:
    """A piece of communication that has ended."""
    future: torch.futures.Future[None] = torch.futures.Future()
    future.set_result(None)
    return future


def bucket(label: str) -> Instruction:
    """A reduction whose end nobody is told of."""
    return Instruction(kind=Kind.SEND_FORWARD, rank=0, segment=0, label=label)


def test_two_pieces_of_one_instruction_are_waited_for_together() -> None:
    """DDP may have one bucket more than the program, under the name of the last one."""
    streams = HostStreams()
    recorder = RunRecorder(0, streams, None)
    in_flight = InFlight(0, streams, recorder)
    done: list[str] = []
    for nbytes, name in ((10, "one"), (20, "other")):
        pending = in_flight.add(bucket("b7"), [ended()], [], start=streams.stamp(), nbytes=nbytes)
        pending.finish = partial(done.append, name)
    in_flight.wait("0SEND_F#b7")
    assert done == ["one", "other"]
    recorder.end_step(0)
    assert [span.nbytes for span in recorder.timeline() if span.stream == COMMUNICATION] == [30]


def test_rounds_of_one_instruction_are_one_transfer() -> None:
    """Two rounds of 10 and 20 bytes: one transfer of 30, from the start of the first, and a wait for each."""
    streams = HostStreams()
    recorder = RunRecorder(0, streams, None)
    in_flight = InFlight(0, streams, recorder)
    done = []

    def add(nbytes: int, start: int, finish: object) -> None:
        pending = in_flight.add(bucket("b0"), [ended()], [], start=start, nbytes=nbytes)
        pending.finish = finish  # type: ignore[assignment]

    begun = streams.stamp()
    add(10, begun, lambda: (done.append("first"), add(30, begun, lambda: done.append("second"))))
    in_flight.advance("0SEND_F#b0")
    assert done == ["first"]
    in_flight.wait("0SEND_F#b0")
    assert done == ["first", "second"]
    in_flight.wait("0SEND_F#b0")
    recorder.end_step(0)
    spans = list(recorder.timeline())
    assert [span.nbytes for span in spans if span.stream == COMMUNICATION] == [30]
    waits = [span for span in spans if span.stream == WAIT]
    assert len(waits) == 2
    (transfer,) = [span for span in spans if span.stream == COMMUNICATION]
    assert transfer.start_s == 0.0
    assert transfer.end_s == waits[1].end_s
