"""Which storages hold zeros, what the planner sees of coded ones, and when coding pays."""

import numpy as np
import pytest
import torch
from torch import nn

from trimaran.costs.compression import after_relu, coded_trace, least_codec_rate, saved_s, sparse_ratio
from trimaran.costs.memory_costs import MemoryCosts
from trimaran.errors import InputError
from trimaran.graph.trace.meta import trace_on_meta
from trimaran.graph.trace.types import StepTrace
from trimaran.planner.memory import lower_bound, plan_memory
from trimaran.planner.memory.floor import floor, kept_bytes
from trimaran.simulator.memory import live_bytes, simulate_memory


def traced(*layers: nn.Module) -> StepTrace:
    model = nn.Sequential(*layers)
    return trace_on_meta(lambda: model, lambda: torch.zeros(8, 4, 16, 16), lambda net, x: net(x).square().sum())


def test_zeros_come_from_relus_and_go_through_poolings() -> None:
    """Packed: the input, relu's result (with its input, in place), the pool's result and indices, sigmoid's result."""
    trace = traced(
        nn.Conv2d(4, 4, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 3, padding=1),
        nn.Sigmoid(),
        nn.Conv2d(4, 4, 3, padding=1),
    )
    sparse = {trace.storages[number].module: trace.storages[number].nbytes for number in after_relu(trace)}
    assert sparse == {"0": 8 * 4 * 16 * 16 * 4, "2": 8 * 4 * 8 * 8 * 4}


def test_what_a_relu_made_and_another_operation_changed_is_not_counted() -> None:
    class Shifted(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.add_(1.0)

    trace = traced(nn.Conv2d(4, 4, 3), nn.Hardswish(), Shifted(), nn.Conv2d(4, 4, 3))
    assert after_relu(trace) == frozenset()


def costs(trace: StepTrace) -> MemoryCosts:
    """Operations of a microsecond each, and a link on which everything takes ten times the step."""
    durations_s = np.zeros(trace.length)
    durations_s[[op.moment for op in trace.ops]] = 1e-6
    moved = sum(one.copy_bytes for one in trace.movable)
    rate = moved / (10 * durations_s.sum())
    return MemoryCosts(
        durations_s=durations_s,
        to_host_bytes_per_s=rate,
        to_device_bytes_per_s=rate,
        copy_latency_s=0.0,
        source="test",
    )


def test_a_plan_of_coded_storages_keeps_the_same_peak_and_copies_less() -> None:
    """Memory on the device is the same whatever crosses the link; only the time of copies is less."""
    layers = [layer for _ in range(6) for layer in (nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(inplace=True))]
    trace = traced(*layers)
    coded = coded_trace(trace, dict.fromkeys(after_relu(trace), 2.5))
    assert floor(coded).nbytes == floor(trace).nbytes
    everything = frozenset(one.number for one in trace.storages)  # nothing may be recomputed
    budget = int((kept_bytes(trace).max() + floor(trace).nbytes) / 2)
    plain = plan_memory(trace, costs(trace), budget_bytes=budget, smallest_bytes=1, banned=everything)
    ours = plan_memory(coded, costs(trace), budget_bytes=budget, smallest_bytes=1, banned=everything)

    assert live_bytes(trace, ours.plan).peak == ours.live.peak <= budget
    assert ours.run.step_time_s < plain.run.step_time_s
    assert (
        simulate_memory(coded, ours.plan, costs(trace)).to_host_bytes
        < simulate_memory(trace, ours.plan, costs(trace)).to_host_bytes
    )
    assert lower_bound(coded, costs(trace), budget).step_time_s <= lower_bound(trace, costs(trace), budget).step_time_s


def test_bytes_are_rounded_up_and_others_stay() -> None:
    trace = traced(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 3))
    (number,) = after_relu(trace)
    coded = coded_trace(trace, {number: 3.0})
    assert coded.storages[number].copy_bytes == -(-trace.storages[number].copy_bytes // 3)
    assert coded.storages[number].nbytes == trace.storages[number].nbytes
    assert [one for one in coded.storages if one.number != number] == [
        one for one in trace.storages if one.number != number
    ]


def test_a_ratio_below_one_is_refused() -> None:
    trace = traced(nn.Conv2d(4, 4, 3), nn.ReLU())
    with pytest.raises(InputError, match="1 or more"):
        coded_trace(trace, {0: 0.5})


@pytest.mark.parametrize(("zeros", "ratio"), [(0.5, 1 / 0.53125), (1.0, 32.0), (0.03, 1.0)])
def test_a_bit_a_word_and_the_words_that_are_left(zeros: float, ratio: float) -> None:
    assert sparse_ratio(zeros) == pytest.approx(ratio)


def test_coding_pays_above_the_least_rate_and_not_below() -> None:
    link, ratio = 53e9, 1.75
    least = least_codec_rate(link, ratio)
    assert saved_s(10**9, link_bytes_per_s=link, codec_bytes_per_s=1.01 * least, ratio=ratio) > 0
    assert saved_s(10**9, link_bytes_per_s=link, codec_bytes_per_s=0.99 * least, ratio=ratio) < 0
    assert least_codec_rate(link, 1.0) == float("inf")
