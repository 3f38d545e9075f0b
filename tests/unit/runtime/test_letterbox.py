"""Messages through shared memory, both ends in one process."""

import os
import random
import sys
import threading
from collections.abc import Iterator

import pytest
import torch

from trimaran.runtime.communication.shared_memory import Receiver, Ring, Sender

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason=f"no shared memory files on {sys.platform}")

Ends = tuple[Sender, Receiver]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """A ring of 1,000 bytes, and half a minute of patience."""
    memory, arrived, freed = os.memfd_create("test"), os.pipe(), os.pipe()
    os.ftruncate(memory, 1000)
    sender = Sender(memory, 1000, arrived[1], freed[0], 30.0)
    receiver = Receiver(memory, 1000, arrived[0], freed[1], 30.0)
    os.close(memory)
    yield sender, receiver
    for end in (sender, receiver):
        end.close()


def message(nbytes: int, value: int) -> torch.Tensor:
    return torch.full((nbytes,), value, dtype=torch.uint8)


def test_messages_arrive_in_order_whichever_is_waited_for_first(ends: Ends) -> None:
    sender, receiver = ends
    buffers = [torch.zeros(100, dtype=torch.uint8) for _ in range(3)]
    letters = [receiver.receive(buffer) for buffer in buffers]
    for value in (1, 2, 3):
        sender.send(message(100, value))
    letters[2].wait()
    letters[0].wait()
    assert [buffer.unique().tolist() for buffer in buffers] == [[1], [2], [3]]


def test_what_was_sent_may_change_and_what_was_put_together_in_place_is_not_copied(ends: Ends) -> None:
    sender, receiver = ends
    own = message(10, 7)
    sender.send(own)
    own.zero_()
    room = sender.room(10)
    room.fill_(8)
    sender.send(room)
    found = [torch.zeros(10, dtype=torch.uint8) for _ in range(2)]
    for letter in [receiver.receive(buffer) for buffer in found]:
        letter.wait()
    assert [buffer.unique().tolist() for buffer in found] == [[7], [8]]


def test_a_full_ring_makes_the_sender_wait_until_something_is_out(ends: Ends) -> None:
    """Three messages of 400 bytes in a ring of 1,000: the third one takes the place of the first."""
    sender, receiver = ends
    thread = threading.Thread(target=lambda: [sender.send(message(400, value)) for value in (1, 2, 3)])
    thread.start()
    found = [torch.zeros(400, dtype=torch.uint8) for _ in range(3)]
    for letter in [receiver.receive(buffer) for buffer in found]:
        letter.wait()
    thread.join()
    assert [buffer.unique().tolist() for buffer in found] == [[1], [2], [3]]


def test_many_messages_of_any_size_arrive_as_they_were(ends: Ends) -> None:
    sender, receiver = ends
    generator = random.Random(0)
    sizes = [generator.randrange(600) for _ in range(3000)]
    thread = threading.Thread(target=lambda: [sender.send(message(n, k % 251)) for k, n in enumerate(sizes)])
    thread.start()
    for number, nbytes in enumerate(sizes):
        buffer = torch.empty(nbytes, dtype=torch.uint8)
        receiver.receive(buffer).wait()
        assert torch.equal(buffer, message(nbytes, number % 251)), number
    thread.join()


def test_an_end_that_is_closed_is_seen_at_the_other(ends: Ends) -> None:
    sender, receiver = ends
    letter = receiver.receive(torch.zeros(1, dtype=torch.uint8))
    sender.close()
    with pytest.raises(RuntimeError, match="closed by peer"):
        letter.wait()
    receiver.close()


def test_what_was_sent_arrives_though_the_sender_has_ended(ends: Ends) -> None:
    sender, receiver = ends
    sender.send(message(10, 5))
    sender.close()
    buffer = torch.zeros(10, dtype=torch.uint8)
    receiver.receive(buffer).wait()
    assert buffer.unique().tolist() == [5]


def test_a_sender_without_a_receiver_fails(ends: Ends) -> None:
    sender, receiver = ends
    receiver.close()
    with pytest.raises(BrokenPipeError):
        sender.send(message(1, 1))
    sender.close()


def test_silence_ends_after_the_time_out() -> None:
    memory, arrived, freed = os.memfd_create("test"), os.pipe(), os.pipe()
    os.ftruncate(memory, 100)
    receiver = Receiver(memory, 100, arrived[0], freed[1], 0.01)
    with pytest.raises(RuntimeError, match="nothing came"):
        receiver.receive(torch.zeros(1, dtype=torch.uint8)).wait()
    for descriptor in (memory, arrived[0], arrived[1], freed[0], freed[1]):
        os.close(descriptor)


def test_a_message_lies_in_one_piece() -> None:
    """64-byte places: 100 bytes take two, so that the third message would end at 256 + 100 > 300."""
    ring = Ring(300)
    assert [ring.place(100) for _ in range(4)] == [0, 128, 0, 128]
