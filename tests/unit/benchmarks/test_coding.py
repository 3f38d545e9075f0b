"""Which storages hold zeros, and when coding pays."""

import torch
from benchmarks.compression.coding import after_relu, least_codec_rate, saved_s
from torch import nn

from trimaran.graph.trace.meta import trace_on_meta
from trimaran.graph.trace.types import StepTrace


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


def test_coding_pays_above_the_least_rate_and_not_below() -> None:
    link, ratio = 53e9, 1.75
    least = least_codec_rate(link, ratio)
    assert saved_s(10**9, link_bytes_per_s=link, codec_bytes_per_s=1.01 * least, ratio=ratio) > 0
    assert saved_s(10**9, link_bytes_per_s=link, codec_bytes_per_s=0.99 * least, ratio=ratio) < 0
    assert least_codec_rate(link, 1.0) == float("inf")
