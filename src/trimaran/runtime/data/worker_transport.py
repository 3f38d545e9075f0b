"""Transport of batches from a worker to its rank, through memory that both have mapped.

    worker   answer ─▶ pickled, its arrays aside ─▶ block 2 ▒▒▒▒▒▒▒▒     "block 2, 3 parts" ─▶ pipe
    rank     answer ◀─ unpickled, its arrays are parts of block 2         ▒ until nothing refers to them

Only a short message goes through the pipe, so that neither end ever waits for the other to read. The sizes of the parts
are in the block too, because a batch may have thousands of parts:

    block   sizes of the parts │ pickled answer │ array │ array │ …        each aligned

A block is used again as soon as the rank has dropped the batch in it: its pages exist, and nothing is opened, mapped or
copied to take a batch over. The rank says with each request which block the answer goes to, since only the rank knows
which blocks are free. Blocks have no name: they are gone with the last process that has mapped them, however that ends.
They do not keep a file open, so that a rank may hold any number of batches; each end needs a descriptor only while a
block is made.

torch's `DataLoader` makes shared memory anew for each tensor of each batch, and four kinds of threads take part. With
it, steps of five jobs that load took 1.34, 1.27, 1.12, 1.09 and 0.98 times as long
(`benchmarks/feed/against_torch.py`).

Source:
    memfd_create(2); unix(7), SCM_RIGHTS and its ETOOMANYREFS; recvmsg(2), MSG_CMSG_CLOEXEC; mmap(2); PEP 574, pickle
    protocol 5 with out-of-band data.
"""

import ctypes
import errno
import mmap
import os
import pickle
import socket
import struct
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy
import torch

from trimaran.base.system import c_function
from trimaran.runtime.communication.shared_memory import aligned

_SIZE = numpy.dtype(numpy.int64)
LEAST_BYTES = 4096
"""Arrays of fewer bytes are pickled, so that keeping the labels of a batch does not keep its images [bytes]."""


class Arrived:
    """An answer that lies in a block.

    Args:
        block: whose
        parts: how many: the pickled answer and its arrays
    """

    def __init__(self, block: memoryview, parts: int) -> None:
        self._pickled, *self._arrays = _partition(block, numpy.frombuffer(block, _SIZE, parts).tolist())

    def unpack(self) -> Any:
        """The answer; its tensors and arrays are parts of the block.

        Raises:
            Exception: whatever an object raises that is unpickled
        """
        return pickle.loads(self._pickled, buffers=self._arrays)  # noqa: S301 from a worker of this process


class Packed:
    """An answer, ready to be written to a block.

    Args:
        answer: what is handed over
        least_bytes: of an array that goes aside; smaller ones are pickled [bytes]

    Attributes:
        sizes: of the pickled answer and of its arrays [bytes]
        nbytes: that it takes of a block, with the table of the sizes [bytes]

    Raises:
        Exception: whatever an object raises that cannot be pickled
    """

    def __init__(self, answer: Any, *, least_bytes: int = LEAST_BYTES) -> None:
        arrays: list[pickle.PickleBuffer] = []
        file = BytesIO()

        def is_small(array: pickle.PickleBuffer) -> bool:
            if array.raw().nbytes < least_bytes:
                return True
            arrays.append(array)
            return False

        _Pickler(file, protocol=pickle.HIGHEST_PROTOCOL, buffer_callback=is_small).dump(answer)
        self._parts = [file.getbuffer(), *(array.raw() for array in arrays)]
        self.sizes = [part.nbytes for part in self._parts]
        self.nbytes = _table_bytes(len(self.sizes)) + sum(aligned(size) for size in self.sizes)

    @property
    def content(self) -> bytes:
        """It, as it is written."""
        block = bytearray(self.nbytes)
        self.write(memoryview(block))
        return bytes(block)

    def write(self, block: memoryview) -> None:
        """Write it.

        Args:
            block: of `nbytes` or more
        """
        table = len(self.sizes) * _SIZE.itemsize
        block[:table] = numpy.array(self.sizes, _SIZE).data.cast("B")
        for place, part in zip(_partition(block, self.sizes), self._parts, strict=True):
            place[:] = part


class _Pickler(pickle.Pickler):
    """Puts plain tensors aside, as protocol 5 does with numpy's arrays."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not torch.Tensor or not _is_plain(value):
            return NotImplemented
        dense = value if _is_dense(value) else value.contiguous()
        flat = dense.as_strided((dense.numel(),), (1,)).view(torch.uint8).numpy()
        return _as_tensor, (pickle.PickleBuffer(flat.data), dense.dtype, tuple(dense.shape), dense.stride())


def _as_tensor(array: Any, dtype: torch.dtype, shape: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
    return torch.frombuffer(array, dtype=dtype).as_strided(shape, stride)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether it is nothing but its bytes on the host, without further attributes."""
    return (
        tensor.layout == torch.strided
        and tensor.device.type == "cpu"
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
        and not (tensor.is_nested or vars(tensor))
        # One value that stands for many is smaller where it lies.
        and 0 < tensor.nbytes <= tensor.untyped_storage().nbytes()
    )


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements fill their memory, in some order of its dims."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _partition(block: memoryview, sizes: Sequence[int]) -> list[memoryview]:
    """Parts that follow the table of their sizes, and each other, each aligned."""
    parts, start = [], _table_bytes(len(sizes))
    for size in sizes:
        parts.append(block[start : start + size])
        start += aligned(size)
    return parts


def _table_bytes(parts: int) -> int:
    return aligned(parts * _SIZE.itemsize)


_mmap, _munmap = c_function("mmap"), c_function("munmap")
if _mmap is not None and _munmap is not None:
    _mmap.restype = ctypes.c_void_p
    _mmap.argtypes = (
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,  # off_t, on the systems of 64 bits that torch has builds for
    )
    _munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_MAP_FAILED = ctypes.c_void_p(-1).value

_DESCRIPTOR = struct.Struct("i")


def send_descriptor(connection: Connection, descriptor: int) -> None:
    """Hand an open file over, or let the other end find none where the system has too many on their way.

    Args:
        connection: to the process that gets it
        descriptor: its number here
    """
    with socket_of(connection) as line:
        try:
            socket.send_fds(line, [b"."], [descriptor])
        except OSError as error:
            if error.errno != errno.ETOOMANYREFS:
                raise
            line.sendall(b".")


def receive_descriptor(connection: Connection) -> int | None:
    """An open file that the other end hands over; None: the system has no place for it.

    Programs that this process starts do not inherit it.

    Args:
        connection: to the process that sends it

    Raises:
        EOFError, OSError: the other end is gone
    """
    with socket_of(connection) as line:
        # Not socket.recv_fds, which leaves its flags out.
        said, control, _, _ = line.recvmsg(1, socket.CMSG_LEN(_DESCRIPTOR.size), socket.MSG_CMSG_CLOEXEC)
    if not said:
        raise EOFError
    if not control:
        return None
    (descriptor,) = _DESCRIPTOR.unpack(control[0][2])
    return int(descriptor)


def map_file(descriptor: int, nbytes: int) -> memoryview:
    """A file as memory, until nothing refers to that any more.

    It stays when the descriptor is closed, where Python's own mmap keeps one open; and it is no operation of torch,
    which whoever watches those would see.

    Args:
        descriptor: of the open file
        nbytes: its size [bytes]

    Raises:
        OSError: the process may map no more
    """
    if _mmap is None or _munmap is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    address = _mmap(None, nbytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, descriptor, 0)
    if address == _MAP_FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    memory = (ctypes.c_uint8 * nbytes).from_address(address)
    # At the end of the process the system unmaps it, when no thread can use it any more.
    weakref.finalize(memory, _munmap, address, nbytes).atexit = False
    return memoryview(memory).cast("B")


@contextmanager
def socket_of(connection: Connection) -> Iterator[socket.socket]:
    """The socket of a connection, on the same descriptor."""
    line = socket.socket(fileno=connection.fileno())
    try:
        # Where the program has set a time-out for all sockets, this one would no longer wait, and so the connection.
        line.setblocking(True)
        yield line
    finally:
        line.detach()


_PAGE = mmap.PAGESIZE
_SOMETIMES_MORE = 8
"""A block is larger than its batch by this part of it, for batches that are a little larger."""


class BlockMessage(NamedTuple):
    """The message about a batch that is in a block.

    Attributes:
        block: its number
        new_bytes: size of the block where its memory is new, and follows; 0: it is known [bytes]
        parts: how many there are: the pickled answer and its arrays, which follow their sizes in the block
        problem: why the worker has no memory for the batch, which is then lost; empty: it has
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


class BatchSender:
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
            block: that the rank does not use any more
        """
        known = self._blocks.get(block)
        if known is not None and len(known) >= packed.nbytes:
            packed.write(known)
            self._say(BlockMessage(block, parts=len(packed.sizes)))
            return
        size = -(-(packed.nbytes + packed.nbytes // _SOMETIMES_MORE) // _PAGE) * _PAGE
        try:
            descriptor = os.memfd_create("trimaran-batch", os.MFD_CLOEXEC)
        except OSError as error:
            self._say(BlockMessage(block, problem=str(error)))
            return
        try:
            os.ftruncate(descriptor, size)
            self._blocks[block] = map_file(descriptor, size)
        except OSError as error:
            self._say(BlockMessage(block, problem=str(error)))
        else:
            packed.write(self._blocks[block])
            self._say(BlockMessage(block, size, len(packed.sizes)))
            send_descriptor(self._connection, descriptor)
        finally:
            os.close(descriptor)

    def _say(self, message: BlockMessage) -> None:
        self._connection.send_bytes(pickle.dumps(tuple(message)))


class BatchReceiver:
    """A rank's end, for one worker.

    Args:
        connection: to the worker
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._blocks: dict[int, memoryview] = {}
        # Any thread may drop the last reference to a batch: appending and popping are atomic.
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
        """The next answer, in its block, which is not used again while something refers to it.

        Raises:
            EOFError, OSError: the worker has ended
            NoBlock: there is no memory for it; this worker is not asked again
        """
        message = BlockMessage(*pickle.loads(self._connection.recv_bytes()))  # noqa: S301 from a worker of this process
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
