from dataclasses import replace

import pytest
from tests.raising import raises
from tests.unit.report.memory_steps import TRACE

from trimaran.features.memory_fit.largest_batch import BatchLine, at_any_batch
from trimaran.graph.trace.types import Role, StepTrace, TraceOp
from trimaran.jobs.resolve import resolve
from trimaran.machine.catalog import find_device
from trimaran.planning.tracing.meta_trace import JobTracer
from trimaran.pricing.offload_costs import modelled_costs


def _sized(samples: int) -> StepTrace:
    """The example with activations and work `samples` times as large; the parameter and its gradient stay."""
    storages = tuple(
        replace(one, nbytes=one.nbytes * samples, copy_bytes=one.copy_bytes * samples)
        if one.role == Role.ACTIVATION
        else one
        for one in TRACE.storages
    )
    events = tuple(
        replace(one, nbytes=1000 * samples, flops=10.0 * samples) if isinstance(one, TraceOp) else one
        for one in TRACE.events
    )
    return replace(TRACE, storages=storages, events=events)


@pytest.mark.parametrize("samples", [1, 3, 7, 1000])
def test_two_traces_give_the_step_at_any_batch(samples: int) -> None:
    found = BatchLine(_sized(2), _sized(4), (2, 4)).at(samples)
    assert found.storages == _sized(samples).storages
    assert found.events == _sized(samples).events


def test_a_step_of_another_length_is_no_line() -> None:
    other = replace(TRACE, events=TRACE.events[:-1])
    with raises("memory.other-operations", small=2, large=4):
        BatchLine(TRACE, other, (2, 4))


def test_storages_that_live_otherwise_are_no_line() -> None:
    """A storage that is packed with one batch and not with another cannot be drawn between the two."""
    first, *rest = TRACE.storages
    other = replace(TRACE, storages=(replace(first, packs=()), *rest))
    with raises("memory.other-operations"):
        BatchLine(TRACE, other, (2, 4))


def test_a_line_spares_traces_where_it_holds() -> None:
    asked = []

    def trace(samples: int) -> StepTrace:
        asked.append(samples)
        return _sized(samples)

    step = at_any_batch(trace, 2)
    assert step(100).storages == _sized(100).storages
    assert asked == [2, 4, 6]


def test_each_batch_is_traced_where_sizes_do_not_lie_on_a_line() -> None:
    """Storages grow with the square of the batch: at 6 the line through 2 and 4 is below it."""
    step = at_any_batch(lambda samples: _sized(samples**2), 2)
    assert step(5).storages == _sized(25).storages


def test_each_batch_is_traced_where_the_step_is_another_one() -> None:
    shorter = replace(TRACE, events=TRACE.events[:-1])
    step = at_any_batch(lambda samples: shorter if samples == 4 else TRACE, 2)
    assert step(4) is shorter


def test_a_step_on_the_line_takes_what_the_step_at_that_batch_takes() -> None:
    """Shapes of operations lie on the line too: kernels are priced by them."""
    tracer, device = JobTracer(resolve("digits")), find_device("titan-x")
    line = BatchLine(tracer.trace(16), tracer.trace(32), (16, 32)).at(100)
    assert line.ops == tracer.trace(100).ops
    expected = modelled_costs(tracer.trace(100), device).durations_s
    assert modelled_costs(line, device).durations_s.tolist() == expected.tolist()


def test_shapes_of_other_dims_are_no_line() -> None:
    """A batch of one that loses its first dim runs operations of the same names on other tensors."""
    first = next(one for one in TRACE.events if isinstance(one, TraceOp))
    events = tuple(replace(one, results=((4, 2),)) if one is first else one for one in TRACE.events)
    flat = tuple(replace(one, results=((4,),)) if one is first else one for one in TRACE.events)
    with raises("memory.other-operations", small=1, large=4):
        BatchLine(replace(TRACE, events=flat), replace(TRACE, events=events), (1, 4))
