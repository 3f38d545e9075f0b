"""Steps of a job that are traced in a process of their own."""

import pytest
from tests import builders

from trimaran.graph.trace.types import Role
from trimaran.graph.types import Phase
from trimaran.jobs.resolve import JobSource
from trimaran.machine.detect import detect_processor
from trimaran.measure.tracing import trace_steps
from trimaran.memory.minimum import minimum_memory
from trimaran.planner.memory_plans import squeeze
from trimaran.program.memory import KEEP_ALL
from trimaran.simulator.memory import live_bytes

IMAGE_BYTES = 4 * 32 * 32

pytestmark = pytest.mark.usefixtures("_forked")


def test_each_size_is_traced_with_its_update_and_can_be_squeezed() -> None:
    told: list[tuple[str, int, int]] = []
    traces = trace_steps(JobSource(reference="digits").make, (16, 64), progress=lambda *event: told.append(event))
    assert [event[1:] for event in told] == [(0, 2), (1, 2), (2, 2)]
    peaks = {}
    for size, step in traces.items():
        assert {op.phase for op in step.trace.ops} == set(Phase)
        assert step.costs.compute_s > 0
        assert step.coding_bytes_per_s.keys() == {"sparse", "bf16"}
        # The batch is there before the step; the rows of the data set that it is made of are the loader's.
        inputs = [one.nbytes for one in step.trace.storages if one.role is Role.INPUT]
        assert max(inputs) == size * IMAGE_BYTES
        assert sum(inputs) < 1.1 * size * IMAGE_BYTES
        assert step.hooks.cores == detect_processor().cores
        peaks[size] = live_bytes(step.trace, KEEP_ALL).peak
        budget = (minimum_memory(step.trace).nbytes + peaks[size]) // 2
        assert squeeze(builders.strategy(memory_bytes=budget), step).peak_bytes <= budget
    assert peaks[16] < peaks[64]
