"""What `torch.save` writes: a zip archive of a pickle and of the memory of tensors, read without running the pickle.

    archive/data.pkl       the value; a tensor in it is a place in a storage, its shape and its strides
    archive/data/0 …       storages, not compressed
    archive/byteorder      little

`torch.load` calls what the pickle names, a little with `weights_only=True`, and does not look at the checksums of the
archive. Here the pickle is read by `pickles`, and every storage that is read is compared with its checksum. Tensors are
read one at a time, with ordinary reads.
"""

import io
import math
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch

from trimaran.base.errors import CorruptDataError, InputError
from trimaran.base.system import reason_of
from trimaran.checkpoint_files.content import Content, Form, Group, Member, OptimizerContent, closing_on_error
from trimaran.checkpoint_files.disk import LocalDisk, Reading
from trimaran.checkpoint_files.pickles import MOST_BYTES, Named, read_pickle

_LARGEST_DIRECTORY = 32 * 2**20
"""What the list of the records of an archive may take, and any other read but that of a storage [bytes]."""
_AT_A_TIME = 16 * 2**20
_MOST_DIMS = 64

_STORAGES: Mapping[str, torch.dtype] = {
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "ComplexFloatStorage": torch.complex64,
    "ComplexDoubleStorage": torch.complex128,
    "UntypedStorage": torch.uint8,
}


class _Storage(NamedTuple):
    key: str
    dtype: torch.dtype


class StoredTensor(NamedTuple):
    """A tensor in an archive.

    Attributes:
        storage: its record
        form: shape and dtype
        offset: of its first element in the storage
        stride: of each dim
    """

    storage: str
    form: Form
    offset: int
    stride: tuple[int, ...]


class Archive:
    """An archive of `torch.save` that is open for reading.

    Args:
        file: that has it; it is closed by whoever opened it
        source: what to call it in errors
        start: first byte of the archive in the file
        size: of the archive [bytes]; None: up to the end of the file

    Attributes:
        value: dicts, lists, numbers, texts; `StoredTensor` where a tensor is; `Named` where another object is

    Raises:
        InputError: it is of a torch before 1.6, or of a machine with another order of bytes
        CorruptDataError: it is no whole archive
    """

    def __init__(self, file: Reading, source: str, *, start: int = 0, size: int | None = None) -> None:
        self._source = source
        self._size = file.size - start if size is None else size
        if start < 0 or self._size < 0 or start + self._size > file.size:
            self._refuse("it ends before its end")
        self._last: tuple[str, torch.Tensor] | None = None
        self._records: dict[str, zipfile.ZipInfo] = {}
        self._zip = self._open(_Window(file, start, self._size))
        pickled = self._record("data.pkl")
        if pickled.file_size > MOST_BYTES:
            self._refuse(f"its pickle has {pickled.file_size:,} bytes")
        if "byteorder" in self._records and bytes(self._bytes(self._record("byteorder"))) != b"little":
            raise InputError(
                f"{source} was written by a machine with another order of bytes: load it there, and save it as "
                "safetensors",
                code="weights.byte-order",
                path=source,
            )
        content = bytes(self._bytes(pickled))
        self.value = _Resolved(source).of(read_pickle(content, source=source, persistent=self._persistent))

    def _open(self, window: "_Window") -> zipfile.ZipFile:
        window.seek(0)
        start = window.read(4)
        if start[:2] != b"PK":
            raise InputError(
                f"{self._source} is no archive of torch.save; files of a torch before 1.6 are pickles from the first "
                "byte. Load it with torch.load(..., weights_only=True), and save it as safetensors",
                code="weights.old-pickle",
                path=self._source,
            )
        try:
            found = zipfile.ZipFile(window)
            roots = [one.filename[: -len("data.pkl")] for one in found.infolist() if one.filename.endswith("/data.pkl")]
            if len(roots) != 1:
                self._refuse("it has no pickle, or several")
            for one in found.infolist():
                if one.filename.startswith(roots[0]):
                    self._records[one.filename[len(roots[0]) :]] = one
        except _BROKEN as error:
            self._refuse(str(error) or type(error).__name__)
        return found

    def _record(self, name: str) -> zipfile.ZipInfo:
        found = self._records.get(name)
        if found is None:
            self._refuse(f"it has no record {name!a}")
        if found.compress_type != zipfile.ZIP_STORED or not 0 <= found.file_size <= self._size:
            self._refuse(f"its record {name!a} is compressed, or larger than the file")
        return found

    def _bytes(self, record: zipfile.ZipInfo) -> torch.Tensor | bytearray:
        """The content of a record, compared with its checksum."""
        content = bytearray(record.file_size)
        self._fill(memoryview(content), record)
        return content

    def _fill(self, target: memoryview, record: zipfile.ZipInfo) -> None:
        try:
            with self._zip.open(record) as stream:
                done = 0
                # The checksum is compared when the end is read.
                while part := stream.read(_AT_A_TIME):
                    target[done : done + len(part)] = part
                    done += len(part)
        except _BROKEN as error:
            self._refuse(f"its record {record.filename!a} is damaged ({error})")
        if done != len(target):
            self._refuse(f"its record {record.filename!a} is cut short")

    def _persistent(self, said: Any) -> _Storage:
        if not isinstance(said, tuple) or len(said) != 5 or said[0] != "storage" or not isinstance(said[1], Named):
            self._refuse("it refers to what is no storage")
        dtype = _STORAGES.get(said[1].name.rpartition(".")[2])
        if dtype is None or not isinstance(said[2], str):
            self._refuse(f"it has a storage {said[1].name}")
        return _Storage(said[2], dtype)

    def tensor(self, stored: StoredTensor) -> torch.Tensor:
        """A copy of a tensor; its storage is compared with its checksum.

        Args:
            stored: of `value`

        Raises:
            CorruptDataError: the storage is damaged, or has no such tensor
        """
        record = self._record(f"data/{stored.storage}")
        form, size = stored.form, record.file_size
        if form.nbytes > size or _end(stored) * form.dtype.itemsize > size or size % form.dtype.itemsize:
            self._refuse(f"its record {record.filename!a} of {size} bytes has no tensor {form}")
        if self._last is None or self._last[0] != stored.storage:
            # Memory for the next one is taken when that of the one before has been given back.
            self._last = None
            content = torch.empty(size, dtype=torch.uint8)
            if size:
                self._fill(content.numpy().data, record)
            self._last = (stored.storage, content)
        elements = self._last[1].view(form.dtype)
        found = elements.as_strided(form.shape, stored.stride, stored.offset)
        return found.clone(memory_format=torch.contiguous_format)

    def verify(self) -> None:
        """Compare every storage with its checksum.

        Raises:
            CorruptDataError: one is damaged
        """
        for name in self._records:
            if name.startswith("data/"):
                try:
                    with self._zip.open(self._record(name)) as stream:
                        while stream.read(_AT_A_TIME):
                            pass
                except _BROKEN as error:
                    self._refuse(f"its record {name!a} is damaged ({error})")

    def _refuse(self, what: str) -> NoReturn:
        raise CorruptDataError(
            f"{self._source} is damaged, or no archive of torch.save: {what}. Take another copy of it",
            code="weights.damaged-archive",
            path=self._source,
            what=what,
        )


_BROKEN = (
    *(zipfile.BadZipFile, OSError, EOFError, ValueError, RuntimeError, NotImplementedError, KeyError, IndexError),
    *(TypeError, OverflowError, UnicodeError, AttributeError),
)
"""What `zipfile` raises where an archive is damaged."""


def _end(stored: StoredTensor) -> int:
    """Index after the last element of a tensor in its storage."""
    if not math.prod(stored.form.shape):
        return 0
    steps = zip(stored.form.shape, stored.stride, strict=True)
    return stored.offset + 1 + sum((size - 1) * stride for size, stride in steps)


class _Window(io.RawIOBase):
    """A part of a file, for `zipfile`: what it reads at once is bounded."""

    def __init__(self, file: Reading, start: int, size: int) -> None:
        super().__init__()
        self._file, self._start, self._size, self._place = file, start, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError("a place before the start")
        self._place = base + offset
        return self._place

    def tell(self) -> int:
        return self._place

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._size - self._place)
        count = left if size is None or size < 0 else min(size, left)
        if count > _LARGEST_DIRECTORY:
            raise ValueError(f"a list of records of {count:,} bytes")
        content = bytearray(count)
        done = self._file.read_into(memoryview(content), self._start + self._place)
        self._place += done
        return bytes(content[:done])


class _Resolved:
    """The value of a pickle with tensors in the place of the functions that would make them."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._left = 4_000_000

    def of(self, value: Any, depth: int = 0) -> Any:
        self._left -= 1
        if depth > 20 or self._left < 0:
            raise CorruptDataError(
                f"{self._source} has values inside of each other, more than 20 deep, or too many of them",
                code="weights.too-deep",
                path=self._source,
            )
        kind = type(value)
        if kind is dict:
            return {key: self.of(one, depth + 1) for key, one in value.items()}
        if kind is list:
            return [self.of(one, depth + 1) for one in value]
        if kind is tuple:
            return tuple(self.of(one, depth + 1) for one in value)
        return self._object(value, depth) if kind is Named else value

    def _object(self, value: Named, depth: int) -> Any:
        arguments = value.arguments
        if arguments is None:
            dtype = getattr(torch, value.name.removeprefix("torch."), None) if value.name.startswith("torch.") else None
            return dtype if isinstance(dtype, torch.dtype) else value
        if value.name in ("torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state"):
            return self.of(arguments[0], depth + 1) if arguments else value
        if value.name == "torch.Size":
            return tuple(arguments[0]) if len(arguments) == 1 and isinstance(arguments[0], tuple | list) else value
        if value.name == "torch._utils._rebuild_tensor_v2" and 6 <= len(arguments) <= 7:
            return self._tensor(arguments[:4], None, arguments[6:])
        if value.name == "torch._utils._rebuild_tensor_v3" and 7 <= len(arguments) <= 8:
            return self._tensor(arguments[:4], self.of(arguments[6], depth + 1), arguments[7:])
        return value

    def _tensor(self, arguments: tuple[Any, ...], dtype: Any, metadata: tuple[Any, ...]) -> StoredTensor:
        storage, offset, shape, stride = arguments
        shape = self.of(shape)
        found = dtype if dtype is not None else storage.dtype if isinstance(storage, _Storage) else None
        numbers = isinstance(shape, tuple) and isinstance(stride, tuple) and len(shape) == len(stride) <= _MOST_DIMS
        if (
            not numbers
            or not isinstance(storage, _Storage)
            or not isinstance(found, torch.dtype)
            or not all(type(one) is int and 0 <= one < 2**59 for one in (offset, *shape, *stride))
            or math.prod(max(1, one) for one in shape) >= 2**59
            or any(metadata)
        ):
            raise CorruptDataError(
                f"{self._source} has a tensor that is none, or is a view that is conjugated or negated",
                code="weights.no-tensor",
                path=self._source,
            )
        return StoredTensor(storage.key, Form(shape, found), offset, stride)


# ---------------------------------------------------------------------------------------------------------------------
# The state of a training in a value

_MODEL = ("model", "state_dict", "model_state_dict", "module")
_OPTIMIZER = ("optimizer", "optim", "optimizer_state_dict")


def open_pickled(path: Path) -> Content:
    """Weights in a file of `torch.save`: a `state_dict`, or a dict that has one, and perhaps that of the optimizer.

    Args:
        path: of the file

    Raises:
        InputError: it is of a kind that is not read
        CorruptDataError: it is damaged, or has no weights
    """
    source = str(path)
    try:
        file = LocalDisk().open(path.resolve())
    except OSError as error:
        raise CorruptDataError(
            f"{path} cannot be read: {reason_of(error)}", code="weights.unreadable-archive", path=source
        ) from error
    with closing_on_error(file.close):
        archive = Archive(file, source)
        model, optimizer = _parts(archive.value)
        if model is None:
            raise InputError(
                f"{source} has no weights: a dict of tensors by name was expected, or one under "
                f"{', '.join(_MODEL)}. Save model.state_dict()",
                code="weights.no-state-dict",
                path=source,
            )

        def read(name: str) -> torch.Tensor:
            return archive.tensor(model[name])

        return Content(
            source=source,
            kind="file of torch.save",
            forms={name: one.form for name, one in model.items()},
            read=read,
            optimizer=None if optimizer is None else _optimizer(optimizer, archive, source),
            verify=archive.verify,
            has_checksums=True,
            close=file.close,
        )


def _parts(value: Any) -> tuple[dict[str, StoredTensor] | None, Any]:
    if not isinstance(value, dict):
        return None, None
    if _is_state_dict(value):
        return value, None
    models = [value[key] for key in _MODEL if key in value and _is_state_dict(value[key])]
    optimizers = [value[key] for key in _OPTIMIZER if isinstance(value.get(key), dict)]
    return (models[0] if models else None), (optimizers[0] if optimizers else None)


def _is_state_dict(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and bool(value)
        and all(isinstance(name, str) and isinstance(one, StoredTensor) for name, one in value.items())
    )


def _optimizer(value: dict[str, Any], archive: Archive, source: str) -> OptimizerContent:
    """The state of an optimizer as `state_dict` has it, by numbers, or by names as `get_optimizer_state_dict` has."""
    states, groups = value.get("state"), value.get("param_groups")
    members = (str, int)
    if (
        not isinstance(states, dict)
        or not isinstance(groups, list)
        or not all(isinstance(one, members) and isinstance(kept, dict) for one, kept in states.items())
        or not all(isinstance(key, str) for kept in states.values() for key in kept)
        or not all(isinstance(one, dict) and isinstance(one.get("params"), list) for one in groups)
        or not all(isinstance(member, members) for one in groups for member in one["params"])
    ):
        raise CorruptDataError(
            f'{source} has an optimizer\'s state without "state" and "param_groups" as torch\'s optimizers have them',
            code="weights.no-optimizer-state",
            path=source,
        )

    def read(member: Member, key: str) -> torch.Tensor:
        return archive.tensor(states[member][key])

    return OptimizerContent(
        states={
            member: {key: one.form if isinstance(one, StoredTensor) else one for key, one in kept.items()}
            for member, kept in states.items()
        },
        groups=tuple(_group(one, archive) for one in groups),
        read=read,
    )


def _group(plain: dict[str, Any], archive: Archive) -> Group:
    """A group, whose parameters are numbers or names, as those of the states are."""
    options = {
        key: archive.tensor(one) if isinstance(one, StoredTensor) and one.form.like().numel() <= 1 else one
        for key, one in plain.items()
        if key != "params"
    }
    return Group(options=options, members=tuple(plain["params"]))
