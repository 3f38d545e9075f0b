"""A plan for a machine that is not at hand holds what its device keeps, not what the kernels of this machine keep."""

import functools

import pytest

from trimaran.planner.problem import assess
from trimaran.planning.estimated_problem import machine_problem
from trimaran.planning.requests import PlanRequest
from trimaran.planning.tracing.request import make_request
from trimaran.planning.tracing.workloads import graph_of, memory_of_step
from trimaran.program.strategy import Strategy

MOST_OVER = 0.3
"""Gradients of activations have the precision of weights in a plan, and those of weights are there all the time."""


@functools.cache
def peak_of(reference: str, precision: str, batch: int) -> int:
    request = PlanRequest(cluster="dgx-a100", devices=2, batch=batch, precision=precision)
    return max(assess(Strategy(), machine_problem(reference, request)).peak_bytes)


@pytest.mark.parametrize(
    ("reference", "batch", "precision"),
    [
        pytest.param("gpt2:sequence=256", 16, "fp32", marks=pytest.mark.sweep),
        ("gpt2:sequence=256", 16, "bf16"),
        ("resnet18", 64, "fp32"),
        ("resnet18", 64, "bf16"),
    ],
)
def test_one_device_needs_what_a_step_traced_for_it_needs(reference: str, batch: int, precision: str) -> None:
    traced = memory_of_step(reference, batch=batch, precision=precision).peak(batch)
    planned = peak_of(reference, precision, batch)
    assert traced * 0.9 <= planned <= traced * (1 + MOST_OVER)


@pytest.mark.sweep
def test_half_precision_keeps_less_and_attention_keeps_no_probabilities() -> None:
    whole, half = (peak_of("resnet18", precision, 64) for precision in ("fp32", "bf16"))
    assert half < 0.7 * whole
    short, long = (peak_of(f"gpt2:sequence={sequence}", "bf16", 1024 // sequence * 16) for sequence in (256, 1024))
    assert long < 1.1 * short


def test_stages_hold_together_what_one_device_keeps() -> None:
    reference = "gpt2:sequence=256"
    batch = 32
    one = peak_of(reference, "bf16", batch)
    request = PlanRequest(cluster="dgx-a100", devices=2, batch=batch, precision="bf16")
    staged = assess(Strategy(pp=2), machine_problem(reference, request)).peak_bytes
    assert one <= 1.1 * sum(staged)
    assert max(staged) < one


def test_what_a_plan_means_does_not_change() -> None:
    request = PlanRequest(cluster="dgx-a100", devices=2, batch=64, precision="bf16")
    captured = graph_of(make_request("resnet18", precision="bf16", options=None, optimizer=None))
    graph = machine_problem("resnet18", request).graph
    assert graph.digest == captured.digest
    assert graph.storages == captured.storages
    assert set(graph.kept) == set(captured.storages)
    assert not captured.kept
