"""The minimum memory of a step."""

import pytest
from tests.raising import raises
from tests.unit.memory.traces import TraceMaker, chain

from trimaran.base.errors import InfeasibleError
from trimaran.graph.trace.types import Role
from trimaran.graph.types import Phase
from trimaran.memory.minimum import minimum_memory
from trimaran.memory.search import plan_memory
from trimaran.pricing.offload_costs import measured_costs


def test_the_floor_is_what_the_largest_operation_needs() -> None:
    """Layer 1 reads 200 and makes 300; its backward needs 200, and gradients of 300 and 200; the input stays: 800.

    Everything else that is packed may be away then. At the loss: 100, 300 (output) and 300 (gradient).
    """
    least = minimum_memory(chain((100, 200, 300), (1.0, 2.0)))
    assert (least.nbytes, least.moment, least.operation) == (800, 6, "aten.op.default")
    assert [(one.number, one.nbytes, one.role) for one in least.holders] == [
        (3, 300, Role.ACTIVATION),
        (1, 200, Role.ACTIVATION),
        (4, 200, Role.ACTIVATION),
        (0, 100, Role.INPUT),
    ]


def test_what_is_held_outside_of_autograd_is_in_the_floor() -> None:
    """x is packed, and dropped by the caller only after the large operation."""
    maker = TraceMaker()
    x, y = maker.make(50), maker.make(1000)
    maker.op([], [x], 1.0)
    packed = maker.pack(x)
    maker.op([x], [y], 1.0)
    maker.drop(x)
    maker.drop(y)
    maker.unpack(packed)
    maker.op([x], [], 1.0)
    assert minimum_memory(maker.trace()).nbytes == 1050


def test_the_floor_of_an_empty_step_is_0() -> None:
    assert minimum_memory(TraceMaker().trace()).nbytes == 0


def test_below_the_floor_is_refused_with_what_holds_it_and_the_ways_out() -> None:
    """The state is 40 of weight and 20 of momentum; 1000 grow with the batch: 570 fits with (570 - 60) / 1000 of it."""
    maker = TraceMaker()
    weight, momentum = (
        maker.make(40, Role.PARAMETER, before=True),
        maker.make(20, Role.OPTIMIZER, before=True),
    )
    wide = maker.make(1000)
    maker.op([weight], [wide], 1.0)
    maker.op([wide], [], 1.0, phase=Phase.BACKWARD)
    maker.drop(wide)
    maker.op([momentum], [], 1.0, phase=Phase.UPDATE)
    trace = maker.trace()
    costs = measured_costs(trace, to_host_bytes_per_s=1.0, to_device_bytes_per_s=1.0)
    with pytest.raises(InfeasibleError) as refusal:
        plan_memory(trace, costs, budget_bytes=570)
    assert refusal.value.figures == {"budget_bytes": 570, "minimum_memory_bytes": 1060, "moment": 0, "outside_bytes": 0}
    text = refusal.value.message
    assert (
        "below the minimum memory of this step, 1.0 KiB at aten.op.default: activation 2 (1000 B), parameter 0 (40 B)"
        in text
    )
    assert "a micro-batch of at most 51% of this one" in text
    assert "parts of the batch" in text
    assert "the optimizer's state on the host (about 1.0 KiB)" in text
    with raises("memory-plan.below-minimum", InfeasibleError, match=r"\b60\b"):
        plan_memory(trace, costs, budget_bytes=50)
