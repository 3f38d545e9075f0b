"""What moves bytes between the device and the host, beside the computation.

Two lanes, one for each direction; the copies of a lane run in the order in which they were asked for. Everything above
this protocol is written once. On a GPU the lanes are streams and a wait is an event in the stream of the operations; on
a CPU the lanes are threads, and the thread that waits stands still.

    compute   conv ████ relu ███  OFF         conv ████ ... DEL ▒▒ (waits for the copy's end, then lets go)
                                   │                         ▲
    d2h                            └─▶ copy ═════════════════╝

A copy reads its source as the operations issued so far leave it. It holds both ends until it has ended.
"""

from collections.abc import Callable
from typing import Protocol

import torch

from trimaran.errors import InputError
from trimaran.runtime.memory.arena import Slot

TO_HOST = "d2h"
TO_DEVICE = "h2d"


class Copy(Protocol):
    """A copy on its way."""

    def wait(self) -> float:
        """Operations issued by this thread from now on come after the copy.

        Returns:
            Time that this thread stood still [s]; on a GPU it does not.

        Raises:
            ExecutionError: the copy failed
        """

    def order(self) -> None:
        """Operations issued from now on come after the copy, without standing still and without raising."""

    def done(self) -> bool:
        """Whether it has ended."""

    def then(self, action: Callable[[], None]) -> None:
        """Do something once it has ended: at once if it has, perhaps in another thread, or at a later copy."""


class CopyEngine(Protocol):
    """The two lanes of a device.

    Attributes:
        device: whose memory it copies from and to
    """

    device: torch.device

    def allocate(self, nbytes: int) -> torch.UntypedStorage:
        """Device memory for the operations issued from now on, such as a copy back may fill."""

    def save(self, storage: torch.UntypedStorage, slot: Slot, offset: int = 0) -> Copy:
        """Start to copy to the host.

        Args:
            storage: on the device
            slot: on the host; as many bytes as it has are copied
            offset: first byte of the storage that is copied [bytes]
        """

    def load(self, slot: Slot, storage: torch.UntypedStorage, offset: int = 0) -> Copy:
        """Start to copy to the device.

        Args:
            slot: on the host
            storage: on the device
            offset: first byte of the storage that is filled [bytes]
        """

    def sweep(self) -> None:
        """Do what was to be done after copies that have ended, where nobody else does."""

    def capturing(self) -> bool:
        """Whether operations are being captured into a CUDA graph, in which nothing here can be."""

    def close(self) -> None:
        """End the lanes after what was asked for has been copied. Closing twice is allowed."""


def check_device(traced: str, engine: CopyEngine) -> None:
    """See that an engine is one of the device on which a step was recorded.

    Args:
        traced: kind of that device; tensors on "meta" stand for any
        engine: copies

    Raises:
        InputError: it is one of another device
    """
    if traced not in ("", "meta", engine.device.type):
        raise InputError(
            f"The step was recorded on {traced}, and the copy engine is one of {engine.device.type}: it would read and "
            "write memory that is not its own. Make the engine for the device of the network.",
            code="memory-plan.other-device",
            device=traced,
        )
