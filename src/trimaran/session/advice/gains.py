"""What a remedy saves of a step, as arguments of `Remedy`."""

from collections.abc import Callable
from typing import TypedDict

from trimaran.measure.observe import Findings, Parts
from trimaran.measure.observe.parts import figure_interval

LEAST_GAIN = 0.01
"""Smaller predicted gains are not worth a line."""

# Of a step that is nearly all saved, something is left.
_MOST = 0.999


class Gain(TypedDict):
    """A gain as a share of the step [0..1].

    Attributes:
        predicted_gain: what is expected
        gain_interval: that contains it
    """

    predicted_gain: float
    gain_interval: tuple[float, float]


def gain(findings: Findings, saved: Callable[[Parts], float], *ends: Callable[[Parts], float]) -> Gain:
    """The gain from what is saved of a step, with its interval.

    Args:
        findings: of an observed script
        saved: of the parts of a step [s]
        ends: the same with the ends of the interval of something that was measured besides
    """
    intervals = [
        figure_interval(lambda parts, of=of: of(parts) / parts.step_s, findings.mean, findings.blocks)  # type: ignore[misc]
        for of in (saved, *ends)
    ]
    middle = min(intervals[0][0], _MOST)
    low, high = min(low for _, low, _ in intervals), max(high for _, _, high in intervals)
    return {"predicted_gain": middle, "gain_interval": (min(low, middle), min(max(high, middle), _MOST))}
