"""Weights that others wrote: a path, and what is there.

    NAME.safetensors                                        a file of safetensors
    folder with model.safetensors, or an index of several   as Hugging Face has it
    folder with .metadata                                   torch.distributed.checkpoint, by trust
    NAME.pt, NAME.bin, folder with pytorch_model.bin        torch.save, by trust

Formats that are pickles are read where the user says so, as tensors and plain values alone (`archives`).
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from trimaran.base.decoding import decode_object
from trimaran.base.errors import CorruptDataError, InputError
from trimaran.base.files import is_file, read_bytes
from trimaran.base.system import reason_of
from trimaran.base.units import format_count, format_some
from trimaran.checkpoint_files.archives import open_pickled
from trimaran.checkpoint_files.commit import FOLDER, FORMAT, MARKER, has_checkpoints
from trimaran.checkpoint_files.container import TensorFile
from trimaran.checkpoint_files.content import Content, Form, closing_on_error
from trimaran.checkpoint_files.dcp import METADATA, open_dcp

CONFIG = "config.json"
_WHOLE, _PICKLED = "model.safetensors", "pytorch_model.bin"
_INDEX = ".index.json"
_ENDINGS = (".safetensors", ".pt", ".pth", ".bin")
_READ = (
    "What is read: a run, a folder of checkpoints or a checkpoint; a .safetensors or .pt file; a Hugging Face folder; "
    "a directory of torch.distributed.checkpoint"
)


def open_content(path: Path, *, trust_pickle: bool = False) -> Content:
    """Weights in a file or folder, of whichever format.

    Args:
        path: file or folder
        trust_pickle: read formats that are pickles too

    Raises:
        InputError: there is nothing, or nothing that is known; or it is a pickle that is not trusted
        CorruptDataError: it is damaged
    """
    if path.is_dir():
        return _open_folder(path, trust_pickle)
    if not path.exists():
        raise InputError(f"there is no {path}. {_READ}", code="weights.missing-file", path=str(path))
    if _is_pickle(path):
        _check_trust(path, "a pickle of torch.save", trust_pickle)
        return open_pickled(path)
    # A cache of downloads keeps files without their endings.
    if not path.name.endswith(_ENDINGS) and _head(path)[8:] != b"{":
        raise InputError(f"{path} is no file of weights. {_READ}", code="weights.unknown-file", path=str(path))
    return _open_tensors(path)


def _is_pickle(path: Path) -> bool:
    """By its first bytes, else by its name: a safetensors file begins with the length of its header."""
    head = _head(path)
    zipped, old = head[:2] == b"PK", head[:1] == b"\x80" and head[8:9] != b"{"
    return zipped or old or (path.suffix in (".pt", ".pth", ".bin") and head[8:9] != b"{")


def _head(path: Path) -> bytes:
    """The first bytes of a file; none of what is no file or cannot be read."""
    if not is_file(path):
        return b""
    try:
        with path.open("rb") as file:
            return file.read(9)
    except OSError:
        return b""


def _check_trust(path: Path, what: str, trusted: bool) -> None:
    if not trusted:
        raise InputError(
            f"{path} is {what}: it is read where you say that you trust it (--trust-pickle, trust_pickle=True). "
            "safetensors needs no trust",
            code="weights.pickled",
            path=str(path),
        )


def _open_folder(path: Path, trust_pickle: bool) -> Content:
    if (path / METADATA).exists():
        _check_trust(path, f"a directory of torch.distributed.checkpoint, whose {METADATA} is a pickle", trust_pickle)
        return open_dcp(path)
    for name in (_WHOLE, _PICKLED):
        index = path / f"{name}{_INDEX}"
        if name == _PICKLED and ((path / name).exists() or index.exists()):
            _check_trust(path, f"a folder whose {name} is a pickle of torch.save", trust_pickle)
        if index.exists():
            return _open_shards(path, index, trust_pickle)
        if (path / name).exists():
            return _of_folder(path, open_content(path / name, trust_pickle=trust_pickle))
    raise _unknown_folder(path)


def _unknown_folder(path: Path) -> InputError:
    """A refusal that says what is there in the place of weights, and what to give instead."""
    try:
        names = sorted(one.name for one in path.iterdir())
    except OSError as error:
        return InputError(
            f"{path} cannot be read: {reason_of(error)}", code="weights.unreadable-folder", path=str(path)
        )
    files = [name for name in names if name.endswith(_ENDINGS)]
    begun = [path, *(path / name for name in names), *(path / FOLDER).glob("step-*")]
    runs = [name for name in names if has_checkpoints(path / name) or has_checkpoints(path / name / FOLDER)]
    if files:
        several = f"{format_count(len(files), 'file')} of weights"
        what = f"has {several} and no index of them: name the file, such as {path / files[0]}"
    elif runs:
        what = f"has runs with checkpoints: name one, such as {path / runs[0]}"
    elif any(is_file(one / FORMAT) for one in begun):
        what = f"has no checkpoint whose save has ended (such a one has a file {MARKER})"
    elif "run.json" in names:
        what = "is a run without a checkpoint: trimaran train --save-every 10min saves some"
    else:
        what = f"has no checkpoint and no weights, but {format_some(names)}" if names else "is empty"
    return InputError(f"{path} {what}. {_READ}", code="weights.unknown-folder", path=str(path))


def _of_folder(path: Path, content: Content) -> Content:
    with closing_on_error(content.close):
        return replace(content, source=str(path), kind="Hugging Face folder", config=_config(path))


def _config(path: Path) -> Mapping[str, Any] | None:
    config = path / CONFIG
    return decode_object(read_bytes(config), source=str(config), finite=False) if config.exists() else None


def _open_tensors(path: Path) -> Content:
    # A cache of downloads has links.
    file = TensorFile(path.resolve())
    return Content(
        source=str(path),
        kind="safetensors file",
        forms={name: Form(tuple(file.shape(name)), file.dtype(name)) for name in file.names},
        read=file.tensor,
        close=file.close,
    )


def _open_shards(path: Path, index: Path, trust_pickle: bool) -> Content:
    """A model in several files, of which an index says which tensor is in which."""
    plain = decode_object(read_bytes(index), source=str(index))
    places = plain.get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(one, str) for one in places.values()) or not places:
        raise CorruptDataError(
            f'{index} has no "weight_map" with the file of each tensor: take another copy of it',
            code="weights.no-weight-map",
            path=str(index),
        )
    with ExitStack() as opened:
        shards: dict[str, Content] = {}
        for name in dict.fromkeys(places.values()):
            if Path(name).name != name or name in ("", ".", "..") or not is_file(path / name):
                raise CorruptDataError(
                    f"{index} names a file {name!a} that is not in its folder: take another copy of it",
                    code="weights.missing-shard",
                    path=str(index),
                    file=name,
                )
            shard = path / name
            shards[name] = opened.enter_context(open_content(shard, trust_pickle=trust_pickle))
        absent = [name for name, file in places.items() if name not in shards[file].forms]
        if absent:
            raise CorruptDataError(
                f"{path / places[absent[0]]} has no tensor {absent[0]!a}, which {index.name} says it has: take another "
                "copy of it",
                code="weights.not-in-shard",
                path=str(path / places[absent[0]]),
                tensors=tuple(absent),
            )

        def read(name: str) -> torch.Tensor:
            return shards[places[name]].read(name)

        def verify() -> None:
            for shard in shards.values():
                shard.verify()

        found = Content(
            source=str(path),
            kind="Hugging Face folder",
            forms={name: shards[file].forms[name] for name, file in places.items()},
            read=read,
            config=_config(path),
            verify=verify,
            has_checksums=all(shard.has_checksums for shard in shards.values()),
        )
        close: Callable[[], None] = opened.pop_all().close
    return replace(found, close=close)
