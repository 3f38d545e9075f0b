"""Weights: the plain `state_dict` of the user's model, whatever the plan, in one safetensors file.

Saved from replica 0, each stage sending what it holds to rank 0. Every name of the user's model is in the file, tied
ones each, so that `model.load_state_dict(load_file(path))` works without us. It is written beside its place and then
moved there, so that there is never half a file. Any plan loads it.
"""

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from trimaran.errors import CorruptDataError, ExecutionError, InputError


def gather_weights(
    model: nn.Module,
    held: Mapping[str, torch.Tensor],
    *,
    rank: int,
    rows: Sequence[int],
    group: dist.ProcessGroup | None,
) -> dict[str, torch.Tensor]:
    """The weights of the whole model.

    Args:
        model: the user's, of which this rank has trained some
        held: what it has trained, whole, by name
        rank: of this process
        rows: ranks that together hold everything; the first is rank 0
        group: all ranks, for host memory; None: this process is alone

    Returns:
        On rank 0 a copy of every tensor of the model's `state_dict`, in host memory; on the others nothing.
    """
    if rank not in rows:
        return {}
    own = {name: _on_host(tensor) for name, tensor in held.items()}
    if rank > 0:
        dist.send_object_list([{name: (tuple(t.shape), t.dtype) for name, t in own.items()}], group_dst=0, group=group)
        for tensor in own.values():
            dist.send(tensor, group_dst=0, group=group)
        return {}
    trained = dict(own)
    for other in rows[1:]:
        described: list[Any] = [None]
        dist.recv_object_list(described, group_src=other, group=group)
        for name, (shape, dtype) in described[0].items():
            tensor = torch.empty(shape, dtype=dtype)
            dist.recv(tensor, group_src=other, group=group)
            trained[name] = tensor
    rest = {name: _on_host(tensor) for name, tensor in model.state_dict().items() if name not in trained}
    return _untie(model, rest | trained, trained)


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
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        save_file(apart, part, metadata={"format": "pt"})
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.replace(target)
    except (OSError, SafetensorError) as error:
        raise ExecutionError(
            f"cannot write the weights to {target}: {getattr(error, 'strerror', None) or error}", path=str(target)
        ) from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


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
        raise InputError(f"no file of weights {source}", path=str(source))
    wanted = model.state_dict()
    try:
        with safe_open(source, framework="pt") as file:
            names = set(file.keys())
            _check_names(names, set(wanted), source)
            weights = {name: file.get_tensor(name) for name in wanted}
    except SafetensorError as error:
        raise CorruptDataError(
            f"{source} is damaged, or no safetensors file: {error}. Take another copy of it", path=str(source)
        ) from error
    whole = {name: shapes.get(name, tensor.shape) for name, tensor in wanted.items()}
    wrong = [
        f"{name} {tuple(weights[name].shape)} in the file, {tuple(shape)} in the model"
        for name, shape in whole.items()
        if weights[name].shape != shape
    ]
    if wrong:
        raise InputError(
            f"{source} has tensors of other shapes: {_listed(wrong)}", path=str(source), tensors=tuple(wrong)
        )
    with torch.no_grad():
        if put is not None:
            put(weights)
            return
        for name, tensor in wanted.items():
            tensor.copy_(weights[name])


def _untie(
    model: nn.Module, weights: dict[str, torch.Tensor], trained: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Give every name of a tied weight the values that were trained, which a stage may know under one of them only."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    for tied in names.values():
        source = next((name for name in tied if name in trained), None)
        if source is not None:
            weights.update(dict.fromkeys(tied, trained[source]))
    return {name: weights[name] for name in model.state_dict()}


def _check_names(found: set[str], wanted: set[str], path: Path) -> None:
    missing, unexpected = sorted(wanted - found), sorted(found - wanted)
    if missing or unexpected:
        parts = [f"it lacks {_listed(missing)}"] if missing else []
        parts += [f"it has {_listed(unexpected)}, which the model has not"] if unexpected else []
        raise InputError(
            f"{path} is not of this model: {'; '.join(parts)}",
            path=str(path),
            missing=tuple(missing),
            unexpected=tuple(unexpected),
        )


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    # A copy, also of what is there already: training goes on.
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())


def _listed(names: list[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f", ... ({len(names)} in all)" if len(names) > most else "")
