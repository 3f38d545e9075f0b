"""A step and a curve together: C = T · S · E with its interval.

The time of a step is uncertain by what costs are known here, the training by the runs behind the curve. The two know
nothing of each other, so their distances from the median add in quadrature, in logarithms, upwards and downwards each:

    ln(high / median)² = ln(T_high / T)² + ln(E_high / E)²
"""

import math
from collections.abc import Callable

from trimaran.planner.accuracy.types import Contender, Estimate, Training

Price = Callable[[int, float], float]
"""What so many devices for so many seconds cost."""

SECONDS_PER_HOUR = 3600.0


def device_hours(devices: int, seconds: float) -> float:
    """Hours of devices, where nobody says what one costs.

    Example:
        >>> device_hours(4, 1800.0)
        2.0
    """
    return devices * seconds / SECONDS_PER_HOUR


def combine(step: tuple[float, float, float], updates: tuple[float, float, float]) -> tuple[float, float, float]:
    """The product of two independent figures with their 90 % intervals.

    Args:
        step: low, median, high of a step [s]
        updates: low, median, high of how many

    Returns:
        Low, median, high of all of them [s].

    Example:
        >>> [round(value, 6) for value in combine((0.5, 1.0, 2.0), (100.0, 100.0, 100.0))]
        [50.0, 100.0, 200.0]
    """
    median = step[1] * updates[1]
    down = math.hypot(_distance(step[1], step[0]), _distance(updates[1], updates[0]))
    up = math.hypot(_distance(step[2], step[1]), _distance(updates[2], updates[1]))
    return median * math.exp(-down), median, median * math.exp(up)


def _distance(larger: float, smaller: float) -> float:
    """Of two positive figures in logarithms; nothing where they are in the other order."""
    return max(0.0, math.log(larger / smaller)) if larger > 0.0 and smaller > 0.0 else 0.0


def estimate(
    contender: Contender, training: Training | None, *, price: Price = device_hours, unit: str = "device-hours"
) -> Estimate:
    """What a training by a strategy takes and costs.

    Args:
        contender: the strategy
        training: at its batch; None: nothing is known of it
        price: of devices for a time
        unit: of the price
    """
    if training is None:
        return Estimate(contender=contender, cost_unit=unit)
    training = training.times(contender.samples_factor)
    need = training.updates
    low, median, high = combine(contender.cases, (need.low, need.amount, need.high))
    devices = contender.devices
    return Estimate(
        contender=contender,
        training=training,
        time_s=median,
        time_interval_s=(low, high),
        cost=price(devices, median),
        cost_interval=(price(devices, low), price(devices, high)),
        cost_unit=unit,
    )
