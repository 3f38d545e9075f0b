"""A batch as parts of a block of memory: its pickled form, and its arrays as they are.

    block   sizes of the parts │ pickled answer │ array │ array │ …        each aligned

Source:
    PEP 574, pickle protocol 5 with out-of-band data.
"""

import pickle
from collections.abc import Sequence
from io import BytesIO
from typing import Any

import numpy
import torch

_ALIGNMENT = 64
_SIZE = numpy.dtype(numpy.int64)
LEAST_BYTES = 4096
"""Arrays of fewer bytes are pickled, so that who keeps the labels of a batch does not keep its images [bytes]."""


class Arrived:
    """An answer that lies in a block.

    Args:
        block: whose
        parts: how many: the pickled answer and its arrays
    """

    def __init__(self, block: memoryview, parts: int) -> None:
        self._pickled, *self._arrays = _cut(block, numpy.frombuffer(block, _SIZE, parts).tolist())

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
        self.nbytes = _table_bytes(len(self.sizes)) + sum(_aligned(size) for size in self.sizes)

    def write(self, block: memoryview) -> None:
        """Write it.

        Args:
            block: of `nbytes` or more
        """
        table = len(self.sizes) * _SIZE.itemsize
        block[:table] = numpy.array(self.sizes, _SIZE).data.cast("B")
        for place, part in zip(_cut(block, self.sizes), self._parts, strict=True):
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


def _cut(block: memoryview, sizes: Sequence[int]) -> list[memoryview]:
    """Parts that follow the table of their sizes, and each other, each aligned."""
    parts, start = [], _table_bytes(len(sizes))
    for size in sizes:
        parts.append(block[start : start + size])
        start += _aligned(size)
    return parts


def _table_bytes(parts: int) -> int:
    return _aligned(parts * _SIZE.itemsize)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
