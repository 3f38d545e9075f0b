"""One pair of saved-tensor hooks for a thread, whose work can be changed while it is there.

Who packed a tensor also unpacks it, whatever the phase is by then: the packed value carries its own unpacker. A pair
can be parked, so that autograd saves plainly, as fast as ever and with its own checks. Hooks are a stack: only the top
can be taken away, and only where nobody else's lie above may ours be put down. So both are tried, and say whether they
did.

Pushing and popping at other places than the ends of a `with` block needs torch's own functions for it; they are those
that `torch.autograd.graph.saved_tensors_hooks` calls.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch._C import _autograd

Pack = Callable[[torch.Tensor], Any]
Unpack = Callable[[Any], torch.Tensor]


class HookPair:
    """The pair of one thread. It does its work only between `push` and `park`.

    While operations are captured into a CUDA graph, which replays fixed addresses, everything is kept.

    Args:
        capturing: tells whether they are
    """

    def __init__(self, capturing: Callable[[], bool] | None = None) -> None:
        self._capturing = is_capturing if capturing is None else capturing
        self._pack: Pack = _refuse
        self._unpack: Unpack = _refuse
        self._below: Any = None
        self.pushed = False
        self.unpacked = False
        # Bound once: the stack is compared by identity.
        self._hooks = (self._do_pack, self._do_unpack)

    def work(self, pack: Pack, unpack: Unpack) -> None:
        """Pack and unpack in this way from now on; what was packed before is unpacked as it was packed."""
        self._pack, self._unpack = pack, unpack

    def push(self) -> bool:
        """Put the pair on the stack; False where another's pair is there that was not there the first time."""
        if self.pushed:
            return True
        top = _autograd._top_saved_tensors_default_hooks(False)
        if self._below is None:
            self._below = (top,)
        elif not _same(top, self._below[0]):
            return False
        _autograd._push_saved_tensors_default_hooks(*self._hooks)
        self.pushed = True
        return True

    def park(self) -> bool:
        """Take the pair from the stack; False where another's lies above."""
        if not self.pushed:
            return True
        if not _same(_autograd._top_saved_tensors_default_hooks(False), self._hooks):
            return False
        _autograd._pop_saved_tensors_default_hooks()
        self.pushed = False
        return True

    def remove(self) -> None:
        """Take the pair from the stack, wherever in it: what lies above stays in its order."""
        above = []
        while self.pushed and not self.park():
            above.append(_autograd._top_saved_tensors_default_hooks(False))
            _autograd._pop_saved_tensors_default_hooks()
        for pair in reversed(above):
            _autograd._push_saved_tensors_default_hooks(*pair)

    def _do_pack(self, tensor: torch.Tensor) -> tuple[Unpack, Any]:
        if self._capturing():
            return keep_unpack, keep_pack(tensor)
        packed = self._pack(tensor)  # which may begin a flight, and with it change who unpacks
        return self._unpack, packed

    def _do_unpack(self, packed: tuple[Unpack, Any]) -> torch.Tensor:
        if packed[0] is not keep_unpack or not self._capturing():
            self.unpacked = True
        return packed[0](packed[1])


def is_capturing() -> bool:
    """Whether the current stream of a GPU is being captured into a CUDA graph."""
    return torch.cuda.is_initialized() and bool(torch.cuda.is_current_stream_capturing())


def keep_pack(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Keep a tensor as autograd does. Its version goes along: under hooks, autograd compares none."""
    return tensor, tensor._version


def keep_unpack(packed: tuple[torch.Tensor, int]) -> torch.Tensor:
    """Give a kept tensor back.

    Raises:
        RuntimeError: it was changed in place since; autograd raises the same
    """
    tensor, version = packed
    if tensor._version != version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"[{tensor.type()} {list(tensor.shape)}] is at version {tensor._version}; expected version {version} "
            "instead. Hint: enable anomaly detection to find the operation that failed to compute its gradient, with "
            "torch.autograd.set_detect_anomaly(True)."
        )
    return tensor


def _same(one: Any, other: Any) -> bool:
    if one is None or other is None:
        return one is other
    return bool(one[0] == other[0] and one[1] == other[1])


def _refuse(_value: Any) -> Any:
    raise RuntimeError("the pair of hooks was given no work")
