"""Weights: the plain `state_dict` of the user's model, whatever the plan; written to one file, read from many kinds.

`whole_state` gathers it on rank 0. Every name of the user's model is in the file, also each name of a tied weight, so
that `model.load_state_dict(load_file(path))` works without Trimaran. The file is written under another name and then
renamed, so that it is always complete.

Any plan loads weights: of such a file, of a checkpoint of a training, and of what others wrote
(`checkpoint_files.imports`). Names, shapes and dtypes are compared before anything is changed.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from trimaran.base.decoding import decode_object
from trimaran.base.errors import ExecutionError, InputError
from trimaran.base.files import looked_at, put_in_place
from trimaran.base.system import reason_of
from trimaran.base.units import format_some
from trimaran.checkpoint_files.commit import FOLDER, MARKER, has_checkpoints
from trimaran.checkpoint_files.container import TensorStream
from trimaran.checkpoint_files.content import (
    Content,
    Form,
    Member,
    OptimizerContent,
    OptimizerGroup,
    check_fits,
    check_ties,
    closing_on_error,
)
from trimaran.checkpoint_files.imports import open_content
from trimaran.checkpoint_files.pieces import Want, fill
from trimaran.checkpoint_files.plain import decode, dtype_named
from trimaran.runtime.checkpoint.saving import Saved, describe_saved, find_saved
from trimaran.runtime.communication.channels import ALONE, Agreement
from trimaran.runtime.whole_state import WholeState, first_names, state_of


def model_weights(model: nn.Module, state: WholeState) -> dict[str, torch.Tensor]:
    """The `state_dict` of the whole model; tied names have one tensor.

    Args:
        model: the user's
        state: parameters and buffers, on rank 0
    """
    tensors = state.parameters | state.buffers
    return {
        name: tensors[state.aliases[name]] if name in state.aliases else torch.clone(tensor).cpu()
        for name, tensor in state_of(model).items()
        # Of get_extra_state() a module gives anything: no checkpoint has it, nor has a file of weights.
        if isinstance(tensor, torch.Tensor)
    }


def write_weights(weights: Mapping[str, torch.Tensor], path: str | Path) -> None:
    """Write a file of weights, or nothing.

    Args:
        weights: by name
        path: of the file; folders are made

    Raises:
        InputError: the format does not know a tensor
        ExecutionError: it cannot be written
    """
    target = Path(path)
    stream = TensorStream(weights, {"format": "pt"})
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        put_in_place(target, stream)
    except OSError as error:
        raise ExecutionError(
            f"cannot write the weights to {target}: {reason_of(error)}",
            code="weights.unwritable",
            path=str(target),
        ) from error


# ---------------------------------------------------------------------------------------------------------------------
# Read


def open_weights(path: str | Path, *, trust_pickle: bool = False, agreement: Agreement = ALONE) -> Content:
    """Weights of a run, a checkpoint, or a file or folder of others; every rank calls it.

    Args:
        path: run directory or folder of checkpoints, of which the newest that is as it was written is taken; one
            checkpoint; a file or folder as `open_content` takes it
        trust_pickle: read formats that are pickles too
        agreement: between all ranks

    Raises:
        InputError: there is nothing, or nothing that is known; or it is a pickle that is not trusted
        CorruptDataError: it is damaged
    """
    source = Path(path)
    if is_checkpoint(source):
        saved = find_saved(source, agreement)
        with agreement.alike("reading weights"):
            return checkpoint_content(saved)
    with agreement.alike("reading weights"):
        return open_content(source, trust_pickle=trust_pickle)


def is_checkpoint(path: Path) -> bool:
    """Whether a path is a checkpoint, or a folder or run that has some.

    Args:
        path: any

    Raises:
        EnvironmentProblem: it cannot be looked at
    """
    one = looked_at(path / MARKER) is not None
    return one or has_checkpoints(path / FOLDER if looked_at(path / FOLDER) else path)


def checkpoint_content(saved: Saved) -> Content:
    """What a checkpoint has of a model and its optimizer, by the names of one process.

    Args:
        saved: the checkpoint, which is open until the content is closed

    Raises:
        InputError: it does not say the names
        CorruptDataError: it is damaged
    """
    saved.__enter__()

    def close() -> None:
        saved.__exit__(None, None, None)

    with closing_on_error(close):
        plain = saved.plain
        table = {entry.what: entry for entry in saved.entries}
        model = plain.get("model")
        names = model.get("names") if isinstance(model, dict) else None
        if not isinstance(model, dict) or not isinstance(names, dict):
            raise InputError(
                f"{saved.name} does not say which names the state_dict of its model has, since it was saved by an "
                "older Trimaran: give the model.safetensors of its run, or go on from it with --resume and save again",
                code="checkpoint.without-names",
                path=saved.name,
            )
        parameters = {name for kind, name, _ in table if kind == "parameter"}
        of = {name: ("parameter" if one in parameters else "buffer", str(one), "") for name, one in names.items()}
        others = [name for name, what in of.items() if what not in table]
        if others:
            raise InputError(
                f"the state_dict of the model in {saved.name} has {format_some(others)}, which is neither a "
                "parameter nor a buffer, and no checkpoint has it: keep it in a buffer (register_buffer)",
                code="checkpoint.other-names",
                path=saved.name,
            )
        firsts: dict[Any, str] = {}
        ties = {name: firsts[what] for name, what in of.items() if firsts.setdefault(what, name) != name}

        def form(what: Any) -> Form:
            return Form(table[what].shape, dtype_named(table[what].dtype, saved.name))

        def read_any(what: Any) -> torch.Tensor:
            known = form(what)
            found = torch.empty(known.shape, dtype=known.dtype)
            fill(Want(what, found), table[what], saved)
            return found

        config = model.get("config")
        return Content(
            source=saved.name,
            kind="checkpoint",
            forms={name: form(what) for name, what in of.items()},
            read=lambda name: read_any(of[name]),
            ties=ties,
            optimizer=_optimizer_of(saved, form, read_any),
            config=decode_object(config, source=f"the configuration in {saved.name}") if config else None,
            has_checksums=True,
            close=close,
            about=_about(saved),
        )


def _about(saved: Saved) -> dict[str, Any]:
    plain = saved.plain
    history = plain["figures"].get("history")
    return {
        "checkpoint": saved.name,
        "description": describe_saved(plain),
        "step": plain["steps"],
        "epoch": len(history) if isinstance(history, list) else 0,
        "job": plain["job"].get("name", ""),
        "global_batch": plain["job"]["global_batch_size"],
        "seed": plain["job"]["seed"],
        "precision": plain["job"]["precision"],
        "optimizer": plain["job"]["optimizer"],
        "strategy": plain["plan"]["name"],
        "ranks": plain["plan"]["ranks"],
        "passed_over": saved.passed_over,
    }


def _optimizer_of(
    saved: Saved, form: Callable[[Any], Form], read: Callable[[Any], torch.Tensor]
) -> OptimizerContent | None:
    plain = saved.plain
    groups, values = plain["groups"], plain["optimizer"]["values"]
    states: dict[Member, dict[str, Any]] = {}
    for entry in saved.entries:
        kind, name, key = entry.what
        if kind == "optimizer":
            states.setdefault(name, {})[key] = form(entry.what)
    for name, kept in values.items():
        states.setdefault(name, {}).update({key: decode(one, saved.name) for key, one in kept.items()})
    if not groups and not states:
        return None
    found, incomplete = _groups(groups, plain.get("order"), saved.name)
    if plain["optimizer"]["extra"]:
        incomplete = "it keeps values besides the state of parameters, which only a checkpoint has a place for"
    return OptimizerContent(
        states=states,
        groups=found,
        read=lambda member, key: read(("optimizer", member, key)),
        incomplete=incomplete,
    )


def _groups(saved: Any, order: Any, source: str) -> tuple[tuple[OptimizerGroup, ...], str]:
    """The groups of the optimizer of one process; and why they are not known."""
    if not isinstance(order, dict) or not isinstance(order.get("groups"), list):
        return (), "the order in which the optimizer of one process has its parameters is not known"
    made = []
    left = {name for one in saved for name in one["names"]}
    for place, names in enumerate(order["groups"]):
        own = [one for one in saved if not {*names}.isdisjoint(one["names"])]
        own = own or [one for one in saved if one["place"] == place and not one["names"]]
        covered = {name for one in own for name in one["names"]}
        if not own or covered != {*names} or any(one["options"] != own[0]["options"] for one in own):
            return (), f"group {place} of the optimizer of one process is not a group of the ranks"
        left -= covered
        given = {"param_names": list(names)} if order.get("named") else {}
        made.append(OptimizerGroup(options=decode(own[0]["options"], source) | given, members=tuple(names)))
    return (tuple(made), "") if not left else ((), "the ranks have groups that the optimizer of one process has not")


class Fitted(Mapping[str, torch.Tensor]):
    """Weights for a model, by the names of its `state_dict`, each read when it is asked for; from `fit_weights`.

    Args:
        content: of the file
        chosen: the name in the file of each tensor
        dtypes: of the model
    """

    def __init__(self, content: Content, chosen: Mapping[str, str], dtypes: Mapping[str, torch.dtype]) -> None:
        self._content, self._chosen, self._dtypes = content, chosen, dtypes

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._content.read(self._chosen[name]).to(self._dtypes[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._chosen)

    def __len__(self) -> int:
        return len(self._chosen)


def forms_of(
    model: nn.Module, shapes: Mapping[str, torch.Size] = MappingProxyType({})
) -> tuple[dict[str, Form], dict[str, str]]:
    """The tensors of a model's `state_dict`; and every name of a parameter or buffer with the first of the same one.

    Args:
        model: the user's
        shapes: whole shapes of what the model has shares of, by name

    Raises:
        InputError: it has more than tensors
    """
    state = state_of(model)
    odd = [name for name, one in state.items() if not isinstance(one, torch.Tensor)]
    if odd:
        raise InputError(
            f"the state_dict of the model has {format_some(odd)}, which is no tensor, and files of weights have "
            "tensors: keep it in a buffer (register_buffer)",
            code="weights.extra-state",
        )
    forms = {name: Form(tuple(shapes.get(name, one.shape)), one.dtype) for name, one in state.items()}
    return forms, first_names(model)


def fit_weights(
    model: nn.Module,
    content: Content,
    shapes: Mapping[str, torch.Size] = MappingProxyType({}),
    agreement: Agreement = ALONE,
) -> Fitted:
    """Compare weights with a model, and compare their checksums; every rank calls it. Nothing is changed.

    Args:
        model: the user's; its `state_dict` has the names, and the shapes but for `shapes`
        content: of the file
        shapes: whole shapes of what the model has shares of, by name
        agreement: between all ranks

    Raises:
        InputError: names, shapes or dtypes are not those of the model
        CorruptDataError: it is damaged
    """
    with agreement.alike("reading weights"):
        wanted, ties = forms_of(model, shapes)
        chosen = check_fits(content, wanted, ties)
        if agreement.rank == 0:
            content.verify()
            check_ties(content, chosen, ties)
        return Fitted(content, chosen, {name: form.dtype for name, form in wanted.items()})


def put_weights(
    model: nn.Module,
    weights: Mapping[str, torch.Tensor],
    put: Callable[[Mapping[str, torch.Tensor]], None] | None = None,
) -> None:
    """Put weights in their places.

    Args:
        model: the user's
        weights: of its `state_dict`
        put: puts the tensors in their places, by name; None: into those of the model
    """
    with torch.no_grad():
        if put is not None:
            put(weights)
            return
        for name, tensor in state_of(model).items():
            tensor.copy_(weights[name])
