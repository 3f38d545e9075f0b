"""Whether a tensor was changed after autograd packed it, with the error that autograd raises.

Autograd compares versions before it uses a saved tensor, but not of one that hooks have packed. A witness shares the
version counter of the tensor without its memory, so that a change is seen also after the memory was released.
"""

import re
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import torch

_WALK = 64


class Witness:
    """The version of one packed tensor.

    Args:
        tensor: as autograd packs it
        node: name of the node that made it; "": none

    Attributes:
        counter: shares the version counter
        version: when it was packed
    """

    __slots__ = ("_node", "_origin", "_output", "_shape", "_type", "counter", "version")

    def __init__(self, tensor: torch.Tensor, node: str = "") -> None:
        self.counter = version_counter(tensor)
        self.version = tensor._version
        self._origin = weakref.ref(tensor)
        self._shape = tensor.shape
        self._type = tensor.dtype, tensor.device
        self._node = node
        self._output = tensor.output_nr

    @property
    def changed(self) -> bool:
        """Whether the tensor was changed in place."""
        return self.counter._version != self.version

    def check(self) -> None:
        """Raise what autograd raises if the tensor was changed in place.

        Raises:
            RuntimeError: it was
        """
        if self.changed:
            empty = torch.empty(0, dtype=self._type[0], device=self._type[1])
            raise changed_error(
                type_name=empty.type(),
                shape=list(self._shape),
                source=source_of(self._origin(), self._node, self._output),
                version=self.counter._version,
                expected=self.version,
            )


def version_counter(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor without memory that shares a tensor's version counter."""
    counter = tensor.detach()
    counter.data = _nothing(tensor.device)
    return counter


def check_kept(tensor: torch.Tensor, version: int, origin: "weakref.ref[torch.Tensor]", node: str, output: int) -> None:
    """Raise what autograd raises if a tensor that was kept was changed in place.

    Raises:
        RuntimeError: it was
    """
    if tensor._version != version:
        raise changed_error(
            type_name=tensor.type(),
            shape=list(tensor.shape),
            source=source_of(origin(), node, output),
            version=tensor._version,
            expected=version,
        )


def source_of(origin: torch.Tensor | None, node: str, output: int) -> tuple[int, str] | None:
    """The node and output that made a changed tensor, as autograd names it.

    Autograd keeps an input as the variable that it is, and names the node that made it last, perhaps the change itself.
    Its own output it names by itself.

    Args:
        origin: the tensor that was packed, if it is still there
        node: name of the node that had made it when it was packed; "": none
        output: which of that node's outputs it was
    """
    unpacking: Any = torch._C._current_autograd_node()
    if origin is None:
        return (output, node) if node else None
    if unpacking is not None and _made_by(origin, unpacking):
        return output, unpacking.name()
    return (origin.output_nr, origin.grad_fn.name()) if origin.grad_fn is not None else None


def changed_error(
    *, type_name: str, shape: list[int], source: tuple[int, str] | None, version: int, expected: int
) -> RuntimeError:
    """The error that this torch raises for a saved tensor that was changed in place."""
    example = _example(torch.is_anomaly_enabled())
    name = ""
    if source is not None:
        output, node = source
        # Some versions of torch leave out the end of a node's name.
        shown = node if "ExpBackward0" in example else re.sub(r"Backward\d*$", "", node)
        name = f", which is output {output} of {shown},"
    head, _, tail = example.partition("operation: ")
    hint = tail.partition("instead.")[2]
    return RuntimeError(
        f"{head}operation: [{type_name} {shape}]{name} is at version {version}; expected version {expected} instead."
        f"{hint}"
    )


def _made_by(tensor: torch.Tensor, node: Any) -> bool:
    """Whether a node made a tensor, or what in-place operations then made of it."""
    made: Any = tensor.grad_fn
    for _ in range(_WALK):
        if made is None or made is node:
            return made is node
        made = made.next_functions[0][0] if made.next_functions else None
    return False


@cache
def _nothing(device: torch.device) -> torch.Tensor:
    return torch.empty(0, device=device)


@cache
def _example(anomaly: bool) -> str:
    """The message of this torch, provoked once, in another thread: hooks and modes belong to a thread."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(_provoke, anomaly).result()


def _provoke(anomaly: bool) -> str:
    with warnings.catch_warnings(), torch.autograd.set_detect_anomaly(anomaly, check_nan=False):
        warnings.simplefilter("ignore")
        made = torch.zeros(1, requires_grad=True).exp()
        total = made.sum()
        with torch.no_grad():
            made.add_(1)
        try:
            total.backward()
        except RuntimeError as error:
            return str(error)
    return ""
