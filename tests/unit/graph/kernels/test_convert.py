from typing import Any

import torch
from tests.unit.graph.kernels.steps import meta, of_kind, traced, worked
from torch import nn
from torch.nn import functional
from torch.optim import SGD, Adam

from trimaran.graph.kernels.convert import workload_of
from trimaran.graph.kernels.workload import WorkKind
from trimaran.graph.types import Phase


def test_what_families_a_small_network_has() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Softmax(dim=1))

    work = worked(make, meta(2, 3, 8, 8))
    forward = [one.kind for one in work.works if one.phase is Phase.FORWARD and one.dims != (1,)]
    assert forward == [
        WorkKind.CONVOLUTION,
        WorkKind.NORMALIZATION,
        WorkKind.ELEMENTWISE,
        WorkKind.POOLING,
        WorkKind.SOFTMAX,
        WorkKind.REDUCTION,
    ]


def test_of_a_table_only_rows_are_read() -> None:
    """6 rows of 8 floats are read and written, and 6 places of 8 bytes are read; the table has 50."""
    rows = of_kind(
        worked(lambda: nn.Embedding(50, 8), torch.empty(6, dtype=torch.long, device="meta")), WorkKind.EMBEDDING
    )
    forward, backward = rows
    assert forward.nbytes == 2 * 6 * 8 * 4 + 6 * 8
    assert backward.nbytes == 50 * 8 * 4 + 3 * 6 * 8 * 4 + 6 * 8
    assert forward.dims == backward.dims == (48,)


def test_memory_alone_is_no_work() -> None:
    class Makes(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return functional.relu(x) + torch.empty_like(x)

    names = [one.name for one in worked(Makes, meta(4).requires_grad_()).works]
    assert "aten.relu" in names
    assert not any("empty" in name for name in names)


def test_the_update_is_one_work_a_parameter() -> None:
    """SGD with momentum: the buffer is scaled, the gradient added to it, and it to the weight: 2 + 3 + 3 passes."""
    work = worked(lambda: nn.Linear(4, 6), meta(10, 4), lambda p: SGD(p, lr=0.1, momentum=0.9))
    found = of_kind(work, WorkKind.OPTIMIZER)
    assert [(one.dims, one.launches, one.nbytes) for one in found] == [((24,), 3, 4 * 8 * 24), ((6,), 3, 4 * 8 * 6)]
    assert {one.phase for one in found} == {Phase.UPDATE}
    assert work.optimizer_bytes == 4 * 30


def test_counters_of_an_optimizer_that_stay_on_the_host_are_no_work() -> None:
    work = worked(lambda: nn.Linear(4, 6, bias=False), meta(10, 4), lambda p: Adam(p, lr=0.1))
    (update,) = of_kind(work, WorkKind.OPTIMIZER)
    assert update.dims == (24,)
    assert work.optimizer_bytes == 2 * 4 * 24


def test_clipping_is_not_of_one_parameter() -> None:
    class Clips(SGD):
        def step(self, closure: Any = None) -> Any:
            torch.nn.utils.clip_grad_norm_(self.param_groups[0]["params"], 1.0, foreach=False)
            return super().step(closure)

    work = worked(lambda: nn.Linear(4, 6), meta(10, 4), lambda p: Clips(p, lr=0.1))
    modules = [one.dims for one in work.works if one.phase is Phase.UPDATE]
    assert {(24,), (6,)} <= set(modules)
    assert len(modules) > 2


def test_in_half_precision_gradients_are_divided_by_the_scale_of_the_loss() -> None:
    """30 floats are read and written, in one launch."""
    trace = traced(lambda: nn.Linear(4, 6), meta(10, 4), lambda p: SGD(p, lr=0.1), torch.float16)
    work = workload_of(trace, name="net", batch=10, precision="fp16", input_bytes=0)
    first = of_kind(work, WorkKind.OPTIMIZER)[0]
    assert (first.name, first.dims, first.nbytes, first.launches) == ("GradScaler", (30,), 240, 1)
