"""Messages between two ranks of one machine through shared memory.

A message takes one copy in and one copy out, and no thread but those that compute. Through a socket it takes four
copies, and where all cores compute, the threads that serve sockets compete with them for cores. Where the ranks are on
rate-limited links, or on several machines, messages go through sockets.

    sender     copy in ─▶ │ ring of bytes        │ ─▶ copy out     receiver
               one byte ──▶ pipe "there is one" ──▶ waits here
        waits here ◀── pipe "it is out" ◀── one byte
                  only where the ring is full

The ring has room for all messages of a step, or of all steps that overlap, so that no rank waits for room that only its
own later work would free.
Ring and pipes have no name in the file system: the receiver opens the sender's descriptors, and the kernel frees them
with the processes. A rank that ends closes its pipes, which the other end sees.

The source of a pair makes the memory and the pipes and tells the target where they are. The target opens them, or
answers that it cannot: it is on another machine, in another network namespace, or may not open the files of the
source's process. All ranks call in one order, so that the answers fit the questions.

GoogLeNet at half width, placed on two ranks, sends 36 messages of 80 KiB to 1 MiB a step and waits for each: 144 ms
through gloo, 130 ms so, 126 ms if messages took no time. Views of the ring in place of a copy out would end before a
tensor that a user keeps.
"""

import mmap
import os
import select
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist

from trimaran.launch.world import World, running_system

_ALIGNMENT = 64
_MANY = 4096


def aligned(nbytes: int) -> int:
    """A size, rounded up so that what follows starts where vector instructions can read it [bytes].

    Example:
        >>> aligned(0), aligned(1), aligned(64)
        (0, 64, 64)
    """
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


class Ring:
    """Where each message lies; both ends count alike.

    Args:
        capacity: [bytes]

    Example:
        >>> ring = Ring(200)
        >>> ring.place(100), ring.place(50), ring.place(90)
        (0, 128, 0)
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._next = 0

    def place(self, nbytes: int) -> int:
        """Where the next message starts; it lies in one piece."""
        start = self._next if self._next + nbytes <= self.capacity else 0
        self._next = start + aligned(nbytes)
        return start


class _Pipe:
    """One end of a pipe of single bytes."""

    def __init__(self, descriptor: int, timeout_s: float) -> None:
        self._descriptor = descriptor
        self._timeout_ms = timeout_s * 1000
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    def put(self) -> None:
        """Write one."""
        os.write(self._descriptor, b"\0")

    def take(self) -> int:
        """Wait until there is one, and read all that are there: how many."""
        if not self._poll.poll(self._timeout_ms):
            raise RuntimeError(f"nothing came for {self._timeout_ms / 1000:.0f} s")
        found = len(os.read(self._descriptor, _MANY))
        if not found:
            raise RuntimeError("Connection closed by peer")
        return found

    def close(self) -> None:
        """Close it, which the other end sees; once is enough."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1


class _End:
    """One end of a letterbox: the ring, and its pipes.

    Args:
        memory: the ring, as a file
        capacity: of the ring [bytes]
        arrived: pipe from the sender to the receiver
        freed: pipe from the receiver to the sender
        timeout_s: how long to wait for the other end [s]
    """

    def __init__(self, memory: int, capacity: int, arrived: int, freed: int, timeout_s: float) -> None:
        self.capacity = capacity
        mapped = mmap.mmap(memory, capacity, flags=mmap.MAP_SHARED | _POPULATE)
        self._bytes = torch.frombuffer(mapped, dtype=torch.uint8)
        self._ring = Ring(capacity)
        self._arrived, self._freed = _Pipe(arrived, timeout_s), _Pipe(freed, timeout_s)

    def close(self) -> None:
        """Close the pipes."""
        self._arrived.close()
        self._freed.close()


class Sender(_End):
    """The end that writes; arguments as of `_End`."""

    def __init__(self, memory: int, capacity: int, arrived: int, freed: int, timeout_s: float) -> None:
        super().__init__(memory, capacity, arrived, freed, timeout_s)
        self._under_way: deque[tuple[int, int]] = deque()
        self._room: torch.Tensor | None = None

    def room(self, nbytes: int) -> torch.Tensor:
        """The place of the next message, to be written to before it is sent; waits while it is taken.

        Args:
            nbytes: of the message [bytes]
        """
        start = self._ring.place(nbytes)
        while any(start < end and first < start + nbytes for first, end in self._under_way):
            for _ in range(self._freed.take()):
                self._under_way.popleft()
        self._under_way.append((start, start + nbytes))
        self._room = self._bytes[start : start + nbytes]
        return self._room

    def send(self, buffer: torch.Tensor) -> "Done":
        """Send a buffer; it may change as soon as this returns.

        Args:
            buffer: bytes, or what `room` has given
        """
        room = self._room if self._room is not None else self.room(buffer.nbytes)
        if room.data_ptr() != buffer.data_ptr():
            room.copy_(buffer)
        self._room = None
        self._arrived.put()
        return DONE


class Done:
    """A piece of communication that has ended."""

    def wait(self) -> None:
        """Nothing."""


DONE = Done()


class _Letter:
    """A message that a receive has been posted for."""

    def __init__(self, box: "Receiver", buffer: torch.Tensor) -> None:
        self._box: Receiver | None = box
        self.buffer = buffer

    def wait(self) -> None:
        """Until it is in its buffer; those that were posted before it come first."""
        while self._box is not None:
            self._box.take_one()

    def arrived(self) -> None:
        """It is in its buffer."""
        self._box = None


class Receiver(_End):
    """The end that reads; arguments as of `_End`."""

    def __init__(self, memory: int, capacity: int, arrived: int, freed: int, timeout_s: float) -> None:
        super().__init__(memory, capacity, arrived, freed, timeout_s)
        self._posted: deque[_Letter] = deque()
        self._there = 0

    def receive(self, buffer: torch.Tensor) -> _Letter:
        """Post a receive into a buffer of bytes."""
        letter = _Letter(self, buffer)
        self._posted.append(letter)
        return letter

    def take_one(self) -> None:
        """Wait for the next message, and copy it out."""
        while not self._there:
            self._there += self._arrived.take()
        self._there -= 1
        letter = self._posted.popleft()
        start = self._ring.place(letter.buffer.nbytes)
        letter.buffer.copy_(self._bytes[start : start + letter.buffer.nbytes])
        letter.arrived()
        # A sender that has ended since then needs no room.
        with suppress(BrokenPipeError):
            self._freed.put()


Letterbox = Sender | Receiver

# The pages are there from the start, so that no message waits for the kernel to make some.
_POPULATE = getattr(mmap, "MAP_POPULATE", 0)

LARGEST_RING_BYTES = 2**30
"""A pair of ranks that sends more than this in a step sends through sockets [bytes]."""


def open_letterboxes(
    capacities: Mapping[tuple[int, int], int], world: World, group: dist.ProcessGroup | None
) -> dict[tuple[int, int], Letterbox]:
    """The letterboxes of this rank, for pairs on one machine and without rate-limited links; all ranks call this.

    Args:
        capacities: bytes of a step, or of those that overlap, plus those of the largest message, for each pair of
            source and target [bytes]
        world: this process's
        group: all ranks, for host memory

    Returns:
        One for each pair that has one, by the pair.
    """
    found: dict[tuple[int, int], Letterbox] = {}
    for (source, target), capacity in sorted(capacities.items()):
        box: Letterbox | None = None
        if world.rank == source:
            box = _offer(capacity, target, world, group)
        elif world.rank == target:
            box = _accept(source, world, group)
        if box is not None:
            found[source, target] = box
    return found


def _offer(capacity: int, target: int, world: World, group: dist.ProcessGroup | None) -> Sender | None:
    """Make a letterbox and offer it to the target; None: the target cannot open it."""
    offered: Any = None
    ends: tuple[int, ...] = ()
    if 0 < capacity <= LARGEST_RING_BYTES and world.device == "cpu" and hasattr(os, "memfd_create"):
        memory = os.memfd_create("trimaran")
        os.ftruncate(memory, capacity)
        arrived, freed = os.pipe(), os.pipe()
        ends = (memory, arrived[0], arrived[1], freed[0], freed[1])
        offered = (running_system("net"), os.getpid(), capacity, (memory, arrived[0], freed[1]))
    dist.send_object_list([offered], group_dst=target, group=group)
    answer: list[Any] = [None]
    dist.recv_object_list(answer, group_src=target, group=group)
    box = Sender(ends[0], capacity, ends[2], ends[3], world.timeout_s) if answer[0] else None
    # The target has opened its ends; while this process kept them too, the target would not see when it ends.
    kept = {ends[2], ends[3]} if box is not None else set()
    for descriptor in set(ends) - kept:
        os.close(descriptor)
    return box


def _accept(source: int, world: World, group: dist.ProcessGroup | None) -> Receiver | None:
    """Open the letterbox of a source, where that can be."""
    offer: list[Any] = [None]
    dist.recv_object_list(offer, group_src=source, group=group)
    box = None
    if offer[0] is not None and world.device == "cpu":
        system, process, capacity, descriptors = offer[0]
        if system is not None and system == running_system("net"):
            box = _open(process, capacity, descriptors, world.timeout_s)
    dist.send_object_list([box is not None], group_dst=source, group=group)
    return box


def _open(process: int, capacity: int, descriptors: tuple[int, int, int], timeout_s: float) -> Receiver | None:
    opened: list[int] = []
    try:
        for descriptor, mode in zip(descriptors, (os.O_RDWR, os.O_RDONLY, os.O_WRONLY), strict=True):
            opened.append(os.open(f"/proc/{process}/fd/{descriptor}", mode | os.O_CLOEXEC))
        box = Receiver(opened[0], capacity, opened[1], opened[2], timeout_s)
    except OSError:
        # Another user's process, or a system that does not show descriptors: sockets will do.
        for descriptor in opened:
            os.close(descriptor)
        return None
    os.close(opened[0])
    return box
