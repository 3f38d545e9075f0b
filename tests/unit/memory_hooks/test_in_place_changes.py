"""Seen in the wild: under hooks a saved tensor that was changed in place gives a wrong gradient instead of an error."""

import re
from collections.abc import Callable

import pytest
import torch
from tests.unit.memory_hooks.executing import executing, record
from tests.unit.memory_hooks.plans import OFFLOAD, RECOMPUTE

Case = Callable[[bool], None]


def output(change: bool) -> None:
    made = torch.randn(64, 8, requires_grad=True).exp()
    total = made.sum()
    if change:
        made.add_(1)
    total.backward()


def output_without_gradients(change: bool) -> None:
    made = torch.randn(64, 8, requires_grad=True).exp()
    total = made.sum()
    if change:
        with torch.no_grad():
            made.mul_(2)
    total.backward()


def input_of_the_same_kind(change: bool) -> None:
    """The saved input was made by a node of the same name as the one that saved it."""
    made = torch.randn(64, 8, requires_grad=True).sin()
    total = made.sin().sum()
    if change:
        made.add_(1)
    total.backward()


def through_a_view(change: bool) -> None:
    made = torch.randn(64, 8, requires_grad=True).exp()
    total = (made * made).sum()
    if change:
        made[:2].add_(1)
    total.backward()


def second_output(change: bool) -> None:
    halves = torch.var_mean(torch.randn(64, 8, requires_grad=True), dim=0)
    total = (halves[1] * halves[1]).sum()
    if change:
        halves[1].add_(1)
    total.backward()


def leaf(change: bool) -> None:
    weight = torch.randn(8, 8, requires_grad=True)
    total = (torch.randn(64, 8, requires_grad=True) @ weight).sum()
    if change:
        with torch.no_grad():
            weight.add_(1)
    total.backward()


CASES = [output, output_without_gradients, input_of_the_same_kind, through_a_view, second_output, leaf]


def versions(run: Callable[[], None]) -> list[str]:
    """That an error about a change in place tells: the present one, and that of the forward."""
    try:
        run()
    except RuntimeError as error:
        # Not the error itself: its traceback holds the graph.
        told = str(error)
    else:
        pytest.fail("no error was raised")
    assert "modified by an inplace operation" in told
    return re.findall(r"version (\d+)", told)


@pytest.mark.parametrize("rule", [OFFLOAD, RECOMPUTE])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_change_is_told_with_the_versions_that_autograd_compares(case: Case, rule: str) -> None:
    expected = versions(lambda: case(True))
    recording = record(lambda: case(False))
    with executing(recording, rule=rule, held=True) as executor, executor.hooks():
        seen = versions(lambda: case(True))
        assert executor.finish_step().mismatches == 0
    assert seen == expected


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_it_is_raised_without_a_plan_too(case: Case) -> None:
    expected = versions(lambda: case(True))
    with executing(None) as executor, executor.hooks():
        assert versions(lambda: case(True)) == expected


def test_a_change_of_what_was_given_to_a_node_is_seen_by_the_next() -> None:

    class Writes(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):  # type: ignore[no-untyped-def]
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, gradient):  # type: ignore[no-untyped-def]
            (x,) = ctx.saved_tensors
            x.add_(1)
            return gradient * 2

    def run() -> None:
        made = torch.randn(64, 8, requires_grad=True).exp()
        Writes.apply(made).sum().backward()

    assert versions(run)
    with executing(None) as executor, executor.hooks():
        assert versions(run)
