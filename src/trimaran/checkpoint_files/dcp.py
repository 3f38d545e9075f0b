"""Directories of `torch.distributed.checkpoint` (DCP): their metadata as its classes alone, their chunks by `archives`.

    .metadata           a pickle: of each tensor its shape, dtype and chunks; of each chunk its file, place and length
    __0_0.distcp …      chunks, each an archive of `torch.save`

`dcp.load` unpickles `.metadata`, and values that are no tensors, whatever they name; here other names are refused.

Names are those of `torch.distributed.checkpoint.state_dict.get_state_dict`: `model.NAME`, `optim.state.NAME.KEY`,
`optim.param_groups.0.lr`; so `dcp.load({"model": …, "optim": …})` of a user's model and optimizer reads what is written
here, on any number of ranks. Read are also a `state_dict` that was saved as it is, states under one more name, such as
"app", and optimizers that were flattened.
"""

import io
import math
import pickle
import warnings
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any, NamedTuple, NoReturn

import torch

from trimaran.base.errors import CorruptDataError, InputError
from trimaran.base.files import is_file
from trimaran.checkpoint_files.archives import MOST_BYTES, check_pickle, copied, guarded, load_archive
from trimaran.checkpoint_files.content import Content, Form, Member, OptimizerContent, OptimizerGroup
from trimaran.checkpoint_files.disk import LocalDisk, read_bounded

METADATA = ".metadata"
_OPTIMIZER = ("optim", "optimizer")
_MOST_OPEN = 2000
_CLASSES = {
    "torch.distributed.checkpoint.metadata": (
        *("Metadata", "MetadataIndex", "StorageMeta", "TensorProperties", "_MEM_FORMAT_ENCODING"),
        *("TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata"),
    ),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
    "torch.serialization": ("_get_layout",),
    "torch": ("Size",),
    "collections": ("OrderedDict",),
}


class _Unpickler(pickle.Unpickler):
    """Makes what metadata is made of, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] == "pathlib":
            # Where it was saved, perhaps on another system.
            return PurePath
        dtype = getattr(torch, name, None) if module == "torch" else None
        if not isinstance(dtype, torch.dtype) and name not in _CLASSES.get(module, ()):
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return super().find_class(module, name)


class _Chunk(NamedTuple):
    """A box of a tensor, and where it is; of a value that is no tensor all of it."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    start: int
    length: int


class _Entry(NamedTuple):
    """A tensor or, without a form, a value, and the chunks of it."""

    form: Form | None
    chunks: tuple[_Chunk, ...]


class _Directory:
    """A directory that is read.

    Args:
        path: of it
    """

    def __init__(self, path: Path) -> None:
        self.source, self._path = str(path), path.resolve()
        with guarded(f"{path}/{METADATA}"):
            content = read_bounded(LocalDisk(), self._path / METADATA, MOST_BYTES)
            check_pickle(content, f"{path}/{METADATA}", is_known=bool)
            self.entries, self.paths = self._decode(_Unpickler(io.BytesIO(content)).load())

    def refuse(self, what: str) -> NoReturn:
        raise CorruptDataError(
            f"{self.source} is damaged, or no directory of torch.distributed.checkpoint: {what}. Take another copy of "
            "it",
            code="weights.damaged-dcp",
            path=self.source,
            what=what,
        )

    def _decode(self, metadata: Any) -> tuple[dict[str, _Entry], dict[str, tuple[str | int, ...]]]:
        places: dict[tuple[str, tuple[int, ...] | None], tuple[str, int, int]] = {}
        for index, info in metadata.storage_data.items():
            places[index.fqn, None if index.offset is None else _sizes(index.offset)] = self._place(info)
        entries: dict[str, _Entry] = {}
        for name, one in metadata.state_dict_metadata.items():
            if not isinstance(name, str):
                self.refuse("a name that is no text")
            if not hasattr(one, "chunks"):
                entries[name] = _Entry(None, (_Chunk((), (), *places[name, None]),))
                continue
            form = Form(_sizes(one.size), one.properties.dtype)
            if not isinstance(form.dtype, torch.dtype) or math.prod(max(1, size) for size in form.shape) >= 2**59:
                self.refuse(f"{name!a} has a shape that no memory holds, or no dtype")
            boxes = [(_sizes(chunk.offsets), _sizes(chunk.sizes)) for chunk in one.chunks]
            try:
                _check_covered(name, form.shape, boxes)
            except ValueError as error:
                self.refuse(str(error))
            chunks = [_Chunk(low, sizes, *places[name, low]) for low, sizes in boxes if math.prod(sizes)]
            entries[name] = _Entry(form, tuple(chunks))
        planned = metadata.planner_data
        paths = {name: _path(planned[name]) if planned and name in planned else (name,) for name in entries}
        return entries, paths

    def _place(self, info: Any) -> tuple[str, int, int]:
        file, start, length = info.relative_path, info.offset, info.length
        if not isinstance(file, str) or Path(file).name != file or file in ("", ".", ".."):
            self.refuse(f"the name of a file {file!a}")
        if type(start) is not int or type(length) is not int or start < 0 or length < 0:
            self.refuse(f"a place in {file!a}")
        # Of an older torch it has none.
        if getattr(info, "transform_descriptors", None):
            raise InputError(
                f"{self.source} is compressed or changed by extensions of DCP: load it with dcp.load, and save it "
                "without them",
                code="weights.dcp-extensions",
                path=self.source,
            )
        return file, start, length

    def _load(self, chunk: _Chunk) -> Any:
        source = f"{self.source}/{chunk.file}"
        if not is_file(self._path / chunk.file):
            self.refuse(f"{chunk.file!a} is no file")
        with guarded(source), (self._path / chunk.file).resolve().open("rb") as file:
            if chunk.start + chunk.length > file.seek(0, io.SEEK_END):
                self.refuse(f"{chunk.file!a} ends before its end")
            file.seek(chunk.start)
            return load_archive(io.BytesIO(file.read(chunk.length)), source)

    def tensor(self, name: str) -> torch.Tensor:
        """A whole tensor, put together from its chunks."""
        entry = self.entries[name]
        form = entry.form
        if form is None:
            self.refuse(f"{name!a} is no tensor")
        whole: torch.Tensor | None = None
        for chunk in entry.chunks:
            part = self._part(name, form, chunk)
            if part.shape == torch.Size(form.shape):
                return copied(part)
            if whole is None:
                whole = torch.empty(form.shape, dtype=form.dtype)
            box = tuple(slice(low, low + size) for low, size in zip(chunk.offsets, chunk.sizes, strict=True))
            whole[box] = part
        return torch.empty(form.shape, dtype=form.dtype) if whole is None else whole

    def _part(self, name: str, form: Form, chunk: _Chunk) -> torch.Tensor:
        part = self._load(chunk)
        if not isinstance(part, torch.Tensor) or Form(tuple(part.shape), part.dtype) != Form(chunk.sizes, form.dtype):
            self.refuse(f"a chunk of {name!a} is not {Form(chunk.sizes, form.dtype)}")
        return part

    def value(self, name: str) -> Any:
        """A value that is no tensor."""
        return self._load(self.entries[name].chunks[0])

    def verify(self) -> None:
        """Read every chunk."""
        for name, entry in self.entries.items():
            for chunk in entry.chunks:
                if entry.form is None:
                    self._load(chunk)
                else:
                    self._part(name, entry.form, chunk)


def _sizes(value: Any) -> tuple[int, ...]:
    """The numbers of a `torch.Size`."""
    if not isinstance(value, tuple | list) or not all(type(one) is int and 0 <= one < 2**59 for one in value):
        raise ValueError("a shape that is none")
    if len(value) > 64:
        raise ValueError(f"a shape of {len(value)} dims")
    return tuple(value)


def _path(value: Any) -> tuple[str | int, ...]:
    if not isinstance(value, tuple | list) or not value or not all(isinstance(one, str | int) for one in value):
        raise ValueError("a path of a name that is none")
    return tuple(value)


def _check_covered(name: str, shape: tuple[int, ...], boxes: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> None:
    """Whether boxes are inside of a tensor, and make up all of it without overlapping."""
    for low, sizes in boxes:
        if not len(low) == len(sizes) == len(shape) or any(
            start + size > whole for start, size, whole in zip(low, sizes, shape, strict=True)
        ):
            raise ValueError(f"a chunk of {name!a} is not inside of it")
    filled = [(low, sizes) for low, sizes in boxes if math.prod(sizes)]
    if sum(math.prod(sizes) for _, sizes in filled) != math.prod(shape):
        raise ValueError(f"the chunks of {name!a} do not make it up")
    if not shape or len(filled) < 2:
        return
    # Along the dim of most chunks, so that few are open at a place.
    dim = max(range(len(shape)), key=lambda one: len({low[one] for low, _ in filled}))
    open_here: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    for low, sizes in sorted(filled, key=lambda box: box[0][dim]):
        open_here = [box for box in open_here if box[0][dim] + box[1][dim] > low[dim]]
        if len(open_here) > _MOST_OPEN:
            raise ValueError(f"over {_MOST_OPEN} chunks of {name!a} lie side by side")
        for other, extent in open_here:
            apart = any(
                start + size <= begin or begin + length <= start
                for start, size, begin, length in zip(low, sizes, other, extent, strict=True)
            )
            if not apart:
                raise ValueError(f"chunks of {name!a} overlap")
        open_here.append((low, sizes))


def open_dcp(path: Path) -> Content:
    """Weights, and the state of an optimizer where there is one, in a directory of DCP.

    Args:
        path: of the directory

    Raises:
        InputError: it is of a kind that is not read
        CorruptDataError: it is damaged
    """
    directory = _Directory(path)
    model, kept = _sorted_out(directory)
    if not model:
        raise InputError(
            f"{path} has no tensors of a model: names that begin with model. were expected, or the names of a "
            "state_dict",
            code="weights.dcp-without-model",
            path=str(path),
        )
    forms = {name: _form(directory, key) for name, key in model.items()}
    return Content(
        source=str(path),
        kind="directory of torch.distributed.checkpoint",
        forms=forms,
        read=lambda name: directory.tensor(model[name]),
        optimizer=_optimizer(directory, kept, list(forms)) if kept else None,
        verify=directory.verify,
        has_checksums=True,
    )


def _form(directory: _Directory, name: str) -> Form:
    form = directory.entries[name].form
    if form is None:
        raise InputError(
            f"{directory.source} has {name!a} for the model, which is no tensor: a model that begins from weights has "
            "parameters and buffers. Save it without that",
            code="weights.dcp-no-tensor",
            path=directory.source,
            tensor=name,
        )
    return form


def _sorted_out(directory: _Directory) -> tuple[dict[str, str], dict[tuple[str | int, ...], str]]:
    """The names of the model's tensors, and the paths of what is of the optimizer, with their keys in the directory."""
    paths = {}
    for key, found in directory.paths.items():
        # A program may put both under one more name.
        inner = len(found) > 2 and found[0] not in ("model", *_OPTIMIZER) and found[1] in ("model", *_OPTIMIZER)
        paths[key] = found[1:] if inner else found
    nested = any(len(found) > 1 and found[0] == "model" for found in paths.values())
    model: dict[str, str] = {}
    kept: dict[tuple[str | int, ...], str] = {}
    for key, found in paths.items():
        if len(found) > 1 and found[0] in _OPTIMIZER:
            kept[found[1:]] = key
        elif nested and found[0] == "model":
            model[".".join(map(str, found[1:]))] = key
        elif not nested and len(found) == 1 and directory.entries[key].form is not None:
            model[str(found[0])] = key
    return model, kept


def _optimizer(directory: _Directory, kept: Mapping[tuple[str | int, ...], str], names: list[str]) -> OptimizerContent:
    """The state of an optimizer by names; of a flattened one the last part of a name is the key."""
    states: dict[Member, dict[str, Any]] = {}
    keys: dict[tuple[Member, str], str] = {}
    options: dict[int, dict[str, Any]] = {}
    for path, key in kept.items():
        if path[0] == "param_groups" and len(path) == 3 and type(path[1]) is int:
            is_tensor = directory.entries[key].form is not None
            options.setdefault(path[1], {})[str(path[2])] = directory.tensor(key) if is_tensor else directory.value(key)
            continue
        if path[0] == "state" and len(path) == 3:
            member, state = path[1], str(path[2])
        elif len(path) == 1 and str(path[0]).startswith("state."):
            member, _, state = str(path[0]).removeprefix("state.").rpartition(".")
        else:
            continue
        form = directory.entries[key].form
        states.setdefault(member, {})[state] = directory.value(key) if form is None else form
        keys[member, state] = key
    groups = tuple(_group(directory, options[number]) for number in sorted(options))
    return OptimizerContent(states=states, groups=groups, read=lambda member, key: directory.tensor(keys[member, key]))


def _group(directory: _Directory, options: dict[str, Any]) -> OptimizerGroup:
    members = options.pop("params", None)
    if not isinstance(members, list) or not all(isinstance(one, str | int) for one in members):
        directory.refuse("a group of the optimizer has no names of parameters")
    return OptimizerGroup(options=options, members=tuple(members))


# ---------------------------------------------------------------------------------------------------------------------
# Written


def write_dcp(content: Content, folder: Path, *, optimizer: bool) -> None:
    """Write a directory that `dcp.load` reads, one tensor after the other.

    Args:
        content: what is written
        folder: that is there, and empty
        optimizer: with the state of the optimizer, under its names

    Raises:
        OSError: it cannot be written
    """
    # It takes long to import.
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.planner import WriteItem, WriteItemType
    from torch.distributed.checkpoint.state_dict_saver import save

    reads: dict[str, Any] = {}
    state: dict[str, Any] = {"model": {}}
    for name, form in content.forms.items():
        state["model"][name] = form.like()
        reads[f"model.{name}"] = (content.read, content.ties.get(name, name))
    if optimizer and content.optimizer is not None:
        state["optim"] = _of_names(content.optimizer, reads)

    class Planner(DefaultSavePlanner):
        """Reads a tensor when it is written."""

        def resolve_data(self, write_item: WriteItem) -> torch.Tensor | io.BytesIO:
            """Of an item, its content."""
            if write_item.type == WriteItemType.BYTE_IO or write_item.index.fqn not in reads:
                return super().resolve_data(write_item)
            read, *arguments = reads[write_item.index.fqn]
            found: torch.Tensor = read(*arguments)
            return found

    with warnings.catch_warnings():
        # That it saves as one process, which is meant.
        warnings.simplefilter("ignore")
        writer = FileSystemWriter(folder, sync_files=True, thread_count=1)
        try:
            save(state, storage_writer=writer, planner=Planner(), no_dist=True)
        except CheckpointException as error:
            # The cause of it, which may be a signal.
            raise next((cause for cause, _ in error.failures.values()), error) from error


def _of_names(optimizer: OptimizerContent, reads: dict[str, Any]) -> dict[str, Any]:
    """The state of an optimizer as `get_state_dict` has it."""
    states: dict[str, Any] = {}
    for member, kept in optimizer.states.items():
        states[str(member)] = {key: one.like() if isinstance(one, Form) else one for key, one in kept.items()}
        for key, one in kept.items():
            if isinstance(one, Form):
                reads[f"optim.state.{member}.{key}"] = (optimizer.read, member, key)
    groups = [dict(group.options) | {"params": list(group.members)} for group in optimizer.groups]
    return {"state": states, "param_groups": groups}
