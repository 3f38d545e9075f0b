"""Batches on their way from a worker to its rank, through memory that both have mapped.

    worker   answer ─▶ pickled, its arrays aside ─▶ block 2 ▒▒▒▒▒▒▒▒     "block 2, 3 parts" ─▶ pipe
    rank     answer ◀─ unpickled, its arrays are parts of block 2         ▒ until nothing refers to them

Nothing but a short message goes through the pipe, so that neither end ever waits for the other to read: sizes of the
parts lie in the block too, for a batch may have thousands. A block is used again as soon as the rank has let go of the
batch in it: its pages are there, and nothing is opened, mapped or copied to take a batch over. The rank says with each
request which block the answer goes to, since only it knows which are free. Blocks have no name: they are gone with the
last process that has mapped them, however that ends. Nor do they keep a file open, so that a rank may hold as many
batches as it likes; only while one is made, each end needs a descriptor.

Source:
    memfd_create(2).
"""

import errno
import mmap
import os
import pickle
import weakref
from collections import deque
from multiprocessing.connection import Connection
from typing import NamedTuple

import numpy

from trimaran.runtime.feed.descriptors import map_file, receive_descriptor, send_descriptor
from trimaran.runtime.feed.packing import Arrived, Packed

_PAGE = mmap.PAGESIZE
_SOMETIMES_MORE = 8
"""A block has this part of what its batch takes on top, for batches that take a little more."""


class Message(NamedTuple):
    """What is said of a batch that lies in a block.

    Attributes:
        block: its number
        new_bytes: size of the block where its memory is new, and follows; 0: it is known [bytes]
        parts: how many there are: the pickled answer and its arrays, which follow their sizes in the block
        problem: why the worker has no memory for the batch, which then is nowhere; empty: it has
    """

    block: int
    new_bytes: int = 0
    parts: int = 0
    problem: str = ""


class NoBlock(Exception):
    """The system gives no memory for a batch; the text has its reason.

    Attributes:
        in_worker: it is the worker that gets none, not its rank
    """

    def __init__(self, reason: str, *, in_worker: bool) -> None:
        super().__init__(reason)
        self.in_worker = in_worker


class Sender:
    """A worker's end.

    Args:
        connection: to its rank
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._blocks: dict[int, memoryview] = {}

    def send(self, packed: Packed, block: int) -> None:
        """Hand an answer over, or say why there is no memory for it.

        Args:
            packed: the answer
            block: that the rank has let go of
        """
        known = self._blocks.get(block)
        if known is not None and len(known) >= packed.nbytes:
            packed.write(known)
            self._say(Message(block, parts=len(packed.sizes)))
            return
        size = -(-(packed.nbytes + packed.nbytes // _SOMETIMES_MORE) // _PAGE) * _PAGE
        try:
            descriptor = os.memfd_create("trimaran-batch", os.MFD_CLOEXEC)
        except OSError as error:
            self._say(Message(block, problem=str(error)))
            return
        try:
            os.ftruncate(descriptor, size)
            self._blocks[block] = map_file(descriptor, size)
        except OSError as error:
            self._say(Message(block, problem=str(error)))
        else:
            packed.write(self._blocks[block])
            self._say(Message(block, size, len(packed.sizes)))
            send_descriptor(self._connection, descriptor)
        finally:
            os.close(descriptor)

    def _say(self, message: Message) -> None:
        self._connection.send_bytes(pickle.dumps(tuple(message)))


class Receiver:
    """A rank's end, for one worker.

    Args:
        connection: to the worker
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._blocks: dict[int, memoryview] = {}
        # Whoever drops the last reference to a batch may be any thread: appending and popping are whole.
        self._free: deque[int] = deque()
        self._made = 0

    def reserve(self) -> int:
        """A block for the answer to the next request."""
        try:
            return self._free.popleft()
        except IndexError:
            self._made += 1
            return self._made - 1

    def receive(self) -> Arrived:
        """The next answer, as it lies in its block, which is not used again before nothing refers to it.

        Raises:
            EOFError, OSError: the worker has ended
            NoBlock: there is no memory for it; nobody asks this worker again
        """
        message = Message(*pickle.loads(self._connection.recv_bytes()))  # noqa: S301 from a worker of this process
        if message.problem:
            raise NoBlock(message.problem, in_worker=True)
        if message.new_bytes:
            self._blocks[message.block] = self._take_memory(message.new_bytes)
        # All arrays refer to this one, and it goes with the last of them.
        whole = numpy.frombuffer(self._blocks[message.block], dtype=numpy.uint8)
        weakref.finalize(whole, self._free.append, message.block).atexit = False
        return Arrived(whole.data, message.parts)

    def _take_memory(self, nbytes: int) -> memoryview:
        descriptor = receive_descriptor(self._connection)
        if descriptor is None:
            raise NoBlock(os.strerror(errno.EMFILE), in_worker=False)
        try:
            return map_file(descriptor, nbytes)
        except OSError as error:
            raise NoBlock(str(error), in_worker=False) from error
        finally:
            os.close(descriptor)
