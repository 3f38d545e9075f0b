"""What a trace says of an ordinary step, against an ordinary step: counted with finalizers, without hooks."""

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.graph.trace.steps import NETWORKS, Step, loss_of
from torch import nn
from torch.optim import SGD
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from trimaran.graph.trace.live_bytes import live_kept
from trimaran.graph.trace.record import Recorder
from trimaran.graph.trace.types import StepTrace


class Counter(TorchDispatchMode):
    """Counts the bytes of storages that operations have made, while each operation runs."""

    def __init__(self) -> None:
        super().__init__()
        self.live = 0
        self.samples: list[int] = []
        self.known: dict[int, Any] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        for tensor in tensors((args, kwargs)):
            self.meet(tensor.untyped_storage(), counts=False)
        out = func(*args, **(kwargs or {}))
        made = [self.meet(tensor.untyped_storage()) for tensor in tensors(out)]
        if any(made):
            self.samples.append(self.live)
        return out

    def meet(self, storage: torch.UntypedStorage, counts: bool = True) -> bool:
        key, nbytes = storage._cdata, storage.nbytes() if counts else 0
        if key in self.known:
            return False

        def gone(_: object) -> None:
            self.live -= nbytes
            del self.known[key]

        self.known[key] = weakref.ref(storage, gone)
        self.live += nbytes
        return True


def tensors(tree: object) -> list[torch.Tensor]:
    return [value for value in tree_leaves(tree) if isinstance(value, torch.Tensor)]


def counted(run: Callable[[], object]) -> list[int]:
    with Counter() as counter:
        run()
    return counter.samples


def traced(trace: StepTrace) -> list[int]:
    """The same from a trace: bytes that were made in the step, while each operation runs that makes a storage."""
    before = sum(storage.nbytes for storage in trace.storages if storage.birth < 0 and storage.keep_end == trace.length)
    kept = live_kept(trace) - before
    born = {storage.birth for storage in trace.storages}
    return [int(kept[operation.moment]) for operation in trace.ops if operation.moment in born]


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("name", NETWORKS)
def test_live_bytes_of_every_operation(name: str, device: str) -> None:
    """To the byte, through forward, backward and update."""
    step = Step(name, device)
    optimizer = SGD(step.model.parameters(), lr=0.1, momentum=0.9)

    def run() -> None:
        step.run()
        optimizer.step()

    step.run()
    optimizer.step()
    step.reset() if device == "cpu" else step.model.zero_grad()
    expected = counted(run)
    step.reset() if device == "cpu" else step.model.zero_grad()
    with Recorder(step.model) as recorder:
        run()
    assert traced(recorder.recording.trace) == expected


@pytest.mark.parametrize("name", ["resnet50", "gpt2"])
def test_live_bytes_under_autocast(name: str) -> None:
    """Casts of weights are kept in a cache until the forward ends."""
    step = Step(name)

    def run() -> None:
        inputs, target = step.batch
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(step.model(inputs), target)
        loss.backward()

    run()
    step.reset()
    expected = counted(run)
    step.reset()
    with Recorder(step.model) as recorder:
        run()
    assert traced(recorder.recording.trace) == expected


def test_live_bytes_with_checkpoints() -> None:
    """What a region computes again in the backward is packed again, and lives as it does without a recorder."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8)) for _ in range(3)))
    batch = torch.randn(4, 8)

    def run() -> None:
        value = batch
        for block in model:
            value = checkpoint(block, value, use_reentrant=False)
        value.square().sum().backward()

    run()
    model.zero_grad()
    expected = counted(run)
    model.zero_grad()
    with Recorder(model) as recorder:
        run()
    assert traced(recorder.recording.trace) == expected
