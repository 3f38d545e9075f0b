"""What `torch.save` writes, read by torch itself: tensors and plain values, and no object of any other class.

    archive/data.pkl       the value; a tensor in it is a place in a storage, its shape and its strides
    archive/data/0 …       storages, not compressed

`torch.load(weights_only=True)` calls a few functions of torch that the pickle names, and believes what it says of
sizes. So before that the archive and its pickle are looked through: nothing is compressed, all is of the size that it
says, the names are those of tensors, the values few enough, and no key is so deep that hashing it ends the process.
Checksums of the archive, which torch does not look at, are compared before a tensor is given away.
"""

import functools
import math
import pickletools
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NoReturn

import torch

from trimaran.base.errors import CorruptDataError, InputError, TrimaranError
from trimaran.base.files import is_file
from trimaran.checkpoint_files.content import Content, Form, Member, OptimizerContent, OptimizerGroup

MOST_BYTES = 256 * 2**20
"""Of a pickle [bytes]."""

_MOST_VALUES = 8_000_000
"""Instructions of a pickle: a value of one byte takes some 80 bytes of memory."""
_DEEPEST = 64
"""Of tuples in tuples, which the interpreter hashes as deep as they are."""
_NAMED = -1
_NAMES = {
    *("collections OrderedDict", "torch Size", "torch.nn.parameter Parameter"),
    *(f"torch._utils _rebuild_{name}" for name in ("tensor_v2", "tensor_v3", "parameter")),
}


def refuse(source: str, what: str) -> NoReturn:
    """Say that a file is damaged."""
    raise CorruptDataError(
        f"{source} is damaged, or was not written by torch: {what}. Take another copy of it",
        code="weights.damaged-archive",
        path=source,
        what=what,
    )


@contextmanager
def guarded(source: str) -> Iterator[None]:
    """Turn whatever a foreign reader raises into the error of a damaged file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except TrimaranError:
        raise
    except Exception as error:  # noqa: BLE001 readers of zip archives, of pickles and of tensors raise all kinds
        lines = str(error).strip().splitlines()
        refuse(source, f"{type(error).__name__}{f' ({lines[0][:200]})' if lines else ''}")


def check_pickle(content: bytes, source: str, is_known: Callable[[str], bool]) -> None:
    """Refuse a pickle that takes more memory than its values, or names something else than tensors are made of.

    Args:
        content: of the pickle
        source: what to call it in errors
        is_known: whether "module name" may be named; names that are put together are not looked at

    Raises:
        CorruptDataError: it is none
        InputError: it names something else

    Example:
        >>> import pickle
        >>> check_pickle(pickle.dumps({"lr": [0.1, 2], 3: (None, True)}), "here", is_known=bool)
    """
    # How deep tuples are in each value; -1: what GLOBAL names; None: a mark.
    stack: list[int | None] = []
    kept: dict[int, int] = {}
    argument: Any
    for count, (code, argument, _) in enumerate(pickletools.genops(content)):
        if count > _MOST_VALUES:
            refuse(source, "its pickle has too many values")
        if code.name == "GLOBAL" and not is_known(argument):
            name = argument[:200].replace(" ", ".")
            raise InputError(
                f"{source} has an object of {name}, and files of torch.save are read as tensors "
                "and plain values. Load it where you trust it, with torch.load(..., weights_only=False), and save "
                "model.state_dict() alone, or as safetensors",
                code="weights.other-objects",
                path=source,
                name=name,
            )
        taken = [0]
        before = [one for one in code.stack_before if one is not pickletools.stackslice]
        if pickletools.markobject in before:
            while (depth := stack.pop()) is not None:
                taken.append(depth)
            before = before[: before.index(pickletools.markobject)]
        taken += [stack.pop() or 0 for _ in before]
        depth = max(taken) + (code.name.startswith("TUPLE") or code.name == "FROZENSET")
        if code.name in ("REDUCE", "NEWOBJ") and taken[-1] != _NAMED:
            # torch's own error takes a time that grows with the square of its text.
            refuse(source, "it calls what is no class or function")
        if "GLOBAL" in code.name:
            depth = _NAMED
        elif "GET" in code.name:
            depth = kept[argument]
        elif "PUT" in code.name:
            # Who reads it makes room for all numbers up to this one.
            if argument > count:
                refuse(source, "its pickle keeps more values than it has")
            kept[argument] = stack[-1] or 0
        elif code.name == "MEMOIZE":
            kept[len(kept)] = depth = taken[-1]
        if depth > _DEEPEST:
            refuse(source, f"it has tuples inside of each other, more than {_DEEPEST} deep")
        stack += [None if one is pickletools.markobject else depth for one in code.stack_after]


@functools.cache
def is_name_of_tensors(name: str) -> bool:
    """Whether a pickle of tensors may name this, as "module name"."""
    module, _, inside = name.partition(" ")
    found = getattr({"torch": torch, "torch.storage": torch.storage}.get(module), inside, None)
    return name in _NAMES or isinstance(found, torch.dtype) or (isinstance(found, type) and "Storage" in inside)


def load_archive(file: Path | IO[bytes], source: str, *, verifies: bool = True) -> Any:
    """The value of an archive; of a path its tensors are mapped.

    Args:
        file: path, or what has the archive alone
        source: what to call it in errors
        verifies: compare its checksums

    Raises:
        InputError: it is of a torch before 1.6, or has objects of other classes
        CorruptDataError: it is no whole archive
    """
    with guarded(source):
        with zipfile.ZipFile(file) as archive:
            records = archive.infolist()
            pickled = [one for one in records if one.filename.endswith("/data.pkl")]
            if len(pickled) != 1 or pickled[0].file_size > MOST_BYTES:
                refuse(source, "it has no pickle, several, or one that is too large")
            if any(one.compress_type != zipfile.ZIP_STORED or one.file_size > one.compress_size for one in records):
                refuse(source, "it has a record that is compressed")
            check_pickle(archive.read(pickled[0]), source, is_name_of_tensors)
            if verifies:
                verify_records(archive, source)
        if not isinstance(file, Path):
            file.seek(0)
        value = torch.load(file, map_location="cpu", weights_only=True, mmap=isinstance(file, Path))
        stored = {
            one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in _tensors(value, [_MOST_VALUES])
        }
        # torch makes a storage larger where a tensor says that it is.
        if sum(stored.values()) > sum(one.file_size for one in records):
            refuse(source, "it has tensors that are larger than it is")
    return value


def verify_records(archive: zipfile.ZipFile, source: str) -> None:
    """Compare the checksums of an archive."""
    damaged = archive.testzip()
    if damaged is not None:
        refuse(source, f"its record {damaged!a} is damaged")


def _tensors(value: Any, left: list[int], depth: int = 0) -> Iterator[torch.Tensor]:
    left[0] -= 1
    if depth > 20 or left[0] < 0:
        raise ValueError("it has values inside of each other, more than 20 deep, or too many of them")
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for inside in value.values() if isinstance(value, dict) else value:
            yield from _tensors(inside, left, depth + 1)


def form_of(tensor: torch.Tensor, source: str) -> Form:
    """Shape and dtype of a tensor that was loaded.

    Raises:
        CorruptDataError: it has more elements than its storage
    """
    form = Form(tuple(tensor.shape), tensor.dtype)
    if math.prod(form.shape) * tensor.dtype.itemsize > tensor.untyped_storage().nbytes():
        refuse(source, f"it has a tensor {form}, for which there is no storage")
    return form


def copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor that was loaded, row-major."""
    return tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)


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
    if not is_file(path):
        refuse(source, "it is no file")
    with guarded(source), path.open("rb") as file:
        head = file.read(2)
    if head != b"PK":
        raise InputError(
            f"{source} is no archive of torch.save; files of a torch before 1.6 are pickles from the first byte. Load "
            "it with torch.load(..., weights_only=True), and save it as safetensors",
            code="weights.old-pickle",
            path=source,
        )
    value = load_archive(path, source, verifies=False)
    model, optimizer = _parts(value)
    if model is None:
        raise InputError(
            f"{source} has no weights: a dict of tensors by name was expected, or one under {', '.join(_MODEL)}. Save "
            "model.state_dict()",
            code="weights.no-state-dict",
            path=source,
        )

    @functools.cache
    def verify() -> None:
        with guarded(source), zipfile.ZipFile(path) as archive:
            verify_records(archive, source)

    def read(tensor: torch.Tensor) -> torch.Tensor:
        verify()
        return copied(tensor)

    return Content(
        source=source,
        kind="file of torch.save",
        forms={name: form_of(one, source) for name, one in model.items()},
        read=lambda name: read(model[name]),
        optimizer=None if optimizer is None else _optimizer(optimizer, read, source),
        verify=verify,
        has_checksums=True,
    )


def _parts(value: Any) -> tuple[dict[str, torch.Tensor] | None, Any]:
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
        and all(isinstance(name, str) and isinstance(one, torch.Tensor) for name, one in value.items())
    )


def _optimizer(value: dict[str, Any], read: Callable[[torch.Tensor], torch.Tensor], source: str) -> OptimizerContent:
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

    def read_state(member: Member, key: str) -> torch.Tensor:
        return read(states[member][key])

    def group(plain: dict[str, Any]) -> OptimizerGroup:
        options = {key: read(one) if isinstance(one, torch.Tensor) else one for key, one in plain.items()}
        return OptimizerGroup(options=options, members=tuple(options.pop("params")))

    return OptimizerContent(
        states={
            member: {key: form_of(one, source) if isinstance(one, torch.Tensor) else one for key, one in kept.items()}
            for member, kept in states.items()
        },
        groups=tuple(map(group, groups)),
        read=read_state,
    )
