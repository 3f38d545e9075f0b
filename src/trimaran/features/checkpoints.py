"""Checkpoints and weights, as files: what is in them, whether they are as they were written, and in other formats.

No model is made, no process is started, no GPU is needed: names, shapes and tensors are in the files.
"""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trimaran.base.arguments import checked_classes
from trimaran.base.decoding import decode_object
from trimaran.base.errors import InputError
from trimaran.base.files import read_bytes
from trimaran.base.precision import dtype_name

if TYPE_CHECKING:
    from trimaran.checkpoint_files.commit import Fault
    from trimaran.checkpoint_files.content import Content, Form


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedCheckpoint:
    """What `export_checkpoint` has written.

    Attributes:
        path: file or folder
        format: "safetensors", "pt", "dcp" or "huggingface"
        source: checkpoint or file that it is of
        files: names of the files in a folder; of a file its name
        tensors: names of the model that were written
        nbytes: of the files [bytes]
        optimizer: the state of the optimizer is in it
        notes: what a person should know, such as a newer checkpoint that is damaged
    """

    path: Path
    format: str
    source: str
    files: tuple[str, ...]
    tensors: int
    nbytes: int
    optimizer: bool
    notes: tuple[str, ...]


@checked_classes
def export_checkpoint(
    source: str | Path,
    target: str | Path,
    *,
    to: str | None = None,
    optimizer: bool = False,
    shard_bytes: int | None = None,
    config: str | Path | None = None,
    trust_pickle: bool = False,
) -> ExportedCheckpoint:
    """Write the weights of a checkpoint in a format of others: whole, or nothing.

    Args:
        source: run directory or folder of checkpoints, of which the newest that is as it was written is taken; one
            checkpoint; or weights in one of these formats
        target: file or folder that is written; it may not be there
        to: "safetensors", "pt" (torch.save), "dcp" (torch.distributed.checkpoint) or "huggingface" (a folder); None:
            the ending of the target says it
        optimizer: the state of the optimizer too: "pt" and "dcp" have a place for it
        shard_bytes: largest file of a Hugging Face folder; None: 5 GB [bytes]
        config: file or folder with the config.json of a Hugging Face folder; None: that of the model, where it has one
        trust_pickle: read a source that is a pickle

    Raises:
        InputError: there is no such source; the target is there; the format cannot have what is asked for
        CorruptDataError: the source is damaged
        EnvironmentProblem: the target cannot be written, or has no room; nothing of it remains
    """
    from trimaran.checkpoint_files.exports import SHARD_BYTES, check_target, format_of, names_of_folder, write_export
    from trimaran.runtime.checkpoint.weights import open_weights

    path = Path(target)
    form = format_of(path, to)
    check_target(path)
    if form != "huggingface" and (config is not None or shard_bytes is not None):
        raise InputError(
            f"a config.json and a size of shards belong to a Hugging Face folder (--to huggingface), not to {form}",
            code="export.only-huggingface",
            to=form,
        )
    if shard_bytes is not None and shard_bytes < 1:
        raise InputError(f"a shard has at least 1 byte, got {shard_bytes}", code="export.no-shard", bytes=shard_bytes)
    given = None if config is None else read_config(Path(config))
    with open_weights(source, trust_pickle=trust_pickle) as content:
        own = None if content.config is None else (json.dumps(dict(content.config), indent=2) + "\n").encode()
        files = write_export(
            content,
            path,
            form,
            optimizer=optimizer,
            shard_bytes=SHARD_BYTES if shard_bytes is None else shard_bytes,
            config=given or own,
        )
        notes = [*map(str, content.about.get("passed_over", ()))]
        if form == "huggingface" and not (given or own):
            notes.append("there is no config.json: the model has none; give one with --config, or put it there")
        written_names = [*content.forms] if form != "huggingface" else names_of_folder(content, given or own)
        written = [path] if path.is_file() else [path / name for name in files]
        return ExportedCheckpoint(
            path=path,
            format=form,
            source=content.source,
            files=tuple(files),
            tensors=len(written_names),
            nbytes=sum(one.stat().st_size for one in written),
            optimizer=optimizer,
            notes=tuple(notes),
        )


def read_config(path: Path) -> bytes:
    """The text of a config.json that is to be copied.

    Args:
        path: the file, or its folder

    Raises:
        InputError: it cannot be read
        CorruptDataError: it is no JSON object
    """
    file = path / "config.json" if path.is_dir() else path
    text = read_bytes(file)
    decode_object(text, source=str(file), finite=False)
    return text


# ---------------------------------------------------------------------------------------------------------------------
# What is there


def show_checkpoint(path: str | Path, *, trust_pickle: bool = False) -> dict[str, Any]:
    """What is known of a checkpoint, or of weights, without reading tensors.

    Args:
        path: as for `export_checkpoint`
        trust_pickle: read a source that is a pickle

    Returns:
        "source", "kind", "weights" and "optimizer" with sizes, and of checkpoints "checkpoint" with step, epoch, job,
        strategy, "others" of the same folder, and those of it that are "damaged" or cannot be read.

    Raises:
        InputError: there is nothing of the kind
        CorruptDataError: it is damaged
    """
    from trimaran.runtime.checkpoint.weights import checkpoint_content, is_checkpoint, open_weights

    source = Path(path)
    if not is_checkpoint(source):
        with open_weights(source, trust_pickle=trust_pickle) as content:
            return _described(content)
    from trimaran.runtime.checkpoint.saving import Saved, locate

    store, name = locate(source)
    damaged: list[tuple[str, Sequence[Fault]]] = []
    found = store.committed(lambda *of: damaged.append(of)) if name is None else [store.open(name)]
    if not found:
        # It says why there is none.
        found = [store.open_newest()]
    chosen = found[0]
    sizes = {one.name: sum(entry.size for entry in one.files.values()) for one in found}
    with checkpoint_content(Saved(chosen)) as content:
        about = {
            key: value
            for key, value in content.about.items()
            if key not in ("checkpoint", "passed_over", "description")
        }
        return _described(content) | {
            "checkpoint": about | {"name": chosen.name, "bytes": sizes[chosen.name]},
            "others": [{"name": one.name, "step": one.step, "bytes": sizes[one.name]} for one in found[1:]],
            "damaged": [{"name": of, "faults": [*map(str, faults)]} for of, faults in damaged],
        }


def _described(content: "Content") -> dict[str, Any]:
    forms = content.forms
    kept = content.optimizer
    states = [] if kept is None else [one for of in kept.states.values() for one in of.values()]
    tensors = [one for one in states if hasattr(one, "nbytes") and hasattr(one, "shape")]
    return {
        "source": content.source,
        "kind": content.kind,
        "weights": {
            "tensors": len(forms),
            "tied": len(content.ties),
            "elements": sum(_elements(form) for name, form in forms.items() if name not in content.ties),
            "bytes": content.nbytes,
            "dtypes": dict(Counter(dtype_name(form.dtype) for form in forms.values())),
        },
        "optimizer": None
        if kept is None
        else {
            "parameters": len(kept.states),
            "keys": sorted({key for of in kept.states.values() for key in of}),
            "groups": len(kept.groups),
            "bytes": sum(one.nbytes for one in tensors),
        },
    }


def _elements(form: "Form") -> int:
    return form.nbytes // form.dtype.itemsize


def verify_checkpoint(path: str | Path, *, trust_pickle: bool = False) -> dict[str, Any]:
    """Compare files with their checksums.

    Args:
        path: run directory or folder of checkpoints, all of which are compared; one checkpoint; or weights in one of
            the formats of others
        trust_pickle: read a source that is a pickle

    Returns:
        "source", "kind", "whole" (no fault was found), "checksums" (the format has them), and of checkpoints
        "checkpoints": name, step and faults of each, newest first.

    Raises:
        InputError: there is nothing of the kind
        CorruptDataError: weights of others are damaged
    """
    from trimaran.runtime.checkpoint.weights import is_checkpoint, open_weights

    source = Path(path)
    if not is_checkpoint(source):
        with open_weights(source, trust_pickle=trust_pickle) as content:
            content.verify()
            return {
                "source": content.source,
                "kind": content.kind,
                "whole": True,
                "checksums": content.has_checksums,
                "checkpoints": [],
            }
    from trimaran.runtime.checkpoint.saving import locate

    store, name = locate(source)
    compared = store.verify_all(name)
    rows = [
        {"name": one, "step": int(one.split("-")[1]), "faults": [str(fault) for fault in faults]}
        for one, faults in compared.items()
    ]
    return {
        "source": str(store.folder if name is None else store.folder / name),
        "kind": "checkpoint",
        "whole": not any(compared.values()),
        "checksums": True,
        "checkpoints": rows,
    }
