"""How much a step copies between host and device, counted from outside."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class _Copies(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.to_host = self.to_device = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = str(func)
        if name.startswith("aten._to_copy") and isinstance(result, torch.Tensor):
            self._add(args[0], result)
        elif name.startswith("aten.copy_"):
            self._add(args[1], args[0])
        return result

    def _add(self, source: torch.Tensor, target: torch.Tensor) -> None:
        if source.device.type == "cuda" and target.device.type == "cpu":
            self.to_host += target.nbytes
        elif source.device.type == "cpu" and target.device.type == "cuda":
            self.to_device += target.nbytes


def count_traffic(step: Callable[[], object]) -> dict[str, int]:
    """Bytes that a step copies to the host and to the device; 0 on a CPU, where both are one."""
    with _Copies() as copies:
        step()
    return {"to_host_bytes": copies.to_host, "to_device_bytes": copies.to_device}
