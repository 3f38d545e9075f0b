"""Whether a tensor was changed after autograd packed it.

Autograd compares versions before it uses a saved tensor, but not of one that hooks have packed. A witness shares the
version counter of the tensor without its memory, so that a change is seen also after the memory was released.
"""

from functools import cache

import torch


class Witness:
    """The version of one packed tensor.

    Args:
        tensor: as autograd packs it
        node: name of the node that made it; "": none

    Attributes:
        counter: shares the version counter
        version: when it was packed
    """

    __slots__ = ("_what", "counter", "version")

    def __init__(self, tensor: torch.Tensor, node: str = "") -> None:
        self.counter = tensor.detach()
        self.counter.data = _nothing(tensor.device)
        self.version = tensor._version
        self._what = tensor.shape, tensor.dtype, node

    @property
    def changed(self) -> bool:
        """Whether the tensor was changed in place."""
        return self.counter._version != self.version

    def check(self) -> None:
        """Refuse a tensor that was changed in place, as autograd does.

        Raises:
            RuntimeError: it was
        """
        if self.changed:
            raise changed_error(*self._what, version=self.counter._version, saved=self.version)


def check_kept(tensor: torch.Tensor, version: int, node: str = "") -> None:
    """Refuse a tensor that was kept and has changed in place since.

    Raises:
        RuntimeError: it has
    """
    if tensor._version != version:
        raise changed_error(tensor.shape, tensor.dtype, node, version=tensor._version, saved=version)


def changed_error(shape: torch.Size, dtype: torch.dtype, node: str, *, version: int, saved: int) -> RuntimeError:
    """The error of a tensor that was changed between the forward and the backward.

    Args:
        shape: of the tensor
        dtype: of it
        node: that made it; "": none
        version: now
        saved: when the forward saved it
    """
    made = f" of {node}" if node else ""
    return RuntimeError(
        f"a tensor that the backward needs has been modified by an inplace operation: {str(dtype)[6:]} {list(shape)}"
        f"{made} is at version {version}, and was saved at version {saved}. Run the forward under "
        "torch.autograd.set_detect_anomaly(True) to see which operation saved it"
    )


@cache
def _nothing(device: torch.device) -> torch.Tensor:
    return torch.empty(0, device=device)
