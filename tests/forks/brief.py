"""Measurements that last a fraction of their time, for tests that need a figure and do not judge it.

A plan for this machine measures for some ten seconds on every rank, so that two plans of one job agree. Forks of a test
without the mark `alone` take fewer rounds of the same: what is measured, and how, stays.
"""

from trimaran.measure import input_pipeline, offload, rounds, trial_runs
from trimaran.measure.calibration import between, interference, links

VARIABLE = "TRIMARAN_TEST_BRIEF"
"""Set in the environment of forks that measure briefly."""

SHARE = 0.15
_BOXES = (
    (rounds, "BOX_S"),
    (trial_runs, "MEASURED_S"),
    (input_pipeline, "BOX_S"),
    (offload, "BOX_S"),
    (interference, "BOX_S"),
    (links, "BOX_S"),
)


def measure_briefly() -> None:
    """Shorten, in this process, the time that each kind of measurement has."""
    for module, name in _BOXES:
        setattr(module, name, getattr(module, name) * SHARE)
    between.STEPS = int(between.STEPS * SHARE)
