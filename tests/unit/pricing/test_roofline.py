import pytest
from tests import builders
from tests.raising import raises

from trimaran.graph.trace.types import Role, StepTrace, TraceOp
from trimaran.machine.catalog import find_device
from trimaran.pricing.kernels.roofline import memory_costs, operation_seconds

TITAN, H200 = find_device("titan-x"), find_device("h200")


def _op(moment: int = 0, *, flops: float = 0.0, nbytes: int = 0, dtype: str = "float32") -> TraceOp:
    return builders.trace_op(moment=moment, name="aten.mm.default", flops=flops, nbytes=nbytes, dtype=dtype)


def _trace(*ops: TraceOp) -> StepTrace:
    return builders.step_trace(events=ops)


def test_an_operation_of_much_arithmetic_is_bound_by_it() -> None:
    """4.27e12 FLOP at 6.1e12 × 0.7 FLOP/s: 1 s; its 1 GB takes 4 ms."""
    assert operation_seconds(_op(flops=4.27e12, nbytes=10**9), TITAN, precision="float32") == pytest.approx(1.0)


def test_an_operation_of_little_arithmetic_is_bound_by_memory() -> None:
    """3.6 GB at 4.8e12 × 0.75 B/s: 1 ms, on the H200."""
    assert operation_seconds(_op(flops=1e6, nbytes=3_600_000_000), H200, precision="float32") == pytest.approx(1e-3)


def test_what_touches_nothing_costs_nothing() -> None:
    assert operation_seconds(_op(), TITAN, precision="float32", launches=True) == 0.0


def test_tf32_speeds_up_products_of_float32() -> None:
    """67 × 0.7 against 495 × 0.55 TFLOP/s: 5.80 times as fast."""
    product = _op(flops=1e12)
    plain, rounded = (operation_seconds(product, H200, precision=one) for one in ("float32", "tf32"))
    assert plain / rounded == pytest.approx(495 * 0.55 / (67 * 0.7))


def test_tf32_is_never_slower_than_float32() -> None:
    """A 3090 has the same peak for both, and a smaller share of it is reached on tensor cores."""
    product, device = _op(flops=1e12), find_device("rtx-3090")
    assert operation_seconds(product, device, precision="tf32") == operation_seconds(
        product, device, precision="float32"
    )


def test_each_operation_is_taken_in_its_own_dtype() -> None:
    """Under autocast: 543.95e9 FLOP in bfloat16 take 1 ms, 46.9e9 FLOP that stayed in float32 take 1 ms too."""
    trace = _trace(_op(0, flops=543.95e9, dtype="bfloat16"), _op(1, flops=46.9e9))
    costs = memory_costs(trace, H200, precision="bfloat16")
    assert costs.durations_s.tolist() == pytest.approx([1e-3, 1e-3])


def test_ticks_take_no_time_and_copies_have_the_rates_of_the_device() -> None:
    view = builders.view(shape=(1,))
    tick = builders.tick(moment=1, kind="pack", index=0, pack=0, storage=0, view=view, end=2)
    storage = builders.trace_storage(
        number=0,
        nbytes=4,
        role=Role.ACTIVATION,
        birth=0,
        outside_end=2,
        keep_end=2,
        copy_bytes=4,
        packs=(1,),
        unpacks=(),
        version=0,
    )
    trace = builders.step_trace(events=(_op(nbytes=252_450_000), tick), storages=(storage,))
    costs = memory_costs(trace, TITAN)
    assert costs.durations_s.tolist() == pytest.approx([1e-3, 0.0])
    assert (costs.to_host_bytes_per_s, costs.to_device_bytes_per_s) == (12.8e9, 12.8e9)
    assert "titan-x" in costs.source
    assert "modelled" in costs.source


def test_launches_count_where_they_are_asked_for() -> None:
    """5.9 µs an operation."""
    trace = _trace(_op(0, nbytes=1), _op(1, nbytes=1))
    bare, launched = (memory_costs(trace, TITAN, launches=one).durations_s.sum() for one in (False, True))
    assert launched - bare == pytest.approx(2 * 5.9e-6)


def test_a_precision_that_the_device_lacks_is_refused() -> None:
    with raises("device.precision-unsupported", dtype="tf32"):
        memory_costs(_trace(_op(flops=1.0)), TITAN, precision="tf32")


def test_bfloat16_needs_a_trace_that_has_it() -> None:
    with raises("roofline.no-product-in-precision"):
        memory_costs(_trace(_op(flops=1.0)), H200, precision="bfloat16")


def test_an_unknown_precision_is_refused_with_those_there_are() -> None:
    with raises("roofline.unknown-precision", match="bfloat16", precision="fp8"):
        memory_costs(_trace(), TITAN, precision="fp8")
