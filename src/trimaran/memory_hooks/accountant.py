"""Measures the live bytes of a device while a step runs, independently of traces and plans.

On a GPU the allocator knows. On a CPU every storage that an operation makes or takes is followed until it dies. What
was there before is the base; it is seen when an operation takes it, and has been there all the time.
"""

import functools
import threading
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class Accountant(TorchDispatchMode):
    """Follows storages while it is entered, and their deaths until it is left.

    Args:
        device: "cpu" or "cuda:<n>"

    Example:
        >>> import torch
        >>> with Accountant() as accountant:
        ...     x = torch.zeros(1000)
        ...     y = x + 1
        ...     del x, y
        >>> accountant.peak_bytes
        8000
    """

    def __init__(self, device: str | torch.device = "cpu") -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = torch.device(device)
        self._guard = threading.RLock()
        self._seen: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}
        self._live = self._top = self._base = 0
        self._active = False

    @classmethod
    def is_infra_mode(cls) -> bool:
        """It changes nothing that others should know of."""
        return True

    @property
    def live_bytes(self) -> int:
        """Bytes that are there now, without what was there before and is not seen yet [bytes]."""
        if self._device.type == "cuda":
            return torch.cuda.memory_allocated(self._device)
        with self._guard:
            return self._base + self._live

    @property
    def made_bytes(self) -> int:
        """Bytes made so far less bytes gone so far, of what was there before too [bytes]."""
        with self._guard:
            return self._live

    @property
    def base_bytes(self) -> int:
        """Bytes that were there before and were seen [bytes]."""
        return self._base

    @property
    def peak_bytes(self) -> int:
        """Most that was there at a time [bytes]."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        with self._guard:
            return self._base + self._top

    def __enter__(self) -> Self:
        self._active = True
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        else:
            super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._device.type != "cuda":
            super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        self._active = False
        with self._guard:
            self._seen.clear()

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation, and look at what it took and made."""
        kwargs = kwargs or {}
        for value in tree_iter((args, kwargs)):
            if isinstance(value, torch.Tensor):
                self._note(value, made=False)
        result = func(*args, **kwargs)
        for value in tree_iter(result):
            if isinstance(value, torch.Tensor):
                self._note(value, made=True)
        return result

    def _note(self, tensor: torch.Tensor, *, made: bool) -> None:
        if tensor.layout is not torch.strided or tensor.device.type != self._device.type:
            return
        storage = tensor.untyped_storage()
        key, nbytes = storage._cdata, storage.nbytes()
        with self._guard:
            known = self._seen.get(key)
            if known is not None and known[0]() is storage:
                if known[1] == nbytes:
                    return
                self._live += nbytes - known[1]  # it was resized
                self._seen[key] = known[0], nbytes
            else:
                self._seen[key] = weakref.ref(storage, functools.partial(self._gone, key)), nbytes
                if made:
                    self._live += nbytes
                else:
                    self._base += nbytes
            self._top = max(self._top, self._live)

    def _gone(self, key: int, reference: "weakref.ref[torch.UntypedStorage]") -> None:
        with self._guard:
            known = self._seen.get(key)
            if known is not None and known[0] is reference:
                del self._seen[key]
                if self._active:
                    self._live -= known[1]
