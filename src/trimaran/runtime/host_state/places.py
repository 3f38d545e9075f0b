"""One tensor of optimizer state: its bytes on the host, its visits to the device.

    host     slot ═══ load ══╗                 ╔══ save ═══▶ slot
    device                   ╚▶ storage, step ─╝             (let go once the copy has ended)

On the host the tensor is a view of its slot, so that whoever looks at the state finds its values there.
"""

from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from trimaran.runtime.memory.arena import HostArena, Slot
from trimaran.runtime.memory.engine import Copy, CopyEngine


class Place:
    """Where a tensor of state is.

    Args:
        tensor: on the device, alone in its storage
        arena: has room for it, or makes some

    Attributes:
        host: the tensor as it is on the host; its values are there when no copy is under way
    """

    def __init__(self, tensor: torch.Tensor, arena: HostArena) -> None:
        self._dtype = tensor.dtype
        self._layout = tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
        self._slot: Slot = arena.allocate(tensor.untyped_storage().nbytes())
        with _disable_current_modes():  # the host's memory is none of what a mode follows on the device
            self.host = self._view(self._slot.tensor().untyped_storage(), torch.device("cpu"))

    @property
    def nbytes(self) -> int:
        """Bytes on the host."""
        return self._slot.nbytes

    def is_at(self, address: int) -> bool:
        """Whether its bytes on the host begin there."""
        return self._slot.address == address

    def suits(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor fits without another slot."""
        layout = tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
        return layout == self._layout and tensor.dtype == self._dtype

    def load(self, engine: CopyEngine) -> tuple[torch.Tensor, Copy]:
        """Start to bring it to the device."""
        storage = engine.allocate(self._slot.nbytes)
        copy = engine.load(self._slot, storage)
        return self._view(storage, engine.device), copy

    def save(self, tensor: torch.Tensor, engine: CopyEngine) -> Copy:
        """Start to take its values back to the host."""
        return engine.save(tensor.untyped_storage(), self._slot)

    def free(self) -> None:
        """Give the slot back; no copy may be under way."""
        self._slot.free()

    def _view(self, storage: torch.UntypedStorage, device: torch.device) -> torch.Tensor:
        shape, stride, offset = self._layout
        tensor: torch.Tensor = torch.empty(0, dtype=self._dtype, device=device).set_(storage, offset, shape, stride)
        return tensor


def can_leave(value: Any, device: torch.device) -> bool:
    """Whether a value of the state is worth a copy: a plain tensor on the device that fills a storage of its own.

    Args:
        value: of the state of a parameter
        device: that the copies leave from
    """
    if type(value) is not torch.Tensor or value.layout != torch.strided or value.dim() == 0:
        return False
    if not _same(value.device, device) or value.numel() == 0:
        return False
    return value.untyped_storage().nbytes() == value.nbytes and value.storage_offset() == 0


def _same(one: torch.device, other: torch.device) -> bool:
    return one.type == other.type and (one.index or 0) == (other.index or 0)
