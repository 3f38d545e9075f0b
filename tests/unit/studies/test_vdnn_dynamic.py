"""The order of trials of the paper's dynamic policy, on a made-up network whose memory is told for each trial.

Three convolutions, layers 0, 2 and 4. Their workspaces take 5, 3 and 1 with the fastest algorithms; what is left
offloaded or not takes 20 (none), 12 (conv) or 8 (all). A convolution sees what is left plus its own workspace.
"""

from collections.abc import Mapping

import pytest
from tests.raising import raises

from trimaran.base.errors import InfeasibleError
from trimaran.memory.vdnn import Offload
from trimaran_studies.reproduce.vdnn_dynamic import Algorithm, Choice, Usage, choose_dynamically

WORKSPACES = {0: 5, 2: 3, 4: 1}
MAPS = {Offload.NONE: 20, Offload.CONV: 12, Offload.ALL: 8}


def usage(offload: Offload, algorithms: Mapping[int, Algorithm]) -> Usage:
    peaks = {
        number: MAPS[offload] + (workspace if algorithms[number] == Algorithm.PERFORMANCE else 0)
        for number, workspace in WORKSPACES.items()
    }
    return Usage(peak_bytes=max(peaks.values()), by_convolution=peaks)


def chosen(budget: int) -> Choice:
    return choose_dynamically(usage, (0, 2, 4), budget_bytes=budget)


@pytest.mark.parametrize(
    ("budget", "tried"),
    [
        (25, "all(m) none(p)"),
        (17, "all(m) none(p) conv(p)"),
        # conv(p) needs 17, all(p) 13.
        (16, "all(m) none(p) conv(p) all(p)"),
        (13, "all(m) none(p) conv(p) all(p)"),
        # all(p) needs 13: conv with frugal algorithms where they do not fit needs 12.
        (12, "all(m) none(p) conv(p) all(p) conv(greedy)"),
        # conv alone needs 12.
        (11, "all(m) none(p) conv(p) all(p) conv(greedy) all(greedy)"),
        (8, "all(m) none(p) conv(p) all(p) conv(greedy) all(greedy)"),
    ],
)
def test_order_of_trials(budget: int, tried: str):
    assert " ".join(chosen(budget).tried) == tried


def test_only_convolutions_that_overflow_are_downgraded():
    """At 11 with everything offloaded: 8 + 5 and 8 + 3 against 11; the second just fits."""
    assert chosen(11).algorithms == {0: Algorithm.MEMORY, 2: Algorithm.PERFORMANCE, 4: Algorithm.PERFORMANCE}


def test_what_cannot_be_trained_at_all_is_refused_with_the_figures():
    with raises("memory-plan.vdnn-cannot-train", InfeasibleError) as refused:
        chosen(7)
    assert refused.value.figures == {"peak_bytes": 8, "budget_bytes": 7}


def test_the_last_resort_is_what_the_first_trial_has_shown():
    """A peak that no convolution shows (a pooling's) cannot be cured by its algorithm."""

    def stubborn(offload: Offload, algorithms: Mapping[int, Algorithm]) -> Usage:
        frugal = all(algorithm == Algorithm.MEMORY for algorithm in algorithms.values())
        return Usage(peak_bytes=8 if offload == Offload.ALL and frugal else 99, by_convolution={})

    choice = choose_dynamically(stubborn, (0, 2), budget_bytes=10)
    assert choice.tried[-2:] == ("all(greedy)", "all(m)")
    assert choice.offload == Offload.ALL
    assert set(choice.algorithms.values()) == {Algorithm.MEMORY}
