"""Weights and optimizer state in the formats of others: written under another name, then renamed, or not at all.

    NAME.safetensors    every name of the `state_dict`, each of a tied weight too
    NAME.pt             the same by `torch.save`, tied names as one tensor; with the optimizer {"model", "optimizer"}
    dcp                 a directory of `torch.distributed.checkpoint`
    huggingface         a folder: model.safetensors, or numbered ones with an index; tied weights once; config.json

What is there already is never written over.
"""

import errno
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from trimaran.base.errors import EnvironmentProblem, InputError, did_you_mean
from trimaran.base.files import unfinished
from trimaran.base.system import reason_of
from trimaran.base.units import format_some
from trimaran.checkpoint_files.container import TensorStream
from trimaran.checkpoint_files.content import Content, Form, Member, OptimizerContent
from trimaran.checkpoint_files.dcp import write_dcp
from trimaran.checkpoint_files.disk import Bytes, LocalDisk

Format = Literal["safetensors", "pt", "dcp", "huggingface"]
_ENDINGS: Mapping[str, Format] = {".safetensors": "safetensors", ".pt": "pt", ".pth": "pt", ".bin": "pt"}
_WITH_OPTIMIZER: tuple[Format, ...] = ("pt", "dcp")

SHARD_BYTES = 5 * 10**9
"""Of a file in a Hugging Face folder, where nobody says otherwise [bytes]."""

_OVERHEAD = 2**20
"""What a file takes besides its tensors [bytes]."""
_OF_A_TENSOR = 4096
"""What a tensor takes besides its elements, at most [bytes]."""


def format_of(target: Path, said: str | None) -> Format:
    """The format that is meant.

    Args:
        target: that is written
        said: by the user; None: the ending of the target says it

    Raises:
        InputError: there is no such format, or nothing says which

    Example:
        >>> format_of(Path("model.pt"), None), format_of(Path("folder"), "dcp")
        ('pt', 'dcp')
    """
    known = get_args(Format)
    if said is None:
        found = _ENDINGS.get(target.suffix)
        if found is None:
            raise InputError(
                f"{target} does not say which format is meant: give one of {', '.join(known)} (--to), or a name that "
                f"ends in {', '.join(_ENDINGS)}",
                code="export.no-format",
                target=str(target),
            )
        return found
    if said not in known:
        raise InputError(
            f'there is no format "{said}" for weights{did_you_mean(said, known)}', code="export.unknown-format", to=said
        )
    return next(one for one in known if one == said)


def check_target(target: Path) -> None:
    """Refuse a file or folder that is there already.

    Args:
        target: that would be written

    Raises:
        InputError: it is there
    """
    if target.exists() or target.is_symlink():
        raise InputError(
            f"{target} is there already, and is not written over: give another name, or remove it",
            code="export.target-exists",
            target=str(target),
        )


def check_export(content: Content, target: Path, to: Format, *, optimizer: bool) -> None:
    """Refuse what cannot be written exactly, before anything is.

    Args:
        content: that would be written
        target: file or folder
        to: the format
        optimizer: with the optimizer's state

    Raises:
        InputError: the target is there; the format or the source has no state of an optimizer, or not of this one
        EnvironmentProblem: there is no room for it
    """
    check_target(target)
    if optimizer:
        _check_optimizer(content, to)
    needed = content.nbytes + _OVERHEAD + _OF_A_TENSOR * len(content.forms)
    if to != "pt":
        needed += sum(content.forms[name].nbytes for name in content.ties)
    if optimizer and content.optimizer is not None:
        needed += content.optimizer.nbytes + 2 * _OF_A_TENSOR * sum(map(len, content.optimizer.states.values()))
    _check_room(target, needed)


def _check_optimizer(content: Content, to: Format) -> None:
    kept = content.optimizer
    if to not in _WITH_OPTIMIZER:
        raise InputError(
            f"the format {to} has no place for the state of an optimizer: take {' or '.join(_WITH_OPTIMIZER)}",
            code="export.no-place-for-optimizer",
            to=to,
        )
    if kept is None:
        raise InputError(
            f"{content.source} has no state of an optimizer: export the weights alone", code="export.no-optimizer"
        )
    if kept.incomplete:
        raise InputError(
            f"the state of the optimizer in {content.source} cannot be exported: {kept.incomplete}. Export the weights "
            "alone",
            code="export.incomplete-optimizer",
        )
    members = [one for group in kept.groups for one in group.members]
    unknown = [str(one) for one in kept.states if one not in members]
    if unknown or len(set(members)) != len(members):
        raise InputError(
            f"{content.source} has state of {format_some(unknown, 8) or 'a parameter twice'}, which is in no group of "
            "the optimizer: export the weights alone",
            code="export.state-without-group",
        )


def _check_room(target: Path, needed: int) -> None:
    try:
        free = LocalDisk().free_bytes(target.parent.resolve())
    except OSError as error:
        raise _unwritable(target, error) from error
    if needed > free:
        raise EnvironmentProblem(
            f"no room for {target}: about {needed:,} bytes are needed, {free:,} are free. Free some, or take a "
            "folder on another disk",
            code="export.no-space",
            path=str(target),
            needed=needed,
            free=free,
        )


def write_export(
    content: Content,
    target: Path,
    to: Format,
    *,
    optimizer: bool = False,
    shard_bytes: int = SHARD_BYTES,
    config: bytes | None = None,
) -> list[str]:
    """Write weights, and perhaps the state of the optimizer, in a format of others.

    Args:
        content: that is written
        target: file or folder, which is not there yet; folders above it are made
        to: the format
        optimizer: with the optimizer's state
        shard_bytes: largest file of a Hugging Face folder, but for one of a single tensor [bytes]
        config: text of config.json in a Hugging Face folder; None: there is none

    Returns:
        Names of the files in a folder; of a file its name.

    Raises:
        InputError: see `check_export`; a tensor is of a dtype that the format lacks
        EnvironmentProblem: it cannot be written; nothing of it remains
        CorruptDataError: the source is damaged
    """
    check_export(content, target, to, optimizer=optimizer)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with unfinished(target) as part:
            if to == "safetensors":
                _write_tensors(part, content, content.forms)
            elif to == "pt":
                _write_pt(part, content, optimizer=optimizer)
            elif to == "dcp":
                part.mkdir()
                write_dcp(content, part, optimizer=optimizer)
            else:
                part.mkdir()
                _write_huggingface(part, content, shard_bytes, config)
            names = sorted(one.name for one in part.iterdir()) if part.is_dir() else [target.name]
            if part.is_dir():
                LocalDisk().sync_directory(part)
            _put_in_place(part, target)
            LocalDisk().sync_directory(target.parent.resolve())
    except OSError as error:
        raise _unwritable(target, error) from error
    return names


def _unwritable(target: Path, error: OSError) -> EnvironmentProblem:
    return EnvironmentProblem(
        f"{target} cannot be written, and nothing of it remains: {reason_of(error)}",
        code="export.unwritable",
        path=str(target),
        errno=error.errno,
    )


def _put_in_place(part: Path, target: Path) -> None:
    """Give what is complete its name; what another process has put there meanwhile stays.

    Raises:
        OSError: something is there now
    """
    if part.is_dir():
        # Over a file or a folder with something in it this fails.
        part.rename(target)
        return
    try:
        os.link(part, target)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS):
            raise
        # A file system without links.
        if target.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target)) from None
        part.rename(target)


def _write_file(path: Path, chunks: Iterator[Bytes]) -> None:
    """Write a new file, and put it on the disk."""
    file = LocalDisk().create(path)
    try:
        for chunk in chunks:
            file.write(chunk)
        file.sync()
    finally:
        file.close()


def _write_tensors(path: Path, content: Content, names: Mapping[str, Form]) -> None:
    """Some tensors of the model as a safetensors file, read while they are written."""
    stream = TensorStream(
        {name: form.like() for name, form in names.items()},
        {"format": "pt"},
        read=lambda name: content.read(content.ties.get(name, name)),
    )
    _write_file(path, iter(stream))


def names_of_folder(content: Content, config: bytes | None) -> list[str]:
    """The names that a Hugging Face folder has: of a tied weight one, which `from_pretrained` gives to the others.

    Args:
        content: that is written
        config: text of config.json; where it says that the model is made without ties, each name is there
    """
    plain = None if config is None else json.loads(config)
    ties = not isinstance(plain, dict) or plain.get("tie_word_embeddings") is not False
    return [name for name in content.forms if not ties or name not in content.ties]


def _write_huggingface(folder: Path, content: Content, shard_bytes: int, config: bytes | None) -> None:
    once = {name: content.forms[name] for name in names_of_folder(content, config)}
    shards: list[dict[str, Form]] = [{}]
    room = shard_bytes
    for name, form in once.items():
        if form.nbytes > room and shards[-1]:
            shards.append({})
            room = shard_bytes
        shards[-1][name] = form
        room -= form.nbytes
    if config is not None:
        _write_file(folder / "config.json", iter([config]))
    if len(shards) == 1:
        _write_tensors(folder / "model.safetensors", content, shards[0])
        return
    places = {}
    for number, shard in enumerate(shards, start=1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        _write_tensors(folder / file, content, shard)
        places.update(dict.fromkeys(shard, file))
    total = sum(form.nbytes for form in once.values())
    index = {"metadata": {"total_size": total}, "weight_map": places}
    text = (json.dumps(index, indent=2) + "\n").encode()
    _write_file(folder / "model.safetensors.index.json", iter([text]))


def _write_pt(path: Path, content: Content, *, optimizer: bool) -> None:
    """A file of `torch.save`, which takes memory for all that is in it."""
    model = dict(content.tensors())
    state: dict[str, Any] = model
    if optimizer and content.optimizer is not None:
        state = {"model": model, "optimizer": by_numbers(content.optimizer)}
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    with os.fdopen(descriptor, "wb") as file:
        try:
            torch.save(state, file)
        except RuntimeError as error:
            # torch's writer raises it after what has happened: an error of the disk, or a signal.
            cause = error.__context__
            happened = isinstance(cause, OSError | KeyboardInterrupt)
            raise cause if cause is not None and happened else OSError(errno.EIO, str(error)) from error
        file.flush()
        os.fsync(file.fileno())


def by_numbers(optimizer: OptimizerContent) -> dict[str, Any]:
    """The state of an optimizer as the `state_dict` of torch's optimizers has it, by the numbers of its parameters.

    Args:
        optimizer: with groups

    Example:
        >>> from trimaran.checkpoint_files.content import OptimizerGroup
        >>> group = OptimizerGroup(options={"lr": 0.1}, members=("body", "head"))
        >>> kept = OptimizerContent(states={"head": {"step": 3}}, groups=(group,), read=print)
        >>> by_numbers(kept)
        {'state': {1: {'step': 3}}, 'param_groups': [{'lr': 0.1, 'params': [0, 1]}]}
    """
    numbers: dict[Member, int] = {}
    groups = []
    for group in optimizer.groups:
        start = len(numbers)
        numbers.update({member: start + place for place, member in enumerate(group.members)})
        groups.append(dict(group.options) | {"params": [numbers[member] for member in group.members]})
    states = {
        numbers[member]: {key: optimizer.value(member, key) for key in optimizer.states[member]}
        for member in numbers
        if member in optimizer.states
    }
    return {"state": states, "param_groups": groups}
