"""Follows the live bytes of tensor storages in a real training on CPUs; knows nothing of the rehearsal.

    python observer.py FOLDER RANKS PORT WORLD script.py WORLD script.py …     writes FOLDER/0 and so on

Every operation that Python's dispatcher sees tells its outputs; a storage counts from then on until it is gone, as its
finalizer says, or is resized. Left out: storages made within the mark for memory of the host, tensors without
data, and what kernels take and give back within an operation. Of each script it writes, for each of its steps,
the most bytes that were live; the first step begins with its first forward.
"""

import contextlib
import gc
import json
import os
import runpy
import sys
import traceback
import weakref
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Observer(TorchDispatchMode):
    """Counts storages."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, int] = {}
        self.total = 0
        self.peak = 0
        self.began = False
        self.stepping = 0
        self.steps: list[int] = []
        self.names: dict[int, str] = {}
        self.at_peak: dict[int, tuple[int, str]] = {}

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Sees what torch's own modes do."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(_desugars(kind) for kind in types):
            return NotImplemented
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and type(tensor) in (torch.Tensor, torch.nn.Parameter):
                self.see(tensor, str(func))
        return out

    def see(self, tensor: torch.Tensor, name: str) -> None:
        """A tensor that an operation made."""
        if tensor.device.type == "meta" or tensor.layout is not torch.strided:
            return
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.live:
            return
        common = sys.modules.get("common")
        nbytes = 0 if common is not None and common.on_host_now else storage.nbytes()
        self.live[key] = nbytes
        self.names[key] = f"{name} {tuple(tensor.shape)} {tensor.dtype}"
        weakref.finalize(storage, self.gone, key).atexit = False
        self.add(nbytes)

    def add(self, nbytes: int) -> None:
        """More or fewer bytes are live."""
        self.total += nbytes
        if self.total > self.peak:
            self.peak = self.total
            if os.environ.get("OBSERVER_DETAILS"):
                self.at_peak = {key: (size, self.names[key]) for key, size in self.live.items() if size}

    def gone(self, key: int) -> None:
        """A storage is no more."""
        self.add(-self.live.pop(key, 0))
        self.names.pop(key, None)

    def resized(self, storage: torch.UntypedStorage, nbytes: int) -> None:
        """A storage has other bytes."""
        key = storage._cdata
        if key in self.live:
            self.add(nbytes - self.live[key])
            self.live[key] = nbytes

    def forward_begins(self, module: torch.nn.Module, _: Any) -> None:
        """The first forward that a backward will follow."""
        if not self.began and torch.is_grad_enabled() and module.training:
            self.began, self.peak = True, self.total

    def steps_now(self, *_: Any) -> None:
        """An optimizer begins to step, maybe within another one."""
        self.stepping += 1

    def stepped(self, *_: Any) -> None:
        """An optimizer has stepped."""
        self.stepping -= 1
        if not self.stepping:
            self.steps.append(self.peak)
            self.peak = self.total


def _desugars(kind: type) -> bool:
    """Whether a kind of tensor turns into operations on others, which are seen then."""
    handler = getattr(kind, "__torch_dispatch__", None)
    plain = kind in (torch.Tensor, torch.nn.Parameter, FakeTensor)
    return not plain and handler is not None and handler is not torch._C._disabled_torch_dispatch_impl


def observe(script: Path) -> dict[str, Any]:
    """Run a script; the most bytes of each of its steps, and what was live when it ended."""
    observer = Observer()
    resize = torch.UntypedStorage.resize_

    def resize_(storage: torch.UntypedStorage, nbytes: int) -> Any:
        out = resize(storage, nbytes)
        observer.resized(storage, nbytes)
        return out

    hooks = [
        register_optimizer_step_pre_hook(observer.steps_now),
        register_optimizer_step_post_hook(observer.stepped),
        torch.nn.modules.module.register_module_forward_pre_hook(observer.forward_begins),
    ]
    torch.UntypedStorage.resize_ = resize_  # type: ignore[method-assign]
    try:
        with observer:
            runpy.run_path(str(script), run_name="__main__")
    finally:
        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign]
        for hook in hooks:
            hook.remove()
    found: dict[str, Any] = {"steps": observer.steps}
    if os.environ.get("OBSERVER_DETAILS"):
        found["at_peak"] = sorted(observer.at_peak.values(), reverse=True)
    return found


def main() -> None:
    """Observe scripts one after another in ranks that are forked once torch is there."""
    folder, ranks, port, *rest = sys.argv[1:]
    started = []
    for rank in range(int(ranks)):
        process = os.fork()
        if process == 0:
            status = 1
            try:
                os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
                observe_all(Path(folder) / str(rank), int(port), rest)
                status = 0
            finally:
                sys.stderr.flush()
                os._exit(status)
        started.append(process)
    statuses = [os.waitpid(process, 0)[1] for process in started]
    sys.exit(int(any(statuses)))


def observe_all(out: Path, port: int, told: list[str]) -> None:
    """As one rank; scripts with fewer ranks leave it out."""
    rank = int(os.environ["RANK"])
    found = {}
    for number, (world, script) in enumerate(zip(told[::2], told[1::2], strict=True)):
        if rank >= int(world):
            continue
        os.environ |= {"MASTER_PORT": str(port + number), "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world}
        sys.path.insert(0, str(Path(script).parent))
        with contextlib.redirect_stdout(sys.stderr):
            try:
                found[Path(script).stem] = observe(Path(script))
            except Exception:  # noqa: BLE001  the others are observed all the same
                traceback.print_exc()
                if dist.is_initialized():
                    dist.destroy_process_group()
        gc.collect()
    out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
