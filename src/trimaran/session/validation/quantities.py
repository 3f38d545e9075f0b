"""Between the time of a step and the figure that a row publishes: rates of samples or steps, times in any unit."""

import re

from trimaran.errors import InputError
from trimaran.session.validation.types import Row, Setup

_TIMES_S = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "min": 60.0, "minutes": 60.0, "h": 3600.0}


def is_time(row: Row) -> bool:
    """Whether a row publishes a time, not a rate."""
    return row.unit.strip().lower() in _TIMES_S


def figure_of(row: Row, setup: Setup, step_s: float) -> float:
    """What a row would publish for a step of that time.

    Args:
        row: whose unit counts
        setup: its batch and devices
        step_s: a step, accumulated microbatches included [s]

    Returns:
        In the row's unit.
    """
    if is_time(row):
        return step_s / _TIMES_S[row.unit.strip().lower()]
    return _work(row, setup) / step_s


def step_of(row: Row, setup: Setup, figure: float, *, devices: int) -> float:
    """The time of a step from a published figure: the inverse of `figure_of` [s].

    Args:
        row: whose unit counts
        setup: its batch
        figure: in the row's unit
        devices: on which the figure was taken
    """
    if is_time(row):
        return figure * _TIMES_S[row.unit.strip().lower()]
    if figure <= 0:
        raise InputError(f"row {row.row_id}: a rate of {figure} says nothing of a step", row=row.row_id)
    return _work(row, setup) * devices / setup.devices / figure


def _work(row: Row, setup: Setup) -> float:
    """What a step of all devices counts for in the row's unit."""
    unit = row.unit.lower()
    per_device = 1.0
    if not re.search(r"\bsteps?\s*/", unit):
        per_device = float(setup.batch_per_device * setup.accumulation * setup.items_per_sample)
    if "/ms" in unit:
        per_device *= 1e-3
    if "/gpu" in unit or "per gpu" in unit:
        return per_device
    return per_device * setup.devices
