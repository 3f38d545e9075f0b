"""The peak of each step as the device had it: what a GPU's allocator says; on a CPU counted, if that is wanted.

On a GPU the allocator's own peak is set back at each step: `torch.cuda.max_memory_allocated` is of the last one then.
"""

import torch

from trimaran.runtime.memory.accountant import Accountant
from trimaran.session.virtual.modes import ModePlace


class AllocatorLimit:
    """Holds a GPU's allocator to a number of bytes, from `hold` to `release`. What others allocate is not counted."""

    def __init__(self) -> None:
        self._held: int | None = None

    def hold(self, nbytes: int) -> None:
        """More than this is an out-of-memory error from now on.

        Args:
            nbytes: most that may be reserved [bytes]
        """
        self._held = torch.cuda.current_device()
        total = torch.cuda.get_device_properties(self._held).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, nbytes / total), self._held)

    def release(self) -> None:
        """As much as there is."""
        if self._held is not None:
            torch.cuda.set_per_process_memory_fraction(1.0, self._held)
            self._held = None


class Gauge:
    """Measures from `start` to `stop`.

    Args:
        place: of our modes
        account: whether live bytes are counted on a CPU, operation by operation
    """

    def __init__(self, place: ModePlace, *, account: bool) -> None:
        self._place = place
        self._account = account
        self._accountant: Accountant | None = None

    def start(self, device: str) -> None:
        """A step begins; nothing happens if one is measured already.

        Args:
            device: "cpu" or "cuda"
        """
        if self._accountant is None and (self._account or device == "cuda"):
            self._accountant = Accountant(device)
            with self._place.on_top():
                self._accountant.__enter__()

    def stop(self) -> int | None:
        """It has ended; its peak [bytes], None where nothing measured."""
        accountant, self._accountant = self._accountant, None
        if accountant is None:
            return None
        with self._place.on_top():
            accountant.__exit__(None, None, None)
        return accountant.peak_bytes
