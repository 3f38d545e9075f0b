"""How many bytes of tensors a rank holds: between steps, and at most in one."""

import gc
from typing import Any

import torch
from tests.distributed.jobs import make_job
from tests.distributed.training import Run, open_executor
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from trimaran.graph.capture.capture import capture
from trimaran.launch.world import World
from trimaran.program.strategy import Strategy


class Watching(TorchDispatchMode):
    """Looks at all tensors after each operation.

    Attributes:
        most: bytes that were there at once [bytes]
    """

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        # The products of the backward and the copies of scatters come when most is there.
        if any(name in str(func) for name in ("mm", "chunk_cat")):
            self.most = max(self.most, live_bytes())
        return result


def watch_memory(world: World, strategies: list[Strategy]) -> list[tuple[int, int]]:
    """For each strategy, bytes between steps and the most in a step."""
    found = []
    for strategy in strategies:
        made = capture(make_job("wide_layers"))
        gc.collect()
        # What is frozen is not looked at again: all that exists by now, the parameters among it, which are emptied.
        gc.freeze()
        executor = open_executor(world, Run(job="wide_layers", strategy=strategy, steps=3), made, record=False)
        shares = iter(executor.feed().shares())
        executor.step(next(shares))
        gc.collect()
        resident = live_bytes()
        batch = next(shares)
        with Watching() as watching:
            executor.step(batch)
        found.append((resident, watching.most))
        executor.close()
        del executor, made, shares, batch
        gc.unfreeze()
    return found


def live_bytes() -> int:
    """Bytes of the storages of all tensors that Python knows, and of the gradients of parameters."""
    sizes: dict[int, int] = {}
    for thing in gc.get_objects():
        if type(thing) in (torch.Tensor, nn.Parameter):
            gradient = thing.grad if thing.is_leaf else None
            for tensor in (thing,) if gradient is None else (thing, gradient):
                if type(tensor) in (torch.Tensor, nn.Parameter) and tensor.device.type == "cpu":
                    storage = tensor.untyped_storage()
                    sizes[storage._cdata] = int(storage.nbytes())
    return sum(size for size in sizes.values() if size >= _SMALL)


_SMALL = 2**16
"""Less than this is a batch, an activation, a bias [bytes]."""
