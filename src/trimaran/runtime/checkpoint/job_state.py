"""`Job.state`: objects whose state a checkpoint has, such as an average of the weights.

    state_dict()  ─▶  tensors, "state/<object>/<number>"; what is left, with the numbers in their places, as plain JSON

The state is the same on every rank; rank 0's counts.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

from trimaran.base.errors import CorruptDataError, InputError
from trimaran.base.user_errors import users
from trimaran.checkpoint_files.pieces import What
from trimaran.checkpoint_files.plain import decode, encode

KIND: Final = "state"


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
        own: list[torch.Tensor] = []

        def named(leaf: Any, own: list[torch.Tensor] = own) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            own.append(leaf)
            return _TENSOR, len(own) - 1

        with users(called, one):
            state = _mapped(one.state_dict(), named)
        plain.append(encode(state, f"the state of {called}"))
        tensors |= {(KIND, str(number), str(place)): tensor for place, tensor in enumerate(own)}
    return tensors, plain


_TENSOR = "the tensor of this number"


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """A value with its leaves changed; containers stay of their types."""
    kind = type(value)
    if kind in (dict, OrderedDict):
        return kind((key, _mapped(one, change)) for key, one in value.items())
    is_leaf = kind not in (list, tuple, deque) or (kind is tuple and value[:1] == (_TENSOR,))
    return change(value) if is_leaf else kind(_mapped(one, change) for one in value)


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


def put_back(objects: Sequence[Any], plain: Sequence[Any], tensors: Mapping[What, torch.Tensor], source: str) -> None:
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
            own = {int(place): tensor for (_, of, place), tensor in tensors.items() if of == str(number)}

            def found(leaf: Any, own: Mapping[int, torch.Tensor] = own) -> Any:
                return own[leaf[1]] if type(leaf) is tuple else leaf

            states.append(_mapped(decode(one, source), found))
        except (LookupError, TypeError, ValueError) as error:
            raise CorruptDataError(
                f"{source}: the state of Job.state[{number}] is damaged ({error}): take another checkpoint",
                code="checkpoint.damaged-job-state",
                source=source,
            ) from error

    for number, (one, state) in enumerate(zip(objects, states, strict=False)):
        with users(f"Job.state[{number}] ({type(one).__name__})", one):
            one.load_state_dict(state)
