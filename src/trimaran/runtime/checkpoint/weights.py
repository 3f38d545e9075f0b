"""Weights: the plain `state_dict` of the user's model, whatever the plan, in one safetensors file.

`whole_state` gathers it on rank 0. Every name of the user's model is in the file, also each name of a tied weight, so
that `model.load_state_dict(load_file(path))` works without Trimaran. The file is written under another name and then
renamed, so that it is always complete. Any plan loads it.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from trimaran.base.errors import CorruptDataError, ExecutionError, InputError
from trimaran.base.files import unfinished
from trimaran.runtime.whole_state import WholeState


def model_weights(model: nn.Module, state: WholeState) -> dict[str, torch.Tensor]:
    """The `state_dict` of the whole model; tied names have one tensor.

    Args:
        model: the user's
        state: parameters and buffers, on rank 0
    """
    tensors = state.parameters | state.buffers
    return {
        name: tensors[state.aliases[name]] if name in state.aliases else torch.clone(tensor).cpu()
        for name, tensor in model.state_dict().items()
    }


def write_weights(weights: Mapping[str, torch.Tensor], path: str | Path) -> None:
    """Write a file of weights, or nothing.

    Args:
        weights: by name
        path: of the file; folders are made

    Raises:
        ExecutionError: it cannot be written
    """
    target = Path(path)
    # safetensors stores every tensor on its own, and refuses those that share memory.
    apart = {name: tensor.detach().clone().contiguous() for name, tensor in weights.items()}
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with unfinished(target) as part:
            save_file(apart, part, metadata={"format": "pt"})
            with part.open("rb") as file:
                os.fsync(file.fileno())
            part.replace(target)
    except (OSError, SafetensorError) as error:
        raise ExecutionError(
            f"cannot write the weights to {target}: {getattr(error, 'strerror', None) or error}",
            code="weights.unwritable",
            path=str(target),
        ) from error


def read_weights(
    model: nn.Module,
    path: str | Path,
    put: Callable[[Mapping[str, torch.Tensor]], None] | None = None,
    *,
    shapes: Mapping[str, torch.Size] = MappingProxyType({}),
) -> None:
    """Load a file of weights into the user's model, in place; all of it, or nothing.

    Args:
        model: the user's; its `state_dict` has the names, and the shapes but for `shapes`
        path: of the file
        put: puts the tensors in their places, by name; None: into those of the model
        shapes: whole shapes of what the model has shares of, by name

    Raises:
        InputError: no such file; names or shapes are not those of the model
        CorruptDataError: the file is damaged
    """
    source = Path(path)
    if not source.is_file():
        raise InputError(f"no file of weights {source}", code="weights.missing-file", path=str(source))
    _check_header(source)
    wanted = model.state_dict()
    try:
        with safe_open(source, framework="pt") as file:
            names = set(file.keys())
            _check_names(names, set(wanted), source)
            weights = {name: file.get_tensor(name) for name in wanted}
    except (SafetensorError, OSError) as error:
        raise CorruptDataError(
            f"{source} is damaged, or no safetensors file: {error}. Take another copy of it",
            code="weights.damaged",
            path=str(source),
        ) from error
    whole = {name: shapes.get(name, tensor.shape) for name, tensor in wanted.items()}
    wrong = [
        f"{name} {tuple(weights[name].shape)} in the file, {tuple(shape)} in the model"
        for name, shape in whole.items()
        if weights[name].shape != shape
    ]
    if wrong:
        raise InputError(
            f"{source} has tensors of other shapes: {_listed(wrong)}",
            code="weights.other-shapes",
            path=str(source),
            tensors=tuple(wrong),
        )
    with torch.no_grad():
        if put is not None:
            put(weights)
            return
        for name, tensor in wanted.items():
            tensor.copy_(weights[name])


def _check_header(path: Path) -> None:
    """Refuse a file whose header is longer than the file, before it is mapped into memory."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
    except OSError as error:
        raise InputError(
            f"{path} cannot be read: {error.strerror}", code="weights.unreadable", path=str(path)
        ) from error
    if not 2 <= length <= min(_LONGEST_HEADER, path.stat().st_size - 8):
        raise CorruptDataError(
            f"{path} is damaged, or no safetensors file: a header of {length:,} bytes. Take another copy of it",
            code="weights.no-header",
            path=str(path),
        )


_LONGEST_HEADER = 100_000_000
"""Of a safetensors file [bytes]."""


def _check_names(found: set[str], wanted: set[str], path: Path) -> None:
    missing, unexpected = sorted(wanted - found), sorted(found - wanted)
    if missing or unexpected:
        parts = [f"it lacks {_listed(missing)}"] if missing else []
        parts += [f"it has {_listed(unexpected)}, which the model has not"] if unexpected else []
        raise InputError(
            f"{path} is not of this model: {'; '.join(parts)}",
            code="weights.other-model",
            path=str(path),
            missing=tuple(missing),
            unexpected=tuple(unexpected),
        )


def _listed(names: list[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f", ... ({len(names)} in all)" if len(names) > most else "")
