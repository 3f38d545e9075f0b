"""The peak of each step as the device had it: what a GPU's allocator says; on a CPU counted, if that is wanted.

On a GPU the allocator's own peak is set back at each step: `torch.cuda.max_memory_allocated` is of the last one then.
"""

from trimaran.runtime.memory.accountant import Accountant
from trimaran.session.virtual.modes import lifted


class Gauge:
    """Measures from `start` to `stop`.

    Args:
        account: whether live bytes are counted on a CPU, operation by operation
    """

    def __init__(self, *, account: bool) -> None:
        self._account = account
        self._accountant: Accountant | None = None

    def start(self, device: str) -> None:
        """A step begins; nothing happens if one is measured already.

        Args:
            device: "cpu" or "cuda"
        """
        if self._accountant is None and (self._account or device == "cuda"):
            self._accountant = Accountant(device)
            self._accountant.__enter__()

    def stop(self) -> int | None:
        """It has ended; its peak [bytes], None where nothing measured."""
        accountant, self._accountant = self._accountant, None
        if accountant is None:
            return None
        with lifted(Accountant):
            accountant.__exit__(None, None, None)
        return accountant.peak_bytes
