"""What a script saves and loads again, without a file being written.

A checkpoint of tensors without data would replace a real one by nothing, so none is written: what was saved is kept in
this process under its path, is said to exist, and is what loading that path gives; listings of folders lack it.
Tensors are kept as they would lie on a disk: apart from the device's memory, with their values where these are known.
Ranks that are rehearsed side by side find what the others saved in the folder where they meet.
"""

import builtins
import contextlib
import copyreg
import dataclasses
import hashlib
import io
import itertools
import mmap
import os
import pickle
import re
import shutil
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from trimaran.rehearsal.device.replaced import replace, when_imported
from trimaran.rehearsal.recorder import ScriptRecorder, nbytes_of
from trimaran.rehearsal.request import REMOVED, UNFINISHED, RankRequest
from trimaran.rehearsal.tensors import FAKE
from trimaran.rehearsal.values import set_twin, twin_of

MOST_WAIT_S = 20.0
"""For another rank to save what this one loads [s]."""

_MOST_SOUGHT = 10_000
"""Paths of which it is noted that no file was found."""

_CACHE = re.compile("CACHE|^(HF|TORCH)_H")
"""Variables of folders that are caches, those of Hugging Face's libraries and torch.hub among them."""

_TOKEN, _LENGTH = b"trimaran rehearsal ", 39
"""What is written into a buffer or an open file, with a number behind it, and the length of both [bytes]."""


class SavedFiles:
    """Keeps what is saved.

    Args:
        recorder: notes that nothing was written
        request: where ranks meet, and how long one waits for another
    """

    def __init__(self, recorder: ScriptRecorder, request: RankRequest) -> None:
        self._recorder = recorder
        self._meeting = Path(request.meeting) if len(request.together) > 1 else None
        self._patience_s = request.patience_s
        self._rank = request.rank
        self._awaited = request.awaited
        self._counted, self._calls_of_all = 0, 0
        self._folders = request.made_folders
        self._made: set[str] = set()
        self._began = time.time()
        self._values: dict[str, Any] = {}
        self._bytes: dict[str, int] = {}
        self._numbers = itertools.count()
        self._load, self._open = torch.load, builtins.open
        self._copy, self._remove, self._rename = shutil.copyfile, os.unlink, os.replace
        self._scratch = tempfile.gettempdir()
        self._ours = (self._scratch, request.meeting, str(Path(request.record).parent))

    def install(self) -> None:
        """Take the place of torch's and safetensors' functions, and of the file system's where they look for files."""
        copyreg.pickle(FakeTensor, _parts_of)
        copyreg.pickle(torch.Tensor, _parts_of_real)
        replace(torch, save=self._save, load=self._load_saved)
        self._file_system()
        with contextlib.suppress(ImportError):
            self._safetensors()
        self._distributed_checkpoints()

    # -----------------------------------------------------------------------------------------------------------------
    # torch.save, torch.load

    def _save(self, value: Any = None, file: Any = None, *_: Any, **others: Any) -> None:
        value, file = others.get("obj", value), others.get("f", file)
        key = self._keep(value, file)
        if isinstance(file, (str, os.PathLike)):
            return
        file.write(_mark(key))

    def _keep(self, value: Any, file: Any) -> str:
        kept = tree_map_only(torch.Tensor, _on_disk, value)
        nbytes = sum(nbytes_of(one) for one in tree_leaves(value) if isinstance(one, torch.Tensor))
        key = _key(file) if isinstance(file, (str, os.PathLike)) else str(next(self._numbers))
        if isinstance(file, (str, os.PathLike)):
            if not Path(key).parent.is_dir():
                raise RuntimeError(f"Parent directory {Path(file).parent} does not exist.")  # as torch does
            self._put(key, kept, nbytes)
        else:
            self._values[key], self._bytes[key] = kept, nbytes
            self._recorder.note("saved files are kept in memory, not written")
        return key

    def _put(self, key: str, kept: Any, nbytes: int) -> None:
        """Keep what is under a path, for this rank and those that are rehearsed with it."""
        self._values[key], self._bytes[key] = kept, nbytes
        self._recorder.record.saved.setdefault(key, self._calls())
        if self._meeting is not None:
            with contextlib.suppress(pickle.PicklingError, TypeError, AttributeError, RuntimeError), _apart():
                unfinished = self._shared(key).with_suffix(f".{self._rank}")
                unfinished.write_bytes(pickle.dumps((key, kept, nbytes)))
                unfinished.replace(self._shared(key))
        if not isinstance(kept, _RankFile):
            self._recorder.note("saved files are kept in memory, not written")

    def _until_closed(self, file: Any, mode: str, buffering: int) -> Any:
        """A file of bytes that is in its place when it is closed, unless a tensor without data was saved in it."""
        key, process = _key(file), os.getpid()
        target = os.path.realpath(key)
        is_apart = self._rank > 0 and not self._is_free(key)
        path = self._written(file, mode) if is_apart else f"{target}.{self._rank}-{process}{UNFINISHED}"

        def closed() -> None:
            if os.getpid() != process:
                return
            named = next((one for one, held in self._values.items() if held == (path, self._rank)), None)
            if named is None:  # removed meanwhile
                remove(path)
            elif not self._adopt(named, path) and not is_apart:
                del self._values[named], self._bytes[named]
                if named == key and _is_file(Path(target)):
                    shutil.copymode(target, path)
                rename(path, target if named == key else named)

        remove, rename = self._remove, self._rename
        raw = _WatchedFile(path, mode.replace("b", ""), closed)
        raw.name = file
        if not is_apart:
            self._list(path)
            self._values[key], self._bytes[key] = _RankFile(path, self._rank), 0
        if not buffering:
            return raw
        return io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)

    def _adopt(self, key: str, path: str) -> bool:
        """Keep what is in a file, if a tensor without data was saved in it, and not the file; whether one was."""
        if not _is_file(Path(path)) or not os.lstat(path).st_size:
            return False
        with self._open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if content.find(_TOKEN) < 0:
                return False
            number = _number_in(content[:_LENGTH]) if len(content) == _LENGTH else None
        if number in self._values:
            self._put(key, self._values[number], self._bytes.get(number, 0))
            self._remove(path)
        else:
            aside = f"{self._scratch}/saved-{next(self._numbers)}-{self._rank}"
            self._copy(path, aside)
            self._remove(path)
            self._put(key, _RankFile(aside, self._rank), 0)
        return True

    def _written(self, file: Any, mode: str) -> str:
        """Where what a rank other than 0 writes goes: the user's files get what rank 0 writes."""
        key = _key(file)
        held = self._values.get(key)
        if isinstance(held, _RankFile) and held.rank == self._rank:
            return held.path
        path = f"{self._scratch}/written-{hashlib.sha256(key.encode()).hexdigest()[:24]}-{self._rank}"
        if _is_file(Path(key)) and not {"w", "x"} & set(mode):
            shutil.copyfile(key, path)
        self._put(key, _RankFile(path, self._rank), 0)
        return path

    def _readable(self, file: Any) -> Any:
        """What is to be opened for a path: what this rank wrote, else what is there, else what another one wrote."""
        if isinstance(file, (str, os.PathLike)) and self._found(_key(file)):
            held = self._values[_key(file)]
            if isinstance(held, _RankFile) and (held.rank == self._rank or not _is_file(Path(_key(file)))):
                return held.path
        return file

    def _is_free(self, key: str) -> bool:
        """Whether all ranks write there: folders of this run, devices, and caches, which processes share by locks."""
        named = (value for name, value in os.environ.items() if _CACHE.search(name))
        caches = (os.path.expanduser("~/.cache"), *filter(os.path.isabs, named))  # noqa: PTH111
        return self._is_scratch(key) or key.startswith(tuple(f"{path}/" for path in caches))

    def _is_scratch(self, key: str) -> bool:
        """Whether nothing stays of it."""
        return key.startswith(tuple(f"{path}/" for path in (*self._ours, "/dev", "/proc", "/sys")))

    def _shared(self, key: str) -> Path:
        return (self._meeting or Path()) / f"saved-{hashlib.sha256(key.encode()).hexdigest()[:24]}"

    def _calls(self) -> int:
        """How many calls of the group of all ranks there were, by which ranks that are run apart are compared."""
        record = self._recorder.record
        for one in record.collectives[self._counted :]:
            group = record.groups.get(one.group)
            self._calls_of_all += group is not None and len(group.ranks) == record.world
        self._counted = len(record.collectives)
        return self._calls_of_all

    def _missed(self, key: str) -> None:
        """No file was found."""
        sought = self._recorder.record.sought
        if key in sought or len(sought) < _MOST_SOUGHT:
            sought[key] = self._calls()

    def _found(self, key: str, *, wait: bool = False) -> bool:
        """Whether this rank or one rehearsed with it saved a file; it may be about to."""
        if key in self._awaited and key not in self._values:
            wait = self._calls() > self._awaited[key]
            if not wait:
                return False
        until = time.monotonic() + (min(self._patience_s, MOST_WAIT_S) if wait else 0.0)
        while key not in self._values and self._meeting is not None:
            shared = self._shared(key)
            if _is_file(shared):
                self._values[key], self._bytes[key] = _read(shared)[1:]
            elif time.monotonic() > until:
                break
            else:
                time.sleep(0.01)
        return key in self._values

    def _inside(self, folder: str) -> list[str]:
        """What was saved in a folder, by this rank or one rehearsed with it."""
        for shared in self._meeting.glob("saved-*") if self._meeting is not None else ():
            with contextlib.suppress(FileNotFoundError, EOFError):
                key, kept, nbytes = _read(shared) if not shared.suffix else ("", None, 0)
                if key.startswith(folder + os.sep):
                    self._values.setdefault(key, kept)
                    self._bytes.setdefault(key, nbytes)
        return [key for key in self._values if key.startswith(folder + os.sep)]

    def _load_saved(self, file: Any = None, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        file = kwargs.pop("f", file)
        key = None
        file = self._readable(file)
        if isinstance(file, (str, os.PathLike)):
            key = _key(file)
            is_there = _is_file(Path(key))
            if not self._found(key, wait=not is_there) and not is_there:
                self._missed(key)
        elif hasattr(file, "read"):
            at = file.tell()
            key = _number_in(file.read(_LENGTH))
            if key is None:
                file.seek(at)
        if key in self._values:
            return tree_map_only(torch.Tensor, lambda one: _loaded(one, map_location), self._values[key])
        if isinstance(file, (str, os.PathLike)) and kwargs.get("mmap") is None and zipfile.is_zipfile(file):
            kwargs["mmap"] = True  # of what goes to the device nothing is read
        with _disable_current_modes() if kwargs.get("mmap") else contextlib.nullcontext():
            found = self._load(file, "cpu", *args, **kwargs)
        if map_location is None or callable(map_location) or isinstance(map_location, dict):
            return found
        return tree_map_only(torch.Tensor, lambda one: one.to(map_location), found)

    # -----------------------------------------------------------------------------------------------------------------
    # Files that a script looks for

    def _file_system(self) -> None:
        """A file that was saved exists, has a size, can be renamed and removed."""
        saved, nbytes = self._values, self._bytes

        def known(path: Any) -> bool:
            return isinstance(path, (str, os.PathLike)) and self._found(_key(path))

        def also(function: Callable[..., Any], answer: Callable[[str], Any]) -> Callable[..., Any]:
            def asked(path: Any, *args: Any, **kwargs: Any) -> Any:
                if known(path):
                    return answer(_key(path))
                found = function(path, *args, **kwargs)
                if found is False and isinstance(path, (str, os.PathLike)):
                    self._missed(_key(path))
                return found

            return asked

        def forgotten(key: str) -> None:
            saved.pop(key, None)
            nbytes.pop(key, None)
            if self._meeting is not None:
                with contextlib.suppress(FileNotFoundError):
                    unlink(self._shared(key))

        def size(key: str) -> int:
            held = saved[key]
            return Path(held.path).stat().st_size if isinstance(held, _RankFile) else nbytes[key]

        def taking(function: Callable[..., Any], stays: bool) -> Callable[..., Any]:
            def take(source: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
                old, new = _key(source), _key(target)
                is_made = old not in saved and not self._adopt(old, old) and _is_file(Path(old))
                if is_made and self._rank and not self._is_free(new):
                    self._copy(old, self._written(target, "w"))
                    return target
                is_file, is_folder = known(source), Path(old).is_dir()
                if Path(new).is_dir() and (is_file or function is shutil.move):
                    new = str(Path(new) / Path(old).name)
                found = target if is_file else function(source, target, *args, **kwargs)
                if old in self._made:
                    self._made.add(new)
                for key in [old] if is_file else self._inside(old) if is_folder else ():
                    self._put(new + key.removeprefix(old), saved[key], nbytes[key])
                    if not stays:
                        forgotten(key)
                return found

            return take

        opened, remove_tree, unlink = self._open, self._kept_back(shutil.rmtree), self._remove

        def open_saved(file: Any, mode: str = "r", buffering: int = -1, *args: Any, **kwargs: Any) -> Any:
            """A saved file that is read by what is not torch's has a mark in it, by which `torch.load` finds it."""
            if {*mode} & {*"wax+"}:
                named = isinstance(file, (str, os.PathLike)) and kwargs.get("opener") is None
                makes = named and Path(_key(file)).parent.is_dir() and not Path(_key(file)).is_dir()
                makes = makes and not ("x" in mode and Path(file).exists())
                if makes and "b" in mode and {*mode} & {*"wx"} and not self._is_scratch(_key(file)):
                    with contextlib.suppress(PermissionError):  # as the file itself says it, below
                        return self._until_closed(file, mode, buffering)
                makes = makes and self._rank > 0 and not self._is_free(_key(file))
                return opened(self._written(file, mode) if makes else file, mode, buffering, *args, **kwargs)
            file = self._readable(file)
            if mode not in ("rb", "br") or isinstance(file, int):
                return opened(file, mode, buffering, *args, **kwargs)
            if not known(file):
                if isinstance(file, (str, os.PathLike)) and not _is_file(Path(_key(file))):
                    self._missed(_key(file))
                return opened(file, mode, buffering, *args, **kwargs)
            number = str(next(self._numbers))
            saved[number] = saved[_key(file)]
            return io.BytesIO(_mark(number))

        def rmtree(path: Any, *args: Any, **kwargs: Any) -> None:
            for key in self._inside(_key(path)):
                forgotten(key)
            remove_tree(path, *args, **kwargs)

        replace(shutil, rmtree=rmtree)
        answers: tuple[tuple[Any, tuple[str, ...], Callable[[str], Any]], ...] = (
            (os.path, ("exists", "isfile", "lexists"), lambda _: True),
            (Path, ("exists", "is_file"), lambda _: True),
            (os.path, ("getsize",), size),
            (os.path, ("getmtime",), lambda _: time.time()),
            (os, ("remove", "unlink"), forgotten),
            (Path, ("unlink",), forgotten),
        )
        for owner, names, answer in answers:
            replace(owner, **{name: also(getattr(owner, name), answer) for name in names})
        for owner, name in ((os, "remove"), (os, "unlink"), (Path, "unlink")):
            replace(owner, **{name: self._kept_back(getattr(owner, name))})
        ways: tuple[tuple[Any, tuple[str, ...], bool], ...] = (
            (shutil, ("copyfile", "copy", "copy2", "copytree"), True),
            (shutil, ("move",), False),
            (os, ("rename", "replace"), False),
            (Path, ("rename", "replace"), False),
        )
        for owner, names, stays in ways:
            replace(owner, **{name: taking(getattr(owner, name), stays) for name in names})
        for module in (builtins, io):
            replace(module, open=open_saved)
        replace(os, mkdir=self._listing(os.mkdir))

    def _listing(self, mkdir: Callable[..., None]) -> Callable[..., None]:
        """Folders that the script makes; as nothing is saved in them, they are removed where they stay empty."""

        def listed(path: Any, *args: Any, **kwargs: Any) -> None:
            mkdir(path, *args, **kwargs)
            if "dir_fd" not in kwargs:
                self._made.add(_key(path))
                self._list(_key(path))

        return listed

    def _kept_back(self, remove: Callable[..., None]) -> Callable[..., None]:
        """What a script removes that was there before it, a checkpoint perhaps, is back when it has ended.

        What ranks other than 0 remove stays: the user's files get what rank 0 does.
        """
        of_folders = remove is shutil.rmtree

        def removed(path: Any, *args: Any, **kwargs: Any) -> None:
            key = _key(path) if isinstance(path, (str, os.PathLike)) and kwargs.get("dir_fd") is None else ""
            if key in self._values:  # it may lie over one that was there
                remove(path)
                if not _exists(key):
                    return
            is_users = bool(key) and key not in self._made and _exists(key) and not self._is_free(key)
            is_old = of_folders or (is_users and os.lstat(key).st_mtime < self._began)
            if not is_users or not is_old or _is_file(Path(key)) is of_folders:
                remove(path, *args, **kwargs)
            elif self._rank == 0:
                aside = f"{key}.{next(self._numbers)}{REMOVED}"
                self._list(aside)
                self._rename(key, aside)

        return removed

    def _list(self, path: str) -> None:
        with contextlib.suppress(OSError), self._open(self._folders, "ab") as file:
            file.write(os.fsencode(path) + b"\0")

    # -----------------------------------------------------------------------------------------------------------------
    # safetensors

    def _safetensors(self) -> None:
        import safetensors.torch

        load_file, open_file, told = safetensors.torch.load_file, safetensors.safe_open, dict[str, Any]()

        def save_file(tensors: Mapping[str, Any], filename: Any, metadata: Any = None) -> None:
            told[self._keep(dict(tensors), filename)] = metadata

        def safe_open(filename: Any, framework: str = "pt", device: Any = "cpu", **others: Any) -> Any:
            key = _key(filename)
            if not self._found(key):
                self._missed(key)
                return open_file(filename, framework, device, **others)
            return _OpenTensors(self._load_saved(filename, map_location=device), told.get(key))

        def load(filename: Any, device: Any = "cpu", **others: Any) -> Any:
            if self._found(_key(filename)):
                return self._load_saved(filename, map_location=device)
            return {name: one.to(device) for name, one in load_file(filename, device="cpu", **others).items()}

        replace(safetensors, safe_open=safe_open)
        replace(safetensors.torch, save_file=save_file, load_file=load)

    # -----------------------------------------------------------------------------------------------------------------
    # torch.distributed.checkpoint

    def _distributed_checkpoints(self) -> None:
        """The plans and their exchange are a rank's own; what would be written is kept, and read from there.

        Plans of ranks that are not rehearsed are not known, so that all pieces together fill a tensor is not asked.
        The table of all pieces is the coordinator's; a rank that is rehearsed without it has a table of what it saved.
        """
        when_imported("torch.distributed.checkpoint.filesystem", self._checkpoints_on_disk)

        def stage(stager: Any, state_dict: Any, non_blocking: bool = False) -> Any:
            """An asynchronous save copies to the host first: tensors without data stay as they are."""
            return tree_map(lambda one: one, state_dict)

        when_imported(
            "torch.distributed.checkpoint._state_dict_stager",
            lambda module: replace(module.StateDictStager, stage=stage),
        )

    def _checkpoints_on_disk(self, storage: Any) -> None:
        from torch.distributed.checkpoint import default_planner

        saved = self._values
        planned: dict[str, bytes] = {}  # by this rank, though another may be told to write it
        plans: dict[str, Any] = {}  # of this rank: the last under "", then those by path
        create_plan = default_planner.DefaultSavePlanner.create_local_plan
        read_metadata, read_data = storage.FileSystemReader.read_metadata, storage.FileSystemReader.read_data

        def done(value: Any) -> Any:
            future: torch.futures.Future[Any] = torch.futures.Future()
            future.set_result(value)
            return future

        def pieces(path: Any) -> str:
            return f"{_key(path)}/__{self._rank}_0.distcp"

        def plan_of(planner: Any) -> Any:
            plan = plans[""] = create_plan(planner)
            for item in plan.items:
                if item.type.name == "BYTE_IO":
                    planned[item.index.fqn] = planner.resolve_data(item).getvalue()
            return plan

        def write_data(writer: Any, plan: Any, planner: Any) -> Any:
            self._put(pieces(writer.path), dict(planned), sum(map(len, planned.values())))
            if "" in plans:
                plans[_key(writer.path)] = plans[""]
            return done([])

        def finish(writer: Any, metadata: Any, results: Any) -> None:
            self._put(f"{_key(writer.path)}/.metadata", metadata, 0)

        def prepared(writer: Any, plan: Any) -> Any:
            return plan

        def metadata_of(reader: Any, *args: Any, **kwargs: Any) -> Any:
            path = _key(reader.path)
            key = f"{path}/.metadata"
            if self._found(key):
                return saved[key]
            if path not in plans:
                return read_metadata(reader, *args, **kwargs)
            plan = plans[path]
            _, metadata = default_planner.create_default_global_save_plan([plan])
            return dataclasses.replace(metadata, planner_data=plan.planner_data)

        def read(reader: Any, plan: Any, planner: Any) -> Any:
            if not self._found(pieces(reader.path)):
                return read_data(reader, plan, planner)
            kept = saved[pieces(reader.path)]
            for item in plan.items:
                if item.type.name == "BYTE_IO":
                    planner.load_bytes(item, io.BytesIO(kept.get(item.dest_index.fqn, b"")))
            return done(None)

        for owner in (storage._FileSystemWriter, storage.FileSystemWriter):
            replace(owner, write_data=write_data, finish=finish, prepare_local_plan=prepared)
        replace(
            storage.FileSystemReader,
            read_metadata=metadata_of,
            read_data=read,
            set_up_storage_reader=lambda reader, metadata, *_, **__: setattr(
                reader, "storage_data", getattr(metadata, "storage_data", None)
            ),
        )
        replace(default_planner, _validate_global_plan=lambda *_: [])
        replace(default_planner.DefaultSavePlanner, create_local_plan=plan_of)


class _RankFile(NamedTuple):
    """A file that a rank wrote, which is not among the user's."""

    path: str
    rank: int


class _WatchedFile(io.FileIO):
    """A file whose end is told.

    Args:
        path: of the file
        mode: as of `io.FileIO`
        closed: called once it is closed
    """

    name: Any

    def __init__(self, path: str, mode: str, closed: Callable[[], None]) -> None:
        super().__init__(path, mode)
        self._closed = closed

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._closed()


def _mark(number: str) -> bytes:
    """What stands for a value in a file."""
    return (_TOKEN + number.encode()).ljust(_LENGTH)


def _number_in(mark: bytes) -> str | None:
    """The number of the value that a mark stands for; None: it is no mark."""
    return mark[len(_TOKEN) :].decode().strip() if mark.startswith(_TOKEN) else None


class _OpenTensors:
    """A saved file that is open, in place of `safetensors.safe_open`.

    Args:
        tensors: by name
        metadata: that it was saved with
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor], metadata: Any) -> None:
        self._tensors = tensors
        self._metadata = metadata

    def __enter__(self) -> "_OpenTensors":
        return self

    def __exit__(self, *_: object) -> None: ...

    def keys(self) -> list[str]:
        return list(self._tensors)

    offset_keys = keys

    def metadata(self) -> Any:
        return self._metadata

    def get_tensor(self, name: str) -> torch.Tensor:
        return self._tensors[name]

    def get_slice(self, name: str) -> "_OpenTensor":
        return _OpenTensor(self._tensors[name])


class _OpenTensor:
    """A tensor of which parts are read.

    Args:
        tensor: whole
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor

    def get_shape(self) -> list[int]:
        return list(self._tensor.shape)

    def get_dtype(self) -> str:
        return _SAFETENSORS.get(self._tensor.dtype, str(self._tensor.dtype).rpartition(".")[-1].upper())

    def __getitem__(self, part: Any) -> torch.Tensor:
        return self._tensor[part]


_SAFETENSORS = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Types as files of safetensors name them."""


@contextlib.contextmanager
def _apart() -> Iterator[None]:
    """Without noting anything."""
    with _disable_current_modes():
        yield


def _key(path: Any) -> str:
    return os.path.normpath(os.path.join(os.getcwd(), os.fspath(path)))  # noqa: PTH109, PTH118 - Path is replaced here


_is_file, _exists = Path.is_file, os.path.lexists


def _read(shared: Path) -> tuple[str, Any, int]:
    """What a rank shared: under which path, what, and its size [bytes]."""
    with _apart():
        found: tuple[str, Any, int] = pickle.loads(shared.read_bytes())  # noqa: S301 - of this run
    return found


def _parts_of(tensor: FakeTensor) -> Any:
    """How a tensor without data is pickled."""
    twin = twin_of(tensor)
    twin = None if twin is None else twin.detach().clone()
    return _put_together, (tuple(tensor.shape), tensor.dtype, str(tensor.device), tensor.requires_grad, twin)


def _put_together(shape: Any, dtype: Any, device: str, requires_grad: bool, twin: Any) -> torch.Tensor:
    with _apart(), FAKE:
        made = torch.empty(shape, dtype=dtype, device=device, requires_grad=requires_grad)
    set_twin(made, twin)
    return made


def _parts_of_real(tensor: torch.Tensor) -> Any:
    """How a tensor with data is pickled: torch does it by `torch.save`, of which other processes do not know."""
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
        return tensor.__reduce_ex__(2)
    with _apart():
        data = tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return _put_real_together, (tuple(tensor.shape), tensor.dtype, data, tensor.requires_grad)


def _put_real_together(shape: Any, dtype: Any, data: bytes, requires_grad: bool) -> torch.Tensor:
    with _apart():
        flat = torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)
        return flat.reshape(shape).requires_grad_(requires_grad)


def _on_disk(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor as it lies in a file."""
    if type(tensor) not in (FakeTensor, torch.nn.Parameter, torch.Tensor) and not isinstance(tensor, FakeTensor):
        return tensor
    if not isinstance(tensor, FakeTensor):
        with _apart():
            return tensor.detach().clone()
    twin = twin_of(tensor)
    with _apart():
        with FAKE:
            kept = torch.empty(tuple(tensor.shape), dtype=tensor.dtype, device="cpu")
        set_twin(kept, None if twin is None else twin.clone())
    kept._trimaran_saved_on = str(tensor.device)  # type: ignore[attr-defined]
    return kept


def _loaded(tensor: torch.Tensor, where: Any) -> torch.Tensor:
    """A tensor from a file, on the device that it was on or that is asked for."""
    device = getattr(tensor, "_trimaran_saved_on", str(tensor.device))
    if isinstance(where, Mapping):
        device = where.get(device, device)
    elif callable(where):
        device = "cpu"
    elif where is not None:
        device = where
    with _apart():
        twin = twin_of(tensor)
        copy = tensor.clone()
        if isinstance(copy, FakeTensor):
            set_twin(copy, None if twin is None else twin.clone())
    return copy.to(device)
