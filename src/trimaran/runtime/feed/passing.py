"""Batches on their way from a worker to its rank, through memory that both have mapped.

    worker   answer ─▶ pickled, its arrays aside ─▶ block 2 ▒▒▒▒▒▒▒▒     "block 2, these parts" ─▶ pipe
    rank     answer ◀─ unpickled, its arrays are parts of block 2         ▒ until nothing refers to them

Nothing but a short message goes through the pipe, so that neither end ever waits for the other to read. A block is
used again as soon as the rank has let go of the batch in it: its pages are there, and nothing is opened, mapped or
copied to take a batch over. The rank says with each request which block the answer goes to, since only it knows which
are free. Blocks have no name: they are gone with the last process that has mapped them, however that ends.

Source:
    PEP 574, pickle protocol 5 with out-of-band data; memfd_create(2); unix(7), SCM_RIGHTS.
"""

import mmap
import os
import pickle
import weakref
from collections import deque
from io import BytesIO
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy
import torch

_ALIGNMENT = 64
_PAGE = mmap.PAGESIZE
LEAST_BYTES = 4096
"""Arrays of fewer bytes are pickled, so that who keeps the labels of a batch does not keep its images [bytes]."""

_SOMETIMES_MORE = 8
"""A block has this part of what its batch takes on top, for batches that take a little more."""


class Message(NamedTuple):
    """What is said of a batch that lies in a block.

    Attributes:
        block: its number
        new_bytes: size of the block where its memory is new, and follows; 0: it is known [bytes]
        parts: sizes of the pickled answer and of its arrays, which follow each other, aligned [bytes]
    """

    block: int
    new_bytes: int
    parts: tuple[int, ...]


class Sender:
    """A worker's end.

    Args:
        connection: to its rank
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._blocks: dict[int, mmap.mmap] = {}

    def send(self, packed: "Packed", block: int) -> None:
        """Hand an answer over.

        Args:
            packed: the answer
            block: that the rank has let go of
        """
        known = self._blocks.get(block)
        if known is not None and len(known) >= packed.nbytes:
            packed.write(known)
            self._connection.send_bytes(pickle.dumps(Message(block, 0, packed.sizes)))
            return
        size = -(-(packed.nbytes + packed.nbytes // _SOMETIMES_MORE) // _PAGE) * _PAGE
        descriptor = os.memfd_create("trimaran-batch", os.MFD_CLOEXEC)
        try:
            os.ftruncate(descriptor, size)
            self._blocks[block] = mmap.mmap(descriptor, size)
            packed.write(self._blocks[block])
            self._connection.send_bytes(pickle.dumps(Message(block, size, packed.sizes)))
            reduction.send_handle(self._connection, descriptor, None)
        finally:
            os.close(descriptor)


class Receiver:
    """A rank's end, for one worker.

    Args:
        connection: to the worker
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._blocks: dict[int, mmap.mmap] = {}
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

    def receive(self) -> "Arrived":
        """The next answer, as it lies in its block, which is not used again before nothing refers to it.

        Raises:
            EOFError, OSError: the worker has ended
        """
        message: Message = pickle.loads(self._connection.recv_bytes())  # noqa: S301 from a worker of this process
        if message.new_bytes:
            descriptor = reduction.recv_handle(self._connection)
            try:
                self._blocks[message.block] = mmap.mmap(descriptor, message.new_bytes)
            finally:
                os.close(descriptor)
        # All arrays refer to this one, and it goes with the last of them.
        whole = numpy.frombuffer(self._blocks[message.block], dtype=numpy.uint8)
        weakref.finalize(whole, self._free.append, message.block).atexit = False
        return Arrived(_cut(whole.data, message.parts))


class Arrived:
    """An answer that lies in a block.

    Args:
        parts: the pickled answer, and its arrays
    """

    def __init__(self, parts: list[memoryview]) -> None:
        self._pickled, *self._arrays = parts

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
        nbytes: that it takes of a block [bytes]

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
        self.sizes = tuple(part.nbytes for part in self._parts)
        self.nbytes = sum(_aligned(size) for size in self.sizes)

    def write(self, block: mmap.mmap) -> None:
        """Write it.

        Args:
            block: of `nbytes` or more
        """
        for place, part in zip(_cut(memoryview(block), self.sizes), self._parts, strict=True):
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
    """Whether it is nothing but its bytes on the host, without attributes that somebody has given it."""
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


def _cut(memory: memoryview, sizes: tuple[int, ...]) -> list[memoryview]:
    """Parts that follow each other, each aligned."""
    parts, start = [], 0
    for size in sizes:
        parts.append(memory[start : start + size])
        start += _aligned(size)
    return parts


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
