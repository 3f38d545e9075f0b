"""Figures that a stall analysis is asked for, before anything starts."""

import pytest
from tests.raising import raises

from trimaran.features.diagnose.stalls import profile_stalls
from trimaran.jobs.resolve import JobSource


@pytest.mark.parametrize("workers", [-1, 257])
def test_workers_out_of_range_are_refused(workers: int) -> None:
    """As many as a plan may have; thousands of processes a rank would take the machine down."""
    with raises("stalls.bad-workers", match=r"\b0\b.*\b256\b", workers=workers):
        profile_stalls(JobSource(reference="digits"), workers=workers)


def test_no_steps_are_refused() -> None:
    with raises("stalls.bad-steps", match=r"\b1\b", steps=0):
        profile_stalls(JobSource(reference="digits"), steps=0)
