"""Page-locks host memory for a GPU, whose copies are fast and run beside the operations only then."""

import contextlib
import os
import warnings
from collections.abc import Callable

import torch

from trimaran.runtime.memory.arena import PageLock


def page_lock(device: str | torch.device = "cuda") -> PageLock:
    """Page-locks the mapping of an arena for a GPU, in one call and at its exact size.

    Where CUDA refuses, a warning says so, and the memory stays pageable: slower, and right.

    Returns:
        What `HostArena(lock=...)` takes.
    """

    def lock(address: int, nbytes: int) -> Callable[[], None] | None:
        owner = os.getpid()
        with torch.cuda.device(device):
            runtime = torch.cuda.cudart()
            code = int(runtime.cudaHostRegister(address, nbytes, 0))
            if code:
                _forget_error()
                warnings.warn(_refused(nbytes, code), RuntimeWarning, stacklevel=3)
                return None

        def unlock() -> None:
            if os.getpid() != owner:
                return  # a process that was forked has no part in it
            with contextlib.suppress(RuntimeError):  # nothing is copied any more where CUDA has ended
                torch.cuda.synchronize(device)  # a copy may be under way
            runtime.cudaHostUnregister(address)

        return unlock

    return lock


def _refused(nbytes: int, code: int) -> str:
    return (
        f"CUDA refuses to page-lock {nbytes:,} bytes of host memory (error {code}): copies from and to it are slow. "
        "Ask for less host memory, or raise the limit of locked memory (ulimit -l)."
    )


def _forget_error() -> None:
    """CUDA keeps the code of a call that it refused, and torch would raise it at its next kernel: this is that one."""
    with contextlib.suppress(RuntimeError):
        torch.empty(1, device="cuda").fill_(0.0)
