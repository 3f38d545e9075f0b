"""Operations of a trace on a device of the catalog: the same figures as `estimate_step` gives of the step."""

from typing import Any

import pytest
import torch
from tests import builders
from tests.raising import raises
from torch import nn

from trimaran.graph.kernels.convert import workload_of
from trimaran.graph.trace.meta import trace_on_meta
from trimaran.graph.trace.types import StepTrace, TraceOp
from trimaran.graph.types import Phase
from trimaran.machine.catalog import find_device
from trimaran.pricing.kernels.estimate import estimate_step
from trimaran.pricing.kernels.software import Software
from trimaran.pricing.offload_costs import modelled_costs

TITAN, H200 = find_device("titan-x"), find_device("h200")


def traced(
    *, batch: int = 32, width: int = 256, momentum: float = 0.9, autocast: Any = None, update: bool = True
) -> StepTrace:
    return trace_on_meta(
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 30 * 30, width)),
        lambda: torch.empty(batch, 3, 32, 32, device="meta"),
        lambda model, given: model(given).sum(),
        make_optimizer=(lambda some: torch.optim.SGD(some, lr=0.01, momentum=momentum)) if update else None,
        autocast=autocast,
    )


def of_estimate(trace: StepTrace, device: Any, precision: str, software: Software) -> Any:
    work = workload_of(trace, name="net", batch=1, precision=precision, input_bytes=0)
    return work, estimate_step(work, device, software)


@pytest.mark.parametrize(
    ("device", "precision", "autocast", "software"),
    [
        (TITAN, "fp32", None, Software()),
        (TITAN, "fp32", None, Software(framework="torch7", year=2016.2, libraries="cudnn-4")),
        (H200, "tf32", None, Software(compiled=True)),
        (H200, "bf16", torch.bfloat16, Software()),
        (H200, "fp16", torch.float16, Software(framework="mxnet", year=2019.0)),
    ],
)
def test_phases_take_what_the_estimate_of_the_step_says(
    device: Any, precision: str, autocast: Any, software: Software
) -> None:
    """The update too: of float16 with the unscaling of the gradients, which no operation of the trace is."""
    trace = traced(autocast=autocast)
    costs = modelled_costs(trace, device, precision=precision, software=software)
    _, estimate = of_estimate(trace, device, precision, software)
    for phase, cost in (
        (Phase.FORWARD, estimate.forward), (Phase.BACKWARD, estimate.backward), (Phase.UPDATE, estimate.update)
    ):  # fmt: skip
        found = sum(costs.durations_s[op.moment] for op in trace.ops if op.phase is phase)
        assert found == pytest.approx(cost.seconds, rel=1e-12)
    assert costs.compute_s == pytest.approx(estimate.seconds, rel=1e-12)


def test_an_operation_takes_what_its_kernels_take() -> None:
    """The backward of a convolution is three: gradients of weight and bias, and of the input but for the first."""
    trace = traced()
    work, estimate = of_estimate(trace, TITAN, "fp32", Software())
    costs = modelled_costs(trace, TITAN)
    (backward,) = (op for op in trace.ops if "convolution_backward" in op.name)
    own = [seconds for one, seconds in zip(work.works, estimate.work_s, strict=True) if backward.moment in one.moments]
    assert len(own) == 2
    assert costs.durations_s[backward.moment] == pytest.approx(sum(own), rel=1e-12)


def test_an_update_is_divided_by_the_bytes_that_its_operations_move() -> None:
    trace = traced()
    costs = modelled_costs(trace, TITAN)
    work, _ = of_estimate(trace, TITAN, "fp32", Software())
    largest = max((one for one in work.works if one.phase is Phase.UPDATE), key=lambda one: one.nbytes)
    assert len(largest.moments) > 1
    moved = [trace.events[moment].nbytes for moment in largest.moments]  # type: ignore[union-attr]
    seconds = [costs.durations_s[moment] for moment in largest.moments]
    assert [one / sum(seconds) for one in seconds] == pytest.approx([one / sum(moved) for one in moved])


def test_operations_without_a_kernel_and_ticks_take_no_time_and_copies_have_the_rates_of_the_device() -> None:
    trace = traced()
    costs = modelled_costs(trace, TITAN)
    for event in trace.events:
        if not isinstance(event, TraceOp) or ".empty" in event.name:
            assert costs.durations_s[event.moment] == 0.0
    assert (costs.to_host_bytes_per_s, costs.to_device_bytes_per_s) == (12.8e9, 12.8e9)
    assert "titan-x" in costs.source
    assert "modelled" in costs.source


def test_a_step_without_update_is_priced_without_one() -> None:
    trace = traced(update=False)
    assert trace.optimizer == ""
    assert 0.0 < modelled_costs(trace, TITAN).compute_s < modelled_costs(traced(), TITAN).compute_s


def test_tensor_cores_speed_up_products() -> None:
    """Of 4,096 samples, so that products take most of the step."""
    plain, rounded = (
        modelled_costs(traced(batch=4096, width=4096), H200, precision=one).compute_s for one in ("fp32", "tf32")
    )
    lower = modelled_costs(traced(batch=4096, width=4096, autocast=torch.bfloat16), H200, precision="bf16").compute_s
    assert lower < rounded < plain


def test_later_libraries_are_faster() -> None:
    trace = traced(batch=256)
    early, late = (
        modelled_costs(trace, TITAN, software=Software(year=year, libraries=name)).compute_s
        for year, name in ((2015.2, "cudnn-2"), (2017.7, "cudnn-7.0"))
    )
    assert late < early


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_lower_precision_needs_a_trace_that_has_it(precision: str) -> None:
    with raises("memory-costs.not-in-precision", precision=precision):
        modelled_costs(traced(), H200, precision=precision)


def test_an_unknown_precision_is_refused_with_those_there_are() -> None:
    with raises("precision.unknown", match="bf16", precision="fp8"):
        modelled_costs(builders.step_trace(events=()), TITAN, precision="fp8")
