"""Communication under way."""

from functools import partial

import torch

from trimaran.base.timeline import COMMUNICATION, WAIT
from trimaran.runtime.communication.channels import InFlight, Pending
from trimaran.runtime.record import Recorder
from trimaran.runtime.streams import HostStreams


def ended() -> torch.futures.Future[None]:
    """A piece of communication that has ended."""
    future: torch.futures.Future[None] = torch.futures.Future()
    future.set_result(None)
    return future


def test_two_pieces_of_one_instruction_are_waited_for_together() -> None:
    """DDP may have one bucket more than the program, under the name of the last one."""
    streams = HostStreams()
    recorder = Recorder(0, streams, None)
    in_flight = InFlight(0, streams, recorder)
    done: list[str] = []
    for nbytes, name in ((10, "one"), (20, "other")):
        add = partial(done.append, name)
        pending = Pending(token="0AR#b7", nbytes=nbytes, works=[ended()], buffers=[], start=streams.stamp(), finish=add)
        in_flight.add(pending, "channel", collective=False, stood_still=False)
    in_flight.wait("0AR#b7")
    assert done == ["one", "other"]
    recorder.end_step(0)
    assert [span.nbytes for span in recorder.timeline() if span.stream == COMMUNICATION] == [30]


def test_rounds_of_one_instruction_are_one_transfer() -> None:
    """Two rounds of 10 and 20 bytes: one transfer of 30, from the start of the first, and a wait for each."""
    streams = HostStreams()
    recorder = Recorder(0, streams, None)
    in_flight = InFlight(0, streams, recorder)
    done = []

    def add(nbytes: int, start: int, finish: object) -> None:
        pending = Pending(token="0AR#b0", nbytes=nbytes, works=[ended()], buffers=[], start=start, finish=finish)  # type: ignore[arg-type]
        in_flight.add(pending, "channel", collective=False, stood_still=False)

    begun = streams.stamp()
    add(10, begun, lambda: (done.append("first"), add(30, begun, lambda: done.append("second"))))
    in_flight.advance("0AR#b0")
    assert done == ["first"]
    in_flight.wait("0AR#b0")
    assert done == ["first", "second"]
    in_flight.wait("0AR#b0")
    recorder.end_step(0)
    spans = list(recorder.timeline())
    assert [span.nbytes for span in spans if span.stream == COMMUNICATION] == [30]
    waits = [span for span in spans if span.stream == WAIT]
    assert len(waits) == 2
    (transfer,) = [span for span in spans if span.stream == COMMUNICATION]
    assert transfer.start_s == 0.0
    assert transfer.end_s == waits[1].end_s
