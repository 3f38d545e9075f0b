"""Tensors in a safetensors file, written as a stream and read in slices.

    8 bytes      length of the header, little endian
    header       JSON: dtype, shape and place of each tensor; padded with spaces to a multiple of 8 bytes
    tensors      row-major, without gaps; those of wide elements first, so that each one is aligned

`TensorStream` is the content of such a file, piece by piece, for `Draft.write`: of a tensor on the host that is
contiguous the pieces are its own memory, of any other one piece at a time is copied. `TensorFile` reads whole tensors
or a slice of one, with ordinary reads into their memory: a file that is cut short or a disk that fails while it is read
raises an error, where a mapped file would end the process. Any program that knows safetensors reads these files too.

Source of the format: https://huggingface.co/docs/safetensors
"""

import json
import math
import mmap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import msgspec
import torch

from trimaran.base.decoding import decode_object
from trimaran.base.errors import CorruptDataError, InputError, TrimaranError
from trimaran.base.precision import dtype_name
from trimaran.base.system import reason_of
from trimaran.checkpoint_files.disk import LocalDisk, OpenFile

PIECE_BYTES = 16 * 2**20
"""Largest piece of a stream, and of what is read at once for a slice."""

_LARGEST_HEADER, _MOST_VALUES = 100_000_000, 32_000_000
"""Other readers of the format take no larger one."""

_LONG_STRETCH = 2**20
"""Stretches of a slice that are read one by one; of shorter ones what lies between is read too [bytes]."""

_DTYPES: dict[str, torch.dtype] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F4": torch.float4_e2m1fn_x2,
    "I16": torch.int16,
    "U16": torch.uint16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "F32": torch.float32,
    "C64": torch.complex64,
    "F64": torch.float64,
    "I64": torch.int64,
    "U64": torch.uint64,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_PAIRS = torch.float4_e2m1fn_x2
"""An element is two numbers; the shape in the file counts numbers, in the last dim."""


class TensorStream:
    """The content of a safetensors file.

    Tensors may not change until the stream was read.

    Args:
        tensors: by name; of any device, dense
        metadata: texts by name, such as {"format": "pt"}
        read: gives the tensors in place of these, of the same shapes and dtypes, each when it is written; those of
            `tensors` may then be on the device meta

    Attributes:
        size: of the file [bytes]

    Raises:
        InputError: a tensor is none that such a file can hold, with the reason

    Example:
        >>> stream = TensorStream({"weight": torch.zeros(2, 3)})
        >>> stream.size - 8 - 64, sum(map(len, stream)) == stream.size
        (24, True)
    """

    def __init__(
        self,
        tensors: Mapping[str, torch.Tensor],
        metadata: Mapping[str, str] | None = None,
        *,
        read: Callable[[str], torch.Tensor] | None = None,
    ) -> None:
        for name, tensor in tensors.items():
            check_writable(name, tensor, has_content=read is None)
        self._read = read
        # Wide elements first, as the format's own writer does.
        self._tensors = sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize)
        header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
        offset = 0
        for name, tensor in self._tensors:
            end = offset + tensor.numel() * tensor.dtype.itemsize
            header[name] = {
                "dtype": _NAMES[tensor.dtype],
                "shape": [*tensor.shape[:-1], 2 * tensor.shape[-1]] if tensor.dtype == _PAIRS else list(tensor.shape),
                "data_offsets": [offset, end],
            }
            offset = end
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        if len(text) > _LARGEST_HEADER:
            raise InputError(
                f"{len(tensors)} tensors need a header of {len(text)} bytes, a safetensors file has at most "
                f"{_LARGEST_HEADER}: write them to several files",
                code="tensors.too-many",
                tensors=len(tensors),
                header_bytes=len(text),
            )
        self._head = len(text).to_bytes(8, "little") + text
        self.size = len(self._head) + offset

    def __iter__(self) -> Iterator[memoryview]:
        yield memoryview(self._head)
        for name, tensor in self._tensors:
            yield from _pieces(tensor if self._read is None else self._read(name))


class TensorFile:
    """A safetensors file that is open for reading; a context manager.

    Args:
        path: of the file
        disk: that it is on

    Attributes:
        names: of the tensors
        metadata: texts by name

    Raises:
        CorruptDataError: it cannot be read, or is not a whole safetensors file
    """

    def __init__(self, path: str | Path, *, disk: LocalDisk | None = None) -> None:
        self._path = Path(path)
        try:
            self._file: OpenFile = (LocalDisk() if disk is None else disk).open(self._path)
        except OSError as error:
            self._refuse(f"it cannot be read: {reason_of(error)}")
        try:
            self._start, self._entries, self.metadata = self._read_header()
        except BaseException:
            self._file.close()
            raise
        self.names = tuple(self._entries)

    def __enter__(self) -> "TensorFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; tensors that were read stay."""
        self._file.close()

    def shape(self, name: str) -> torch.Size:
        """Shape of a tensor.

        Args:
            name: of the tensor
        """
        return torch.Size(self._entry(name).shape)

    def dtype(self, name: str) -> torch.dtype:
        """Dtype of a tensor.

        Args:
            name: of the tensor
        """
        return _DTYPES[self._entry(name).dtype]

    def tensor(self, name: str) -> torch.Tensor:
        """A copy of a whole tensor.

        Args:
            name: of the tensor

        Raises:
            CorruptDataError: no such tensor; the file was cut short since; the disk fails
        """
        entry = self._entry(name)
        found = _room(entry.shape, _DTYPES[entry.dtype])
        if found.numel():
            self._read(_bytes_of(found), self._start + entry.data_offsets[0])
        return found

    def part(self, name: str, dim: int, low: int, high: int) -> torch.Tensor:
        """A slice of a tensor along one dim, as a copy; little else is read.

        Args:
            name: of the tensor
            dim: that is sliced
            low: first index
            high: index after the last one

        Raises:
            InputError: the tensor has no such slice
            CorruptDataError: no such tensor; the file was cut short since; the disk fails
        """
        entry = self._entry(name)
        shape = entry.shape
        if not 0 <= dim < len(shape) or not 0 <= low <= high <= shape[dim]:
            raise InputError(
                f"{name} of shape {tuple(shape)} has no indices {low} to {high} of dim {dim}",
                code="tensors.no-such-slice",
                tensor=name,
                shape=tuple(shape),
                dim=dim,
                low=low,
                high=high,
            )
        dtype = _DTYPES[entry.dtype]
        found = _room([*shape[:dim], high - low, *shape[dim + 1 :]], dtype)
        if not found.numel():
            return found
        # The tensor is `outer` rows; of each one the same stretch is wanted.
        outer, inner = math.prod(shape[:dim]), math.prod(shape[dim + 1 :]) * dtype.itemsize
        row, stretch = shape[dim] * inner, (high - low) * inner
        start, flat = self._start + entry.data_offsets[0] + low * inner, _bytes_of(found)
        if outer == 1 or stretch == row:
            self._read(flat, start)
        elif stretch >= _LONG_STRETCH:
            for number in range(outer):
                self._read(flat[number * stretch : (number + 1) * stretch], start + number * row)
        else:
            wanted = found.reshape(-1).view(torch.uint8).view(outer, stretch)
            band = max(1, PIECE_BYTES // row)
            for number in range(0, outer, band):
                rows = min(band, outer - number)
                read = torch.empty(rows * row, dtype=torch.uint8)
                # Of the last row only the stretch: the file may end there.
                self._read(_bytes_of(read)[: (rows - 1) * row + stretch], start + number * row)
                wanted[number : number + rows] = read.view(rows, row)[:, :stretch]
        return found

    def _read_header(self) -> tuple[int, dict[str, "_TensorHeader"], dict[str, str]]:
        length = memoryview(bytearray(8))
        self._read(length, 0)
        size = int.from_bytes(length, "little")
        if size > min(_LARGEST_HEADER, self._file.size - 8):
            self._refuse(f"its header would have {size} bytes")
        text = memoryview(bytearray(size))
        self._read(text, 8)
        try:
            plain = decode_object(bytes(text), source="its header", nul=True, most_values=_MOST_VALUES)
            metadata = msgspec.convert(plain.pop("__metadata__", None) or {}, dict[str, str], strict=True)
            entries = {
                name: _of_elements(name, entry)
                for name, entry in msgspec.convert(plain, dict[str, _TensorHeader], strict=True).items()
            }
            _check_places(entries, self._file.size - 8 - size)
        except TrimaranError as error:
            self._refuse(error.message)
        except (ValueError, msgspec.ValidationError) as error:
            self._refuse(str(error))
        return 8 + size, entries, metadata

    def _entry(self, name: str) -> "_TensorHeader":
        entry = self._entries.get(name)
        if entry is None:
            self._refuse(f"it has no tensor {name!a}")
        return entry

    def _read(self, buffer: memoryview, offset: int) -> None:
        """Fill a buffer from a place of the file."""
        try:
            count = self._file.read_into(buffer, offset)
        except OSError as error:
            self._refuse(f"it cannot be read: {reason_of(error)}")
        if count < len(buffer):
            self._refuse(f"it ends {len(buffer) - count} bytes before the end of what it should hold")

    def _refuse(self, what: str) -> NoReturn:
        raise CorruptDataError(
            f"{self._path} is damaged, or no safetensors file: {what}. Take another copy of it",
            code="tensors.damaged",
            path=str(self._path),
            what=what,
        )


_Size = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]


class _TensorHeader(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    dtype: str
    shape: Annotated[list[_Size], msgspec.Meta(max_length=64)]
    data_offsets: tuple[_Size, _Size]


def _of_elements(name: str, entry: _TensorHeader) -> _TensorHeader:
    """An entry whose shape counts elements of torch's dtype."""
    if entry.dtype not in _DTYPES:
        raise ValueError(f"{name!a} has the dtype {entry.dtype!a}, which is not known")
    if math.prod(max(1, size) for size in entry.shape) >= 2**59:
        raise ValueError(f"{name!a} has a shape that no memory holds")
    if _DTYPES[entry.dtype] != _PAIRS:
        return entry
    if not entry.shape or entry.shape[-1] % 2:
        raise ValueError(f"{name!a} of dtype F4 has an odd number of elements in its last dim")
    return _TensorHeader(entry.dtype, [*entry.shape[:-1], entry.shape[-1] // 2], entry.data_offsets)


def _check_places(entries: Mapping[str, _TensorHeader], size: int) -> None:
    """Whether the tensors lie one after the other, each as large as its shape says, up to the end of the file."""
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        start, stop = entry.data_offsets
        if start != end or stop - start != math.prod(entry.shape) * _DTYPES[entry.dtype].itemsize:
            raise ValueError(f"{name!a} does not lie where its shape and the tensors before it say")
        end = stop
    if end != size:
        raise ValueError(f"its tensors have {end} bytes, and {size} are there")


def check_writable(name: str, tensor: torch.Tensor, *, has_content: bool) -> None:
    """Refuse a tensor that the format does not know.

    Args:
        name: of the tensor
        tensor: to be written
        has_content: its content is to be written too

    Raises:
        InputError: it cannot be written
    """
    reason = None
    if tensor.layout is not torch.strided:
        reason = f"it is {str(tensor.layout).removeprefix('torch.')}: take `to_dense()`"
    elif tensor.is_quantized:
        reason = "it is quantized: take `int_repr()`, and its scale"
    elif tensor.device.type == "meta" and has_content:
        reason = "it has no content, since it is on the device meta"
    elif tensor.dtype not in _NAMES:
        way = ": take `torch.view_as_real`" if tensor.dtype.is_complex else ""
        reason = f"the format knows no {dtype_name(tensor.dtype)}{way}"
    elif tensor.dtype == _PAIRS and not tensor.dim():
        reason = "the format knows no single float4_e2m1fn_x2"
    elif name == "__metadata__":
        reason = "the format takes this name for itself"
    if reason is not None:
        raise InputError(
            f"{name} cannot be written to a safetensors file: {reason}", code="tensors.cannot-be-written", tensor=name
        )


def _pieces(tensor: torch.Tensor) -> Iterator[memoryview]:
    """The bytes of a tensor in row-major order; one piece at a time is a copy, where they do not lie so on the host."""
    if not tensor.numel():
        return
    tensor = tensor.detach().reshape(1) if tensor.dim() == 0 else tensor.detach()
    if tensor.dtype.itemsize == 1:
        # Not all operations know all dtypes of one byte.
        tensor = tensor.view(torch.uint8)
    for block in _blocks(tensor):
        yield _bytes_of(block.resolve_conj().resolve_neg().contiguous().cpu())


def _blocks(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Views of at most `PIECE_BYTES` (or one element) that make up a tensor in row-major order."""
    if tensor.numel() * tensor.dtype.itemsize <= PIECE_BYTES:
        yield tensor
        return
    row = tensor[0].numel() * tensor.dtype.itemsize
    if row > PIECE_BYTES:
        for index in range(len(tensor)):
            yield from _blocks(tensor[index])
        return
    step = PIECE_BYTES // row
    for start in range(0, len(tensor), step):
        yield tensor[start : start + step]


def _room(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """An empty tensor whose memory is there: a read that meets pages for the first time took three times as long."""
    found = torch.empty(shape, dtype=dtype)
    found.view(-1).view(torch.uint8)[:: mmap.PAGESIZE].zero_()
    return found


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    """The memory of a contiguous tensor on the host, which it keeps alive."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data
