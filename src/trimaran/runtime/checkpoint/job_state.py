"""`Job.state`: objects whose state a checkpoint has, such as an average of the weights.

    state_dict()  ─▶  tensors, "state/<object>/<leaf>"; other leaves, and how all are nested, as plain JSON

The state is the same on every rank; rank 0's counts.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from trimaran.base.errors import CorruptDataError, InputError
from trimaran.base.user_errors import users
from trimaran.checkpoint_files.pieces import What
from trimaran.checkpoint_files.plain import decode, encode

KIND = "state"


def take(objects: Sequence[Any]) -> tuple[dict[What, torch.Tensor], list[Any]]:
    """The tensors of some objects, and what else they have, as plain JSON.

    Args:
        objects: of `Job.state`

    Raises:
        InputError: one has what a checkpoint cannot hold, or raises
    """
    tensors: dict[What, torch.Tensor] = {}
    plain = []
    for number, one in enumerate(objects):
        called = f"Job.state[{number}] ({type(one).__name__})"
        with users(called, one):
            leaves, spec = pytree.tree_flatten(_plain_dicts(one.state_dict()))
        own = {place: leaf for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)}
        tensors |= {(KIND, str(number), str(place)): leaf for place, leaf in own.items()}
        others = [None if place in own else leaf for place, leaf in enumerate(leaves)]
        plain.append({"leaves": encode(others, f"the state of {called}"), "nested": pytree.treespec_dumps(spec)})
    return tensors, plain


def _plain_dicts(state: Any) -> Any:
    """A state whose mappings are plain dicts: that of a module is one with attributes."""
    if isinstance(state, Mapping):
        return {key: _plain_dicts(one) for key, one in state.items()}
    return type(state)(map(_plain_dicts, state)) if type(state) in (list, tuple) else state


def check_alike(heard: Sequence[list[Any]]) -> None:
    """Refuse objects whose state is not the same on every rank, as far as it is no tensor.

    Raises:
        InputError: one is not
    """
    for number, of in enumerate(zip(*heard, strict=True)):
        if any(one != of[0] for one in of):
            raise InputError(
                f"the state of Job.state[{number}] is not the same on every rank, and a checkpoint has that of rank 0: "
                "let what it keeps go by the step and the metrics, which all ranks have",
                code="checkpoint.unlike-state",
            )


def check_objects(objects: Sequence[Any], plain: Sequence[Any], source: str) -> None:
    """Refuse other objects than those whose states were saved; one that was saved without any begins as it is made.

    Raises:
        InputError: there are more, or fewer
    """
    if plain and len(plain) != len(objects):
        raise InputError(
            f"{source} has the state of {len(plain)} objects of Job.state, and the job has {len(objects)}: give those "
            "of the job that was trained, in the same order",
            code="checkpoint.other-state",
        )


def put_back(
    objects: Sequence[Any], plain: Sequence[Mapping[str, Any]], tensors: Mapping[What, torch.Tensor], source: str
) -> None:
    """Give objects their states.

    Args:
        objects: of `Job.state`
        plain: from `take`
        tensors: from `take`, by name
        source: of the state, for messages

    Raises:
        InputError: one does not take it
        CorruptDataError: it is damaged
    """
    states = []
    for number, one in enumerate(plain):
        try:
            leaves = decode(one["leaves"], source)
            own = {int(place): tensor for (_, of, place), tensor in tensors.items() if of == str(number)}
            leaves = [own.get(place, leaf) for place, leaf in enumerate(leaves)]
            states.append(pytree.tree_unflatten(leaves, pytree.treespec_loads(one["nested"])))
        except (KeyError, TypeError, ValueError, NotImplementedError, AttributeError) as error:
            raise CorruptDataError(
                f"{source}: the state of Job.state[{number}] is damaged ({error}): take another checkpoint",
                code="checkpoint.damaged-job-state",
                source=source,
            ) from error

    for number, (one, state) in enumerate(zip(objects, states, strict=False)):
        with users(f"Job.state[{number}] ({type(one).__name__})", one):
            one.load_state_dict(state)
